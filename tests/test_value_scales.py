"""Value transforms and their inverses."""

import math

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from ntl_jax.numbers.value_scales import ValueScale

FINITE = st.floats(-1e30, 1e30)


@given(st.lists(FINITE, min_size=1), st.sampled_from(["none", "log1p"]))
def test_scaled_numbers_come_back(numbers, kind):
    scale = ValueScale.fit(kind, numbers)
    back = scale.invert(scale.apply(np.array(numbers)))
    np.testing.assert_allclose(back, numbers, rtol=1e-12, atol=1e-300)


@given(st.lists(FINITE, min_size=2, unique=True))
@example([-1e308, 1e308])
@example([1.0, math.nextafter(1.0, 2.0)])
def test_minmax_stays_within_five_and_comes_back(numbers):
    low, high = min(numbers), max(numbers)
    assume(high / 2 - low / 2 >= 1e-300)
    scale = ValueScale.fit("minmax5", numbers)
    scaled = scale.apply(np.array(numbers))
    assert (np.abs(scaled) <= 5 + 1e-9).all()
    assert abs(scale.apply(np.array(low)) + 5) < 1e-9
    assert abs(scale.apply(np.array(high)) - 5) < 1e-9
    tolerance = 1e-12 * max(abs(low), abs(high))
    np.testing.assert_allclose(scale.invert(scaled), numbers, rtol=0, atol=tolerance)


def test_log_is_natural_signed_and_odd():
    scale = ValueScale("log1p")
    assert scale.apply(np.array(99.0)) == math.log(100)
    assert scale.apply(np.array(-99.0)) == -math.log(100)
    assert scale.apply(np.array(0.0)) == 0
    assert scale.invert(np.array(1e4)) == np.inf  # beyond float64: said, not hidden
    wrong = np.log10(1 + 99.0)
    assert abs(scale.apply(np.array(99.0)) - wrong) > 1


def test_what_is_no_scale_is_refused():
    with pytest.raises(ValueError, match="'none', 'log1p' or 'minmax5'"):
        ValueScale("log")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="two different numbers, got 2"):
        ValueScale.fit("minmax5", [3.0, 3.0])
    with pytest.raises(ValueError, match="low below high"):
        ValueScale("minmax5", 1.0, np.nan)


def test_numbers_that_halves_cannot_tell_apart_are_refused():
    with pytest.raises(ValueError, match="too close"):
        ValueScale.fit("minmax5", [0.0, 5e-324])

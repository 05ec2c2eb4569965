"""Number encodings against both formulas, written out number by number."""

import numpy as np
import pytest

from ntl_jax.models.baselines.number_encodings import number_encodings
from ntl_jax.numbers.place_tokens import place_values
from tests.models.regression_transformer_cases import by_hand

WIDTH = 7


@pytest.mark.parametrize("formula", ["paper", "reference"])
@pytest.mark.parametrize("scale", ["none", "linear", "log"])
def test_every_token_equals_the_formula(formula, scale):
    values = place_values()
    got = number_encodings(values, WIDTH, formula=formula, scale=scale)
    want = [[by_hand(v, j, formula, scale) for j in range(WIDTH)] for v in values]
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-12)
    other = "paper" if formula == "reference" else "reference"
    wrong = number_encodings(values, WIDTH, formula=other, scale=scale)
    assert not np.allclose(wrong, want, rtol=1e-3)


@pytest.mark.parametrize(
    ("value", "dimension", "entry"),
    [
        (3e9, 0, 10.0),
        (3e9, 1, -10.0),
        (3e9, 2, 9.4966),
        (1.0, 0, 0.3176),
        (1.0, 1, -0.3176),
        (1.0, 2, 0.1318),
        (9e9, 0, 10.5034),
        (5e-3, 0, 0.0023),
        (0.0, 4, 0.0),
    ],
)
def test_entries_as_the_released_code_gives_them(value, dimension, entry):
    got = number_encodings(np.array([value]), WIDTH)[0, dimension]
    assert abs(got - entry) < 6e-5


@pytest.mark.parametrize("formula", ["paper", "reference"])
@pytest.mark.parametrize("scale", ["linear", "log"])
def test_distances_grow_with_the_difference(formula, scale):
    numbers = np.array([-5e3, -20.0, -1.0, 0.0, 1e-3, 0.5, 2.0, 70.0, 9e9])
    rows = number_encodings(numbers, 64, formula=formula, scale=scale)
    rows = rows.astype(np.float64)
    distances = np.linalg.norm(rows[:, None] - rows[None], axis=-1)
    for distance in distances:
        own = int(distance.argmin())
        assert (np.diff(distance[own:]) > 0).all()
        assert (np.diff(distance[: own + 1]) < 0).all()


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        ([1.0], {"formula": "sine"}, "'paper' or 'reference'"),
        ([1.0], {"scale": "log2"}, "'log', 'linear' or 'none'"),
        ([np.inf], {}, "finite numbers"),
        ([[1.0]], {}, r"shape \(1, 1\)"),
    ],
)
def test_what_is_no_option_is_refused(values, options, message):
    with pytest.raises(ValueError, match=message):
        number_encodings(np.array(values), WIDTH, **options)
    with pytest.raises(ValueError, match="width 0"):
        number_encodings(np.array([1.0]), 0)


def test_tokens_are_places_outside_digits_inside():
    values = place_values()
    assert len(values) == 320
    assert values[248] == 8e12
    assert values[121] == 1.0
    assert np.count_nonzero(values == 0) == 32

"""Pairs of numbers: exact where float64 is not, finite where it overflows."""

import json
import math
from decimal import Decimal
from fractions import Fraction

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from ntl_jax.metrics import NumberPairs, numeric_metrics, pair_scores, read_pairs
from ntl_jax.metrics.pairs import FARTHEST, mean_of

LONG = "1234567890123456789012345"  # 25 digits: float64 knows 16


def test_an_error_of_one_in_25_digits_is_one():
    pairs = read_pairs([LONG[:-1] + "6", LONG], [LONG, LONG])
    assert pairs.error.tolist() == [1.0, 0.0]
    assert pairs.exact.tolist() == [False, True]
    assert pairs.order.tolist() == [1, 0]
    assert pairs.percentage[0] == pytest.approx(100 / float(LONG), rel=1e-12)
    assert float(LONG[:-1] + "6") == float(LONG), "float64 would not see it"


def test_ranks_are_of_the_exact_numbers():
    labels = [LONG[:-1] + digit for digit in "1234"]
    assert len(set(map(float, labels))) == 1
    scores = numeric_metrics(labels, labels)
    assert scores["spearman"] == pytest.approx(1.0)
    assert numeric_metrics(labels[::-1], labels)["spearman"] == pytest.approx(-1.0)
    assert scores["pearson"] is None, "in float64 these are constants"


@pytest.mark.parametrize(
    ("prediction", "reference"),
    [
        ("1e300", "1e-300"),
        ("-1e9999", "1e9999"),
        ("1e9999", "1e9998"),
        ("9" * 500, "8" * 500),
        ("1e-9999", "0"),
        ("0", "1e-9999"),
        ("5", "1e9999"),
        ("1/" + "9" * 400, "9" * 400 + "/7"),
    ],
)
@pytest.mark.parametrize("paper_compat", [False, True])
def test_no_size_overflows(prediction, reference, paper_compat):
    references = [reference, "1", "2"]
    for predictions in ([prediction, "1", "3"], ["?", "1", "3"]):
        scores = numeric_metrics(predictions, references, paper_compat=paper_compat)
        json.dumps(scores, allow_nan=False)
        assert scores["mae"] >= 0


def test_huge_errors_are_clipped_and_said_to_be():
    scores = numeric_metrics(["1e300", "1", "?"], ["1", "1", "1"])
    assert scores["mae"] == FARTHEST / 2
    assert scores["clipped_rate"] == pytest.approx(1 / 3)
    # Numbers beyond the limit that differ by little are near all the same.
    near = numeric_metrics(["1e300", "1"], ["1e300", "1"])
    assert (near["mae"], near["clipped_rate"], near["number_accuracy"]) == (0, 0, 1)


def test_logarithms_reach_beyond_float64():
    pairs = read_pairs(["2e9999", "-1e400", "1e-9999"], ["1e9999", "1e400", "0"])
    assert pairs.log_y.tolist() == [9999.0, 400.0, 0.0]
    assert pairs.log_p[0] - pairs.log_y[0] == pytest.approx(math.log10(2))
    assert pairs.log_p[1:].tolist() == [-400.0, 0.0]
    assert pair_scores(pairs)["log_mae"] == pytest.approx((math.log10(2) + 800) / 3)


@hypothesis.given(st.integers(98, 102), st.integers(1, 9))
def test_logarithms_agree_on_both_sides_of_the_limit(exponent, digit):
    number = Decimal(digit).scaleb(exponent)
    pairs = NumberPairs((number, -number), (number, None))
    expected = float(number.log10())
    np.testing.assert_allclose(pairs.log_y, [expected, -expected], rtol=1e-14)
    assert pairs.log_p[1] == 0.0


@hypothesis.given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.decimals(-1000, 1000, places=2)),
            st.one_of(
                st.decimals(-1000, 1000, places=2), st.fractions(max_denominator=99)
            ),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_fields_agree_with_rationals(numbers):
    guesses, labels = zip(*numbers, strict=True)
    pairs = NumberPairs(labels, guesses)
    for row, (guess, label) in enumerate(numbers):
        assert pairs.parsed[row] == (guess is not None)
        if guess is None:
            assert not pairs.exact[row] and pairs.order[row] == pairs.error[row] == 0
            continue
        error = Fraction(guess) - Fraction(label)
        assert pairs.error[row] == pytest.approx(float(error), rel=1e-12)
        assert pairs.order[row] == (error > 0) - (error < 0)
        assert pairs.exact[row] == (error == 0)
        near = abs(error) <= Fraction("0.01") * abs(Fraction(label))
        assert pairs.within(0.01)[row] == near
        if label:
            expected = float(100 * abs(error / Fraction(label)))
            assert pairs.percentage[row] == pytest.approx(expected, rel=1e-12)
    exact = sum(map(Fraction, labels)) / len(labels)
    assert float(mean_of(labels)) == pytest.approx(float(exact), rel=1e-12, abs=1e-12)


def test_a_sign_or_a_digit_that_changes_is_seen():
    base = read_pairs(["12.50"], ["12.5"])
    assert base.exact[0]
    for other in ("-12.5", "12.51", "125", "1.25e2"):
        changed = read_pairs([other], ["12.5"])
        assert not changed.exact[0] and changed.error[0] != 0


def test_fractions_are_one_number_unless_told_otherwise():
    assert read_pairs(["3/4"], ["0.75"]).exact.tolist() == [True]
    assert read_pairs(["3/4"], ["0.75"], fractions=False).exact.tolist() == [False]
    assert read_pairs(["3/4"], ["4"], paper_compat=True).exact.tolist() == [True]

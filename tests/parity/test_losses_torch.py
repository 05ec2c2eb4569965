"""Values and gradients of the losses against ntloss and torch, over the grid."""

import dataclasses
import itertools

import chex
import numpy as np
import pytest

from ntl_jax.losses import softmax as number_softmax
from tests.parity.jax_losses import ours
from tests.parity.loss_cases import (
    AXES,
    HALF_ULP,
    NUMBER_LOSSES,
    SPAN_LOSSES,
    TOLERANCE,
    Case,
    grid,
    pairs,
    pairwise,
    quick_cases,
)

pytest.importorskip("torch")
pytest.importorskip("ntloss")

from tests.parity.torch_losses import theirs


def assert_close(case, actual, expected):
    value, gradient = actual
    assert value.dtype == np.float32 and gradient.dtype == case.dtype
    chex.assert_trees_all_close(value, expected[0], rtol=TOLERANCE, atol=TOLERANCE)
    rtol = TOLERANCE if case.dtype == "float32" else HALF_ULP
    chex.assert_trees_all_close(
        gradient.astype(np.float32), expected[1], rtol=rtol, atol=TOLERANCE
    )


@pytest.fixture(scope="module")
def quick():
    """Our side of the quick cases, compiled as one program."""
    cases = quick_cases()
    return dict(zip(cases, ours(cases), strict=True))


def test_the_quick_cases_hold_every_pair_of_choices():
    chosen = {pair for case in pairwise() for pair in pairs(case)}
    assert chosen == {pair for case in grid() for pair in pairs(case)}
    values = set(itertools.chain.from_iterable(chosen))
    assert values == {(axis, v) for axis, of_axis in AXES.items() for v in of_axis}


@pytest.mark.parametrize("case", quick_cases(), ids=str)
def test_quick(case, quick):
    assert_close(case, quick[case], theirs(case))


@pytest.mark.slow
@pytest.mark.parametrize(
    "loss, digit_level", sorted({(case.loss, case.digit_level) for case in grid()})
)
def test_the_whole_grid(loss, digit_level):
    cases = [case for case in grid() if case.loss == loss]
    cases = [case for case in cases if case.digit_level is digit_level]
    for case, actual in zip(cases, ours(cases), strict=True):
        assert_close(case, actual, theirs(case))


def assert_all_differ(cases, results):
    for case, actual in zip(cases, results, strict=True):
        with pytest.raises(AssertionError):
            assert_close(case, actual, theirs(case))


def off_by_a_thousandth(loss):
    """One number is worth 0.1% of the range too much."""
    values = loss.numbers.values.copy()
    values[3] += 0.001 * np.ptp(values)
    loss.numbers = dataclasses.replace(loss.numbers, values=values)


def test_a_wrong_value_in_the_vocabulary_is_seen():
    cases = []
    for loss, digits, reweigh in itertools.product(
        NUMBER_LOSSES, AXES["digit_level"], (False, True)
    ):
        if "squash" not in loss:  # the matrix was made before the change
            cases.append(Case(loss, digits, reweigh))
    assert_all_differ(cases, ours(cases, change=off_by_a_thousandth))


def test_a_wrong_reweighing_constant_is_seen(monkeypatch):
    monkeypatch.setattr(number_softmax, "REWEIGH_FACTOR", 1.0)
    cases = [Case(loss, reweigh=True) for loss in AXES["loss"]]
    assert_all_differ(cases, ours(cases))


def test_a_wrong_squash_factor_is_seen():
    cases = [
        Case(loss, digits, reweigh=True)
        for loss in NUMBER_LOSSES
        for digits in AXES["digit_level"]
        if "squash" in loss
    ]
    wrong = [dataclasses.replace(case, loss=f"{case.loss}.01") for case in cases]
    for case, actual in zip(cases, ours(wrong), strict=True):
        with pytest.raises(AssertionError):
            assert_close(case, actual, theirs(case))


def with_two_digits_exchanged(loss):
    """Token 1 is taken for a 9, and 9 for a 1."""
    values = loss.numbers.values.copy()
    values[[1, 3]] = values[[3, 1]]
    loss.numbers = dataclasses.replace(loss.numbers, values=values)


def of_two_digits_at_most(loss):
    loss.max_number_length = 2


@pytest.mark.parametrize("change", [with_two_digits_exchanged, of_two_digits_at_most])
def test_a_wrong_reading_of_whole_numbers_is_seen(change):
    cases = [Case(loss, weights="ones") for loss in SPAN_LOSSES]
    assert_all_differ(cases, ours(cases, change=change))


@pytest.mark.parametrize(
    "change", [{"label_smoothing": 0.101}, {"ignored": "text"}, {"weights": "mask"}]
)
def test_a_wrong_option_of_the_cross_entropy_is_seen(change):
    case = Case("ce", label_smoothing=0.1)
    (actual,) = ours([dataclasses.replace(case, **change)])
    with pytest.raises(AssertionError):
        assert_close(case, actual, theirs(case))

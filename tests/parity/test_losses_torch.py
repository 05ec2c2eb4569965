"""Values and gradients of the losses against ntloss and torch, over the grid."""

import dataclasses

import chex
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax.losses import number_softmax
from tests.parity.loss_cases import (
    LOSSES,
    TOLERANCE,
    Case,
    cross_entropy_cases,
    number_cases,
    ours,
)

pytest.importorskip("torch")
pytest.importorskip("ntloss")

from tests.parity.torch_losses import theirs

QUICK = [
    Case(loss, reweigh=r, ignore_index=10) for loss in LOSSES for r in (False, True)
]
QUICK += [Case("ce", ignore_index=4, label_smoothing=0.1), Case("ce+was")]
CASES = [*number_cases(), *cross_entropy_cases(), Case("ce+was")]
GRID = [
    pytest.param(case, marks=[] if case in QUICK else pytest.mark.slow, id=str(case))
    for case in CASES
]
HALF_ULP = 2**-8  # of bfloat16, relative


def assert_close(actual, expected, rtol=TOLERANCE):
    chex.assert_trees_all_close(actual, expected, rtol=rtol, atol=TOLERANCE)


@pytest.mark.parametrize("case", GRID)
def test_float32(case):
    batch = case.batch()
    assert_close(ours(case, *batch), theirs(case, *batch))


@pytest.mark.parametrize("loss", [*LOSSES, "ce", "ce+was"])
def test_bfloat16_logits_are_worth_their_float32_copies(loss):
    case = Case(loss, reweigh=loss in LOSSES)
    logits, labels, weights = case.batch()
    half = jnp.asarray(logits).astype(jnp.bfloat16)
    upcast = np.asarray(half.astype(jnp.float32))
    expected = theirs(case, upcast, labels, weights)
    for reduction, (value, gradient) in ours(case, half, labels, weights).items():
        assert value.dtype == jnp.float32 and gradient.dtype == jnp.bfloat16
        assert_close(value, expected[reduction][0])
        rounded = gradient.astype(jnp.float32)
        assert_close(rounded, expected[reduction][1], rtol=HALF_ULP)


def off_by_a_thousandth(vocab):
    """The same vocabulary with one value 0.1% of the range too high."""
    values = vocab.values.copy()
    values[3] += 0.001 * np.ptp(values)
    return dataclasses.replace(vocab, values=values)


@pytest.mark.parametrize("case", QUICK[:-2], ids=str)
def test_a_wrong_value_in_the_vocabulary_is_seen(case):
    batch = case.batch()
    wrong = off_by_a_thousandth(case.vocabulary.numbers)
    actual, expected = ours(case, *batch, vocab=wrong), theirs(case, *batch)
    for reduction in expected:
        with pytest.raises(AssertionError):
            assert_close(actual[reduction], expected[reduction])


@pytest.mark.parametrize("loss", LOSSES)
def test_a_wrong_reweighing_constant_is_seen(loss, monkeypatch):
    monkeypatch.setattr(number_softmax, "ELSEWHERE", 1.0)
    case = Case(loss, reweigh=True)
    batch = case.batch()
    with pytest.raises(AssertionError):
        assert_close(ours(case, *batch), theirs(case, *batch))


def test_a_wrong_huber_delta_is_seen():
    case = Case("huber")
    batch = case.batch()
    assert_close(ours(case, *batch, delta=1.0), theirs(case, *batch))
    with pytest.raises(AssertionError):
        assert_close(ours(case, *batch, delta=1.01), theirs(case, *batch))


@pytest.mark.parametrize("change", ["label_smoothing", "ignore_index"])
def test_a_wrong_option_of_the_cross_entropy_is_seen(change):
    case = Case("ce", label_smoothing=0.1)
    wrong = dataclasses.replace(
        case, **{change: {"label_smoothing": 0.101}.get(change, 4)}
    )
    batch = case.batch()
    with pytest.raises(AssertionError):
        assert_close(ours(wrong, *batch), theirs(case, *batch))

"""The mode of the whole-number loss that follows ntloss, against its golden values."""

import dataclasses
import pathlib

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax import number_level_loss
from ntl_jax.losses import softmax as number_softmax
from tests.losses.number_level_cases import CASES, VOCAB, Case
from tests.parity.loss_cases import TOLERANCE, cotangent

PATH = pathlib.Path(__file__).parents[1] / "golden" / "number_level.npz"


@pytest.fixture(scope="module")
def golden():
    with np.load(PATH) as arrays:
        return dict(arrays)


def like_ntloss(case, **options):
    """(value, gradient) of our loss in the mode that follows ntloss."""
    logits, labels, weights = (
        None if x is None else jnp.asarray(x) for x in case.batch()
    )
    given = dataclasses.asdict(case) | {"weighted": None} | options
    del given["weighted"]

    def loss(z):
        return number_level_loss(
            z, labels, VOCAB, mode="ntloss", weights=weights, **given
        )

    @jax.jit
    def run(z):
        value, pull = jax.vjp(loss, z)
        return value, pull(jnp.asarray(cotangent(value.shape)))[0]

    return run(logits)


def assert_golden(golden, case, actual):
    expected = golden[f"{case}/value"], golden[f"{case}/gradient"]
    for ours, theirs in zip(actual, expected, strict=True):
        chex.assert_trees_all_close(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_ntloss_mode(case, golden):
    assert_golden(golden, case, like_ntloss(case))


@pytest.mark.parametrize(
    ("case", "change"),
    [
        (Case(), {"float_level": True}),
        (Case(float_level=True), {"float_level": False}),
        (Case(), {"reweigh": True}),
        (Case(max_number_length=3), {"max_number_length": 4}),
    ],
    ids=str,
)
def test_a_wrong_option_is_seen(case, change, golden):
    actual = like_ntloss(case, **change)
    for part in range(2):
        with pytest.raises(AssertionError):
            expected = golden[f"{case}/{('value', 'gradient')[part]}"]
            chex.assert_trees_all_close(
                actual[part], expected, rtol=TOLERANCE, atol=TOLERANCE
            )


def test_a_wrong_reweighing_constant_is_seen(golden, monkeypatch):
    monkeypatch.setattr(number_softmax, "REWEIGH_FACTOR", 1.0)
    case = Case(reweigh=True)
    with pytest.raises(AssertionError):
        assert_golden(golden, case, like_ntloss(case))


def test_golden_file_is_what_ntloss_gives(golden):
    pytest.importorskip("ntloss")
    from tests.golden.make_number_level import value_and_gradient

    assert {name.split("/")[0] for name in golden} == {str(case) for case in CASES}
    for case in CASES[::3]:
        assert_golden(golden, case, value_and_gradient(case))

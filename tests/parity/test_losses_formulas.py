"""Every public loss against float64 PyTorch written from its formula."""

from functools import cache

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.losses.public_losses import LOSSES, batch, losses_and_gradients
from tests.parity.loss_cases import HALF_ULP, TOLERANCE

pytest.importorskip("torch")

from tests.parity.torch_formulas import FORMULAS, by_formula

compiled = jax.jit(losses_and_gradients)


@cache
def ours(dtype="float32", warmth=1.0):
    """Our side of all losses, compiled as one program."""
    logits, labels, weights = batch()
    logits = jnp.asarray(logits * np.float32(warmth), dtype)
    return jax.device_get(compiled(logits, labels, weights))


def assert_close(actual, name, logits):
    _, labels, weights = batch()
    exact = by_formula(name, logits, labels, weights)
    rtols = (TOLERANCE, TOLERANCE if actual[1].itemsize > 2 else HALF_ULP)
    for x, y, rtol in zip(actual, exact, rtols, strict=True):
        x, y = x.astype(np.float64), y.astype(np.float64)
        chex.assert_trees_all_close(x, y, rtol=rtol, atol=TOLERANCE)


def test_every_loss_has_a_formula():
    assert FORMULAS.keys() == LOSSES.keys()


@pytest.mark.parametrize("name", LOSSES)
def test_float32(name):
    assert_close(ours()[name], name, batch()[0])


@pytest.mark.parametrize("name", LOSSES)
def test_bfloat16(name):
    half = jnp.asarray(batch()[0], jnp.bfloat16)
    actual = ours("bfloat16")[name]
    assert actual[1].dtype == jnp.bfloat16
    assert_close(actual, name, np.asarray(half.astype(jnp.float32)))


@pytest.mark.parametrize("name", LOSSES)
def test_a_slightly_warmer_softmax_is_seen(name):
    with pytest.raises(AssertionError):
        assert_close(ours(warmth=0.999)[name], name, batch()[0])

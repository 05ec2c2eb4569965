"""Losses of logits that share an offset, and of logits with little mass on numbers.

Compared with float64 PyTorch. The logits lie on a grid that the offsets leave exact, so
that only the losses' own rounding is seen.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax import stats_from_hidden, stats_from_logits
from tests.losses.public_losses import (
    COLUMNS,
    LOSSES,
    VOCAB,
    batch,
    losses_and_gradients,
)

LIMIT = 2e-6  # relative to the largest of a loss's values, or of its gradients
OFFSETS = (0.0, 1e2, 1e3, 1e4)
MASSES = (0.5, 1e-4, 1e-6, 1e-8)  # on numbers, about
compiled = jax.jit(losses_and_gradients)


@cache
def logits_with(mass: float) -> np.ndarray:
    """Logits on a grid of 1/8, number tokens lowered to have about this mass."""
    logits = np.round(8 * batch()[0]) / 8
    if mass < 0.5:
        logits[..., VOCAB.token_ids] += np.round(8 * np.log(mass)) / 8
    return logits.astype(np.float32)


@cache
def ours(offset: float, mass: float):
    _, labels, weights = batch()
    logits = logits_with(mass) + np.float32(offset)
    return jax.device_get(compiled(logits, labels, weights))


def relative_errors(name: str, offset: float, mass: float) -> list[float]:
    pytest.importorskip("torch")
    from tests.parity.torch_formulas import by_formula

    _, labels, weights = batch()
    logits = logits_with(mass).astype(np.float64) + offset
    errors = []
    for got, exact in zip(
        ours(offset, mass)[name], by_formula(name, logits, labels, weights), strict=True
    ):
        errors.append(np.abs(got - exact).max() / np.abs(exact).max())
    return errors


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("name", LOSSES)
def test_an_offset_of_all_logits_costs_no_digits(name, offset):
    value, gradient = relative_errors(name, offset, 0.5)
    assert value < LIMIT and gradient < LIMIT


@pytest.mark.parametrize("mass", MASSES)
@pytest.mark.parametrize("name", [n for n in LOSSES if n != "digit_entropy"])
def test_little_mass_on_numbers_costs_no_digits(name, mass):
    value, gradient = relative_errors(name, 0.0, mass)
    assert value < LIMIT and gradient < LIMIT


@pytest.mark.parametrize("offset", OFFSETS)
def test_a_fused_head_keeps_them_too(offset):
    """With the identity for a kernel, hidden states are logits."""
    labels = jnp.asarray(batch()[1])
    logits = jnp.asarray(logits_with(0.5) + np.float32(offset))
    kernel = jnp.eye(COLUMNS, dtype=jnp.float32)

    def fused(z):
        return stats_from_hidden(z, kernel, labels, VOCAB, tile_tokens=6)

    def dense(z):
        return stats_from_logits(z, labels, VOCAB)

    want, pull = jax.vjp(dense, logits)
    got, pull_fused = jax.vjp(fused, logits)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=LIMIT, atol=LIMIT)
    cotangent = jax.tree.map(
        lambda x: jnp.cos(jnp.arange(1, x.size + 1, dtype=jnp.float32)), want
    )
    cotangent = jax.tree.map(lambda c, x: c.reshape(x.shape), cotangent, want)
    np.testing.assert_allclose(
        pull_fused(cotangent)[0], pull(cotangent)[0], rtol=LIMIT, atol=LIMIT
    )

"""The mean under a softmax, whose gradient is written by hand, against JAX's own."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax import NumberVocab
from ntl_jax.losses.softmax import shift_logits, softmax_mean
from tests.losses.public_losses import LOSSES

LOGITS = jnp.array([[0.3, -1.2, 2.0], [-1e30, 4.0, 3.5], [0.0, 0.0, 0.0], [9, -9, 1]])
X = (jnp.arange(12.0).reshape(4, 3) / 5) ** 2

TEXT = {"<pad>": 0, "=": 1, ".": 2, "-": 3}
DIGITS = NumberVocab.from_mapping(
    TEXT | {str(d): d + 4 for d in range(10)}, vocab_size=14
)


def plain(logits, x=X):
    return jnp.sum(jax.nn.softmax(logits, axis=-1) * x, axis=-1)


def ours(logits, x=X):
    return softmax_mean(shift_logits(logits), x)


def without_gradient(logits, x=X):
    return softmax_mean(jax.lax.stop_gradient(shift_logits(logits)), x)


def assert_alike(mean):
    def squared(mean):
        return lambda logits: jnp.sum(mean(logits) ** 2)

    for take in (
        jax.jit,
        lambda f: jax.grad(squared(f)),
        lambda f: jax.grad(squared(jax.checkpoint(f))),
        lambda f: jax.hessian(squared(f)),
    ):
        chex.assert_trees_all_close(
            take(mean)(LOGITS), take(plain)(LOGITS), rtol=2e-5, atol=4e-6
        )


def test_values_and_both_derivatives_are_those_of_the_plain_form():
    assert_alike(ours)


def test_a_missing_gradient_is_seen():
    with pytest.raises(AssertionError):
        assert_alike(without_gradient)


def test_under_vmap_and_scan():
    def gradient(logits, x):
        return jax.grad(lambda z: ours(z, x))(logits)

    mapped = jax.vmap(gradient)(LOGITS, X)
    scanned = jax.lax.scan(lambda _, a: (None, gradient(*a)), None, (LOGITS, X))[1]
    expected = jax.grad(lambda z: plain(z).sum())(LOGITS)
    chex.assert_trees_all_close(mapped, expected, rtol=2e-5, atol=1e-6)
    chex.assert_trees_all_close(scanned, expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["number_level_loss", "ntil expected"])
def test_a_compiled_hessian_is_the_eager_one(name):
    """XLA makes it wrong here of a gradient that reads the mean of the way forward."""
    logits = np.random.default_rng(0).normal(size=(8, 6, 16)).astype(np.float32)
    labels = jnp.asarray(np.tile([[6, 13, 7, 5, 1, 1]], (8, 1)))

    def total(row):
        others = jnp.asarray(logits).at[1].set(row)
        options = {"weights": None, "ignore_index": -100, "reduction": "sum"}
        return LOSSES[name].call(others, labels, DIGITS, **options)

    hessian = jax.jacrev(jax.grad(total))
    compiled = jax.jit(hessian)(logits[1])
    chex.assert_trees_all_close(compiled, hessian(logits[1]), rtol=1e-5, atol=1e-6)
    swapped = jnp.transpose(compiled, (2, 3, 0, 1))
    chex.assert_trees_all_close(compiled, swapped, rtol=1e-5, atol=1e-6)

"""The mean under a softmax, whose gradient is written by hand, against JAX's own."""

import chex
import jax
import jax.numpy as jnp
import pytest

from ntl_jax.losses.number_softmax import less_the_largest, softmax_mean

LOGITS = jnp.array([[0.3, -1.2, 2.0], [-1e30, 4.0, 3.5], [0.0, 0.0, 0.0], [9, -9, 1]])
X = (jnp.arange(12.0).reshape(4, 3) / 5) ** 2


def plain(logits, x=X):
    return jnp.sum(jax.nn.softmax(logits, axis=-1) * x, axis=-1)


def ours(logits, x=X):
    return softmax_mean(less_the_largest(logits), x)


def without_gradient(logits, x=X):
    return softmax_mean(jax.lax.stop_gradient(less_the_largest(logits)), x)


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

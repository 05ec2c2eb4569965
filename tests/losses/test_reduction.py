"""Sums, counts and means; and the shift of a causal model's labels."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax import (
    cross_entropy,
    ntl_was,
    shift_labels,
    weighted_mean,
    weighted_sum_and_count,
)
from ntl_jax.losses.reduction import reduce_tokens, unstack


def test_sum_count_and_mean():
    value, weight = (
        jnp.array([[1.0, 2.0], [3.0, 4.0]]),
        jnp.array([[1.0, 0.0], [0.5, 2]]),
    )
    term = weighted_sum_and_count(value, weight)
    assert (float(term.sum), float(term.count)) == (10.5, 3.5)
    assert float(term.mean) == float(weighted_mean(value, weight)) == 3.0
    assert float(reduce_tokens(value, weight, "sum")) == 10.5
    assert float(reduce_tokens(value, weight, "mean")) == 3.0
    assert reduce_tokens(value, weight, None).tolist() == [[1.0, 0.0], [1.5, 8.0]]


def test_the_mean_of_nothing_is_zero_with_gradient_zero():
    value = jnp.array([1.0, 2.0])
    for weight in (jnp.zeros(2), jnp.zeros(2) * value):
        mean, gradient = jax.value_and_grad(weighted_mean)(value, weight)
        assert mean == 0 and gradient.tolist() == [0.0, 0.0]
    assert jax.jit(jax.grad(weighted_mean, argnums=1))(
        value, jnp.zeros(2)
    ).tolist() == [
        0.0,
        0.0,
    ]


def test_small_weights_are_not_swallowed():
    assert float(weighted_mean(jnp.array([3.0]), jnp.array([1e-12]))) == pytest.approx(
        3
    )


def test_parts_and_their_gradients_come_in_order():
    x = jnp.arange(6.0).reshape(3, 2)
    chex.assert_trees_all_equal(unstack(x), (x[0], x[1], x[2]))

    def weighed(x, parts):
        return sum((k + 1) * jnp.sum(part**3) for k, part in enumerate(parts(x)))

    for derivative in (jax.grad, jax.hessian):
        ours = derivative(lambda x: weighed(x, unstack))(x)
        chex.assert_trees_all_close(ours, derivative(lambda x: weighed(x, list))(x))


def test_boolean_weights(vocab, batch):
    logits, labels, _ = batch
    keep = jnp.array([[True, False, True, True, False, True]] * 2)
    masked = ntl_was(logits, labels, vocab, weights=keep, reduction="mean")
    floats = keep.astype(jnp.float32)
    expected = ntl_was(logits, labels, vocab, weights=floats, reduction="mean")
    assert float(masked) == float(expected)


@pytest.mark.parametrize("loss", ["ce", "was"])
def test_shifted_labels_equal_slicing(vocab, batch, loss):
    logits, labels, _ = batch

    def mean(z, y):
        if loss == "ce":
            return cross_entropy(z, y, reduction="mean")
        return ntl_was(z, y, vocab, reduction="mean")

    shifted, gradient = jax.value_and_grad(mean)(logits, shift_labels(labels))
    sliced, sliced_gradient = jax.value_and_grad(mean)(logits[:, :-1], labels[:, 1:])
    np.testing.assert_allclose(shifted, sliced, rtol=1e-6)
    chex.assert_trees_all_close(gradient[:, :-1], sliced_gradient, rtol=1e-6, atol=1e-8)
    assert not gradient[:, -1].any()
    unshifted = mean(logits, labels)
    assert abs(float(unshifted) - float(shifted)) > 1e-2


def test_shift_labels_of_any_shape_and_index():
    labels = jnp.arange(24, dtype=jnp.int32).reshape(2, 3, 4)
    shifted = shift_labels(labels, ignore_index=7)
    assert shifted.dtype == jnp.int32
    assert shifted[1, 2].tolist() == [21, 22, 23, 7]
    assert shift_labels(jnp.array([5])).tolist() == [-100]

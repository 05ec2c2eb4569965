"""Gradients of every public loss: those of its value, and 0 where the value is 0."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.test_util import check_grads

import ntl_jax.losses
from tests.losses.public_losses import (
    COLUMNS,
    IGNORED,
    LOSSES,
    PLAIN_FIRST,
    TOKENS,
    VOCAB,
    batch,
)


@pytest.mark.parametrize(
    "name", [case for case in PLAIN_FIRST if not LOSSES[case.values[0]].differs]
)
def test_gradients_in_float64(name, unhooked, monkeypatch):
    # The code as it is, but for what it takes float32 to be.
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        monkeypatch.setattr(jnp, "float32", jnp.float64)
        logits, labels, weights = map(jnp.asarray, batch())

        @jax.jit
        def total(z):
            tokens = LOSSES[name].call(
                z, labels, VOCAB, weights=weights, reduction=None, ignore_index=IGNORED
            )
            assert tokens.dtype == jnp.float64
            return jnp.sum(tokens)

        z = logits.astype(jnp.float64)
        check_grads(total, (z,), order=1, modes=["rev"], atol=1e-7, rtol=1e-7)
        with pytest.raises(AssertionError):  # of a slightly wrong gradient
            check_grads(
                lambda z: total(z + 1e-4 * jax.lax.stop_gradient(z)),
                (z,),
                order=1,
                modes=["rev"],
                atol=1e-7,
                rtol=1e-7,
            )


def test_a_prediction_that_is_right_is_left_alone():
    """Where a penalty has its kink, its gradient is 0."""
    label = jnp.array([TOKENS["4"]])
    half = jnp.array([TOKENS["0"], TOKENS["8"]])  # a 4 on average
    logits = jnp.full((1, COLUMNS), -1e4).at[:, half].set(0.0)
    target = jax.nn.softmax(logits)[:, VOCAB.token_ids]
    number_level_loss = ntl_jax.losses.number_level_loss
    losses = (
        partial(ntl_jax.losses.ntl_was_cdf, target=target),
        ntl_jax.losses.ntl_mae,
        partial(ntl_jax.losses.ntl_huber, delta=0.5),
        number_level_loss,
        partial(number_level_loss, mode="ntloss"),
        partial(number_level_loss, log_space=True),
    )

    @jax.jit
    def values_and_gradients(z):
        return [
            jax.value_and_grad(
                lambda z, loss=loss: loss(z, label, VOCAB, reduction="sum")
            )(z)
            for loss in losses
        ]

    for value, gradient in values_and_gradients(logits):
        assert value == 0 and not gradient.any()

"""Sums over the digits of each number of a row."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32

from ntl_jax.losses.spans import NumberSpans


def span_sum(
    x: Float32[Array, "*B T"], spans: NumberSpans, *, reach: int | None = None
) -> Float32[Array, "*B T"]:
    """The sum of x over each run, at the first digit of the run and 0 elsewhere.

    A masked sum and no scatter: on a GPU it is one kernel, and always adds up in the
    same order.

    Args:
        x: f32[*B, T], read at the digits.
        spans: the runs.
        reach: how many positions of a run count at least, so that a long row need not
            be compared with itself; all where None. x must be 0 further on.

    Returns:
        f32[*B, T].
    """
    width = x.shape[-1]
    block = max(width if reach is None or width <= 2 * reach else reach, 1)
    x = jnp.where(spans.digit, x, 0.0)
    return _span_sum(block, x, spans.start, spans.first, spans.head)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _span_sum(block, x, start, first, head):
    *rows, width = x.shape
    blocks = -(-width // block)
    edge = [(0, 0)] * len(rows) + [(0, blocks * block - width)]
    shape = (*rows, blocks, block)
    x = jnp.pad(x, edge).reshape(shape)  # [*B, N, C]
    own = jnp.pad(start, edge, constant_values=-1).reshape(shape)
    start = own
    if blocks > 1:  # a run may go on in the next block
        x, start = (jnp.concatenate([a, _next_block(a)], axis=-1) for a in (x, own))
    same = own[..., :, None] == start[..., None, :]  # [*B, N, C, C or 2 C]
    sums = jnp.sum(jnp.where(same, x[..., None, :], 0.0), axis=-1)
    sums = sums.reshape(*rows, blocks * block)[..., :width]
    return jnp.where(first, sums, 0.0)


def _span_sum_forward(block, x, start, first, head):
    return _span_sum(block, x, start, first, head), head


def _span_sum_backward(block, head, cotangent):
    # Each digit reads the cotangent of its first digit. The derivative of the masked
    # sum would be a sum over columns instead, thirty times slower on long rows.
    head = jnp.clip(head, 0, cotangent.shape[-1] - 1)
    return jnp.take_along_axis(cotangent, head, axis=-1), None, None, None


_span_sum.defvjp(_span_sum_forward, _span_sum_backward)


def broadcast_first_digit(
    flag: Bool[Array, "*B T"], spans: NumberSpans
) -> Bool[Array, "*B T"]:
    """What the first digit of a run has for a flag, at all digits of the run.

    Args:
        flag: bool[*B, T].
        spans: the runs.

    Returns:
        bool[*B, T], False elsewhere.
    """
    head = jnp.clip(spans.head, 0, flag.shape[-1] - 1)
    return spans.digit & jnp.take_along_axis(flag, head, axis=-1)


def _next_block(x: Array) -> Array:
    """The block after each one, zeros after the last."""
    return jnp.concatenate([x[..., 1:, :], jnp.zeros_like(x[..., :1, :])], axis=-2)

"""Looking along a row: the neighbours of a position, and the nearest of some kind."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int32

# Rows up to this length are compared with themselves whole: one kernel on a GPU, where
# a running maximum takes several.
_AT_ONCE = 512

_FAR = jnp.iinfo(jnp.int32).max // 2  # stands for a position beyond the row

_Pair = tuple[Array, Array]


def row_index(like: Array) -> Int32[Array, "*B T"]:
    """The index of each position along its row."""
    return jax.lax.broadcasted_iota(jnp.int32, like.shape, like.ndim - 1)


def shift(x: Array, steps: int, fill: int | bool = 0) -> Array:
    """x[t - steps] along the row, ``fill`` beyond its ends."""
    width = x.shape[-1]
    if abs(steps) >= width:
        return jnp.full_like(x, fill)
    edge = jnp.full_like(x[..., : abs(steps)], fill)
    if steps > 0:
        return jnp.concatenate([edge, x[..., :-steps]], axis=-1)
    return jnp.concatenate([x[..., -steps:], edge], axis=-1)


def at_or_before(mask: Array, x: Array) -> Array:
    """The x of the nearest masked position at t or before it, -1 where there is none.

    x must not fall along the row, nor be below -1.
    """
    x = jnp.where(mask, x, -1)
    if not 0 < x.shape[-1] <= _AT_ONCE:
        return jax.lax.cummax(x, axis=x.ndim - 1)
    return jnp.max(_seen(x, -1), axis=-1)


def at_or_after(mask: Array, x: Array) -> Array:
    """The x of the nearest masked position at t or after it, a large number for none.

    x must not fall along the row.
    """
    x = jnp.where(mask, x, _FAR)
    if not 0 < x.shape[-1] <= _AT_ONCE:
        return jax.lax.cummin(x, axis=x.ndim - 1, reverse=True)
    return jnp.min(_seen(x, _FAR, after=True), axis=-1)


def nearest_marks(marks: Array) -> tuple[Array, Array]:
    """The nearest mark at t or before it, and the nearest after it.

    Args:
        marks: i32[*B, T], rising along the row and not negative; -1 where there is no
            mark.

    Returns:
        (mark, mark), both i32[*B, T]: -1 for none before, a large number for none
        after.
    """
    after = shift(jnp.where(marks < 0, _FAR, marks), -1, fill=_FAR)
    if not 0 < marks.shape[-1] <= _AT_ONCE:
        axis = marks.ndim - 1
        return (
            jax.lax.cummax(marks, axis=axis),
            jax.lax.cummin(after, axis=axis, reverse=True),
        )
    return _reduce_both(
        (_seen(marks, -1), _seen(after, _FAR, after=True)),
        (-1, _FAR),
        _highest_and_lowest,
    )


def running_count(mask: Array) -> Array:
    """How many positions are masked at t or before it."""
    if not 0 < mask.shape[-1] <= _AT_ONCE:
        return jnp.cumsum(mask, axis=-1, dtype=jnp.int32)
    return jnp.sum(_seen(mask.astype(jnp.int32), 0), axis=-1, dtype=jnp.int32)


def count_since(begins: Array, mask: Array) -> Array:
    """How many positions are masked at t or before it, from the nearest beginning on.

    Args:
        begins: bool[*B, T], True at the first position of the row.
        mask: bool[*B, T].

    Returns:
        i32[*B, T].
    """
    if not 0 < mask.shape[-1] <= _AT_ONCE:
        count = running_count(mask)
        return count - at_or_before(begins, count - mask.astype(jnp.int32))
    count, begin = _reduce_both(
        (
            _seen(mask.astype(jnp.int32), 0),
            _seen(jnp.where(begins, row_index(mask), 0), 0),
        ),
        (0, 0),
        _sum_and_highest,
    )
    before = count - mask.astype(jnp.int32)
    return count - jnp.take_along_axis(before, begin, axis=-1, mode="clip")


def _reduce_both(
    operands: tuple[Array, Array], initial: tuple[int, int], combine: Callable
) -> tuple[Array, Array]:
    """Two reductions along the last axis in one, which on a GPU is a kernel.

    ``combine`` must be one function for good: outside of ``jit`` JAX compiles each new
    one, and keeps what it compiled.
    """
    start = tuple(jnp.int32(value) for value in initial)
    return jax.lax.reduce(operands, start, combine, (operands[0].ndim - 1,))


def _highest_and_lowest(a: _Pair, b: _Pair) -> _Pair:
    return jnp.maximum(a[0], b[0]), jnp.minimum(a[1], b[1])


def _sum_and_highest(a: _Pair, b: _Pair) -> _Pair:
    return a[0] + b[0], jnp.maximum(a[1], b[1])


def _seen(x: Array, fill: int, *, after: bool = False) -> Array:
    """What each position sees of its row up to itself, or from itself on [*B, T, T]."""
    t = jnp.arange(x.shape[-1], dtype=jnp.int32)
    seen = (t[None] >= t[:, None]) if after else (t[None] <= t[:, None])
    return jnp.where(
        jnp.broadcast_to(seen, (*x.shape, x.shape[-1])), x[..., None, :], fill
    )

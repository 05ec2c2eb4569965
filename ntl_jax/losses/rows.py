"""Looking along a row: the neighbours of a position, and the nearest of some kind."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int32

# Rows up to this length are compared with themselves whole: one kernel on a GPU, where
# a running maximum takes several.
_AT_ONCE = 512


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
    far = jnp.iinfo(jnp.int32).max // 2
    x = jnp.where(mask, x, far)
    if not 0 < x.shape[-1] <= _AT_ONCE:
        return jax.lax.cummin(x, axis=x.ndim - 1, reverse=True)
    return jnp.min(_seen(x, far, after=True), axis=-1)


def running_count(mask: Array) -> Array:
    """How many positions are masked at t or before it."""
    if not 0 < mask.shape[-1] <= _AT_ONCE:
        return jnp.cumsum(mask, axis=-1, dtype=jnp.int32)
    return jnp.sum(_seen(mask.astype(jnp.int32), 0), axis=-1, dtype=jnp.int32)


def _seen(x: Array, fill: int, *, after: bool = False) -> Array:
    """What each position sees of its row up to itself, or from itself on [*B, T, T]."""
    t = jnp.arange(x.shape[-1], dtype=jnp.int32)
    seen = (t[None] >= t[:, None]) if after else (t[None] <= t[:, None])
    return jnp.where(
        jnp.broadcast_to(seen, (*x.shape, x.shape[-1])), x[..., None, :], fill
    )

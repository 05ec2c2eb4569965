"""Looking along a row: the neighbours of a position, and the nearest of some kind."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int32


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

    x must not fall along the row.
    """
    return jax.lax.cummax(jnp.where(mask, x, -1), axis=x.ndim - 1)


def at_or_after(mask: Array, x: Array) -> Array:
    """The x of the nearest masked position at t or after it, a large number for none.

    x must not fall along the row.
    """
    far = jnp.iinfo(jnp.int32).max // 2
    return jax.lax.cummin(jnp.where(mask, x, far), axis=x.ndim - 1, reverse=True)


def nearest(
    before: tuple[tuple[Array, Array], ...], after: tuple[tuple[Array, Array], ...]
) -> tuple[list[Array], list[Array]]:
    """`at_or_before` of some (mask, x), and `at_or_after` of others, in one go.

    One running maximum over all of them: on a GPU each would take kernels of its own.
    """
    far = jnp.iinfo(jnp.int32).max // 2
    forward = [jnp.where(mask, x, -1) for mask, x in before]
    backward = [jnp.flip(jnp.where(mask, -x, -far), -1) for mask, x in after]
    both = jnp.stack(forward + backward)
    both = jax.lax.cummax(both, axis=both.ndim - 1)
    last = [-jnp.flip(x, -1) for x in both[len(forward) :]]
    return list(both[: len(forward)]), last

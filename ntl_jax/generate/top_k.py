"""The k largest of many columns, by way of the blocks that they are in."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from ntl_jax.sharding.constrain import column_parts, constrain
from ntl_jax.sharding.spmd import row_by_row

_BLOCK = 64  # columns
_WIDE = 4096  # columns from which blocks are worth it


def top_k(
    x: Float[Array, "*B V"], k: int
) -> tuple[Float[Array, "*B k"], Int32[Array, "*B k"]]:
    """`jax.lax.top_k`, ties included, for small k and large V.

    The k largest are in the k blocks with the largest maxima: each block ahead of
    theirs holds something that is ahead of them. So one pass finds the blocks, and what
    is sorted is small. On a mesh each device searches its own rows and columns, and
    sends k candidates per row.

    Args:
        x: no NaN.
        k: how many.

    Returns:
        (values, their columns), the largest first, of equals the first.

    >>> values, columns = top_k(jnp.array([1.0, 3.0, 2.0, 3.0]), 2)
    >>> columns.tolist()
    [1, 3]
    """
    parts = column_parts(x)
    if parts == 1 or x.shape[-1] < parts * k:
        return row_by_row(partial(_local_top_k, k=k), x)
    cut = x.reshape(*x.shape[:-1], parts, -1)  # [*B, P, V / P]
    best, places = row_by_row(partial(_local_top_k, k=k), cut, parts=-2)
    first = cut.shape[-1] * jnp.arange(parts, dtype=jnp.int32)
    places = places + jnp.broadcast_to(first[:, None], places.shape)  # [*B, P, k]
    best, places = (
        constrain(y.reshape(*x.shape[:-1], -1), "batch") for y in (best, places)
    )
    best, which = row_by_row(partial(_local_top_k, k=k), best)
    return best, jnp.take_along_axis(places, which, axis=-1)


def _local_top_k(x, k: int):
    columns = x.shape[-1]
    if columns < max(_WIDE, 2 * k * _BLOCK):
        return jax.lax.top_k(x, k)
    widths = [(0, 0)] * (x.ndim - 1) + [(0, -columns % _BLOCK)]
    x = jnp.pad(x, widths, constant_values=-jnp.inf)
    blocks = x.reshape(*x.shape[:-1], -1, _BLOCK)  # [*B, N, C]
    _, which = jax.lax.top_k(jnp.max(blocks, axis=-1), k)
    which = jnp.sort(which, axis=-1)  # so that the first of equals stays the first
    held = jnp.take_along_axis(blocks, which[..., None], axis=-2)  # [*B, k, C]
    values, places = jax.lax.top_k(held.reshape(*which.shape[:-1], -1), k)
    block = jnp.take_along_axis(which, places // _BLOCK, axis=-1)
    return values, block * _BLOCK + places % _BLOCK

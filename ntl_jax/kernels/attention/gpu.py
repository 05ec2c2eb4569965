"""Attention as Pallas kernels for NVIDIA GPUs, tile by tile of queries and keys.

No [B, N, T, S] array is written: the forward pass keeps a logarithm of a sum for every
query, from which the backward pass recomputes the probabilities of each tile.
Sources: Dao et al. 2022 and 2023 (FlashAttention, FlashAttention-2); the layout is that
of the Triton tutorial on fused attention, with dropout and the gradient of a bias.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Float, Float32

from ntl_jax.kernels.attention.reference import MASKED
from ntl_jax.kernels.attention.tiles import (
    Operands,
    Options,
    Place,
    Span,
    Tile,
    at_queries_of,
    dot,
    dropped,
    group_of,
    kept_of,
    rows_of,
    scores_of,
    slopes_of,
    store,
)

_NOTHING = MASKED / 2  # a query whose largest score is below sees nothing
_SMALLEST_TILE = 16  # of the matrix units
_ENOUGH = 512  # programs, to keep every core of a GPU busy
_PLACES = 2**31  # of a mask, as many as 32 bits with a sign can count


def forward(
    x: Operands, options: Options
) -> tuple[Float[Array, "B T N H"], Float32[Array, "B N T"]]:
    """Attention, and for every query the log2 of the sum of 2**score.

    The second is 1e30 for a query that sees nothing: the backward pass then finds
    probabilities of 0.
    """
    x, (batch, length, heads, _) = _addressable(x), x.q.shape
    tile = _fitted(options.tiles.forward, x)
    return _call(
        partial(_forward_kernel, options=options, tile=tile),
        (pl.cdiv(length, tile.queries), heads, batch),
        [_like(x.q, x.q.shape, x.q.dtype), _like(x.q, (batch, heads, length))],
        tile,
        options,
        "ntl_attention",
        products=2,
    )(x)


def backward(
    x: Operands,
    cotangent: Float[Array, "B T N H"],
    log_sums: Float32[Array, "B N T"],
    means: Float32[Array, "B N T"],
    options: Options,
) -> tuple[Array, ...]:
    """Gradients of q, k, v, and of the bias where there is one.

    Args:
        x: as of the forward pass.
        cotangent: the derivative of the loss in the output.
        log_sums: the forward pass's second result.
        means: of every query, sum_h output * cotangent.
        options: as of the forward pass.
    """
    (batch, length, heads, _), (_, sources, groups, _) = x.q.shape, x.k.shape
    x = _addressable(x)
    given = (x, cotangent, log_sums, means)
    tile = _fitted(options.tiles.queries, x)
    dq = _call(
        partial(_queries_kernel, options=options, tile=tile),
        (pl.cdiv(length, tile.queries), heads, batch),
        _like(x.q, x.q.shape, x.q.dtype),
        tile,
        options,
        "ntl_attention_dq",
        products=3,
    )(*given)
    tile = _fitted(options.tiles.keys, x)
    dk, dv = _call(
        partial(_keys_kernel, options=options, tile=tile),
        (pl.cdiv(sources, tile.keys), groups, batch),
        [_like(x.q, part.shape, part.dtype) for part in (x.k, x.v)],
        tile,
        options,
        "ntl_attention_dkv",
        products=4,
    )(*given)
    if x.bias is None:
        return dq, dk, dv
    tile = _fitted(options.tiles.bias, x)
    tiles = pl.cdiv(length, tile.queries), pl.cdiv(sources, tile.keys)
    shared = x.bias.shape[0]
    parts = _parts(batch // shared, math.prod(tiles) * heads * shared)
    dbias = _call(
        partial(
            _bias_kernel, options=options, tile=tile, per_row=tiles[1], parts=parts
        ),
        (math.prod(tiles), heads, shared * parts),
        _like(x.q, (shared * parts, *x.bias.shape[1:])),
        tile,
        options,
        "ntl_attention_dbias",
        products=2,
    )(*given)
    return dq, dk, dv, dbias.reshape(shared, parts, *x.bias.shape[1:]).sum(1)


def _parts(rows: int, programs: int) -> int:
    """Into how many parts to cut a sum over rows, for enough programs.

    Equal parts where that takes less than twice as many, else the last is smaller.
    """
    parts = min(rows, pl.cdiv(_ENOUGH, programs))
    equal = (n for n in range(parts, 2 * parts) if rows % n == 0)
    return next(equal, pl.cdiv(rows, pl.cdiv(rows, parts)))


def _addressable(x: Operands) -> Operands:
    """The operands, a mask of more places than that in two bytes each.

    Pallas counts places in 64 bits only in arrays of more than 2**32 bytes.
    """
    if x.mask is None or x.mask.size <= _PLACES:
        return x
    return x._replace(mask=x.mask.astype(jnp.int16))


def _forward_kernel(x: Operands, out_ref, log_sum_ref, *, options, tile):
    """One tile of queries: a running maximum, and sums that follow it."""
    row, head = pl.program_id(2), pl.program_id(1)
    queries = _queries(x, pl.program_id(0), tile)
    q, group = rows_of(x.q, row, queries, head), group_of(x, head)

    def add(j, carry):
        mixed, top, total = carry
        place = Place(row, head, queries, _keys(x, j, tile))
        scores = scores_of(x, q, rows_of(x.k, row, place.keys, group), place, options)
        higher = jnp.maximum(top, jnp.max(scores, axis=1))
        p = jnp.exp2(scores - higher[:, None])
        shrink = jnp.exp2(top - higher)
        total = total * shrink + jnp.sum(p, axis=1)
        p = dropped(p, kept_of(x, place, options), options)
        v = rows_of(x.v, row, place.keys, group)
        mixed = mixed * shrink[:, None] + dot(p.astype(v.dtype), v, 1, 0)
        return mixed, higher, total

    start = (
        jnp.zeros((tile.queries, q.shape[1]), jnp.float32),
        jnp.full((tile.queries,), -jnp.inf, jnp.float32),
        jnp.zeros((tile.queries,), jnp.float32),
    )
    visible, count = _visible_tiles(x, queries, tile, options)
    sums = jax.lax.fori_loop(0, visible, add, start)
    if options.causal and x.mask is not None:
        # A query that sees nothing takes the mean of all values, the later ones too.
        top, inside = sums[1], queries.inside
        top = top if inside is None else jnp.where(inside, top, 0.0)
        rest = jnp.where(jnp.min(top) < _NOTHING, count, visible)
        sums = jax.lax.fori_loop(visible, rest, add, sums)
    mixed, top, total = sums
    log_sum = jnp.where(top < _NOTHING, -MASKED, top + jnp.log2(total))
    out = mixed / total[:, None]
    store(out_ref.at[row, queries.slice, head, :], out, queries.inside)
    store(log_sum_ref.at[row, head, queries.slice], log_sum, queries.inside)


def _queries_kernel(x: Operands, *refs, options, tile):
    """dq of one tile of queries: a sum over keys."""
    *given, dq_ref = refs
    row, head = pl.program_id(2), pl.program_id(1)
    queries, group = _queries(x, pl.program_id(0), tile), group_of(x, head)
    at_queries = at_queries_of(x, given, Place(row, head, queries, _keys(x, 0, tile)))

    def add(j, dq):
        place = Place(row, head, queries, _keys(x, j, tile))
        k, v = (rows_of(ref, row, place.keys, group) for ref in (x.k, x.v))
        _, slopes = slopes_of(x, at_queries, k, v, place, options)
        return dq + dot(slopes.astype(k.dtype), k, 1, 0)

    visible, _ = _visible_tiles(x, queries, tile, options)
    start = jnp.zeros((tile.queries, x.q.shape[3]), jnp.float32)
    dq = jax.lax.fori_loop(0, visible, add, start) * options.scale
    store(dq_ref.at[row, queries.slice, head, :], dq, queries.inside)


def _keys_kernel(x: Operands, *refs, options, tile):
    """dk and dv of one tile of keys: a sum over queries, and over the group's heads."""
    *given, dk_ref, dv_ref = refs
    row, group = pl.program_id(2), pl.program_id(1)
    keys = _keys(x, pl.program_id(0), tile)
    k, v = (rows_of(ref, row, keys, group) for ref in (x.k, x.v))
    members = x.q.shape[2] // x.k.shape[2]
    # Earlier queries see none of these keys.
    first = jax.lax.div(keys.start, tile.queries) if options.causal else 0
    count = pl.cdiv(x.q.shape[1], tile.queries) - first

    def add(step, carry):
        dk, dv = carry
        head, i = group, step
        if members > 1:
            head = group * members + jax.lax.div(step, count)
            i = jax.lax.rem(step, count)
        place = Place(row, head, _queries(x, first + i, tile), keys)
        at_queries = at_queries_of(x, given, place)
        p, slopes = slopes_of(x, at_queries, k, v, place, options)
        dv = dv + dot(p.astype(v.dtype), at_queries.cotangent, 0, 0)
        dk = dk + dot(slopes.astype(k.dtype), at_queries.q, 0, 0)
        return dk, dv

    zeros = jnp.zeros((tile.keys, x.k.shape[3]), jnp.float32)
    dk, dv = jax.lax.fori_loop(0, count * members, add, (zeros, zeros))
    store(dk_ref.at[row, keys.slice, group, :], dk * options.scale, keys.inside)
    store(dv_ref.at[row, keys.slice, group, :], dv, keys.inside)


def _bias_kernel(x: Operands, *refs, options, tile, per_row: int, parts: int):
    """dbias of one tile of queries and keys: a sum over rows that share the bias.

    A part of them for each one of the result.
    """
    *given, dbias_ref = refs
    part, head = pl.program_id(2), pl.program_id(1)
    queries = _queries(x, jax.lax.div(pl.program_id(0), per_row), tile)
    keys = _keys(x, jax.lax.rem(pl.program_id(0), per_row), tile)
    group, sharing = group_of(x, head), x.q.shape[0] * parts // dbias_ref.shape[0]
    rows = pl.cdiv(sharing, parts)
    begin = jax.lax.rem(part, parts) * rows
    first = jax.lax.div(part, parts) * sharing + begin

    def add(member, dbias):
        place = Place(first + member, head, queries, keys)
        k, v = (rows_of(ref, place.row, keys, group) for ref in (x.k, x.v))
        at_queries = at_queries_of(x, given, place)
        return dbias + slopes_of(x, at_queries, k, v, place, options)[1]

    count = rows if sharing % rows == 0 else jnp.minimum(rows, sharing - begin)
    if options.causal:  # nothing to add where all keys come later
        count = count * (keys.start < queries.start + queries.size).astype(jnp.int32)
    zeros = jnp.zeros((tile.queries, tile.keys), jnp.float32)
    dbias = jax.lax.fori_loop(0, count, add, zeros)
    place = Place(part, head, queries, keys)
    store(dbias_ref.at[part, head, *place.slices], dbias, place.inside)


def _queries(x: Operands, i, tile: Tile) -> Span:
    return Span(i * tile.queries, tile.queries, x.q.shape[1])


def _keys(x: Operands, j, tile: Tile) -> Span:
    return Span(j * tile.keys, tile.keys, x.k.shape[1])


def _visible_tiles(x: Operands, queries: Span, tile: Tile, options: Options):
    """How many tiles of keys hold one that the last of the queries sees, and of all."""
    count = pl.cdiv(x.k.shape[1], tile.keys)
    if not options.causal:
        return count, count
    end = queries.start + queries.size
    return jnp.minimum(jax.lax.div(end + (tile.keys - 1), tile.keys), count), count


def _fitted(tile: Tile, x: Operands) -> Tile:
    """The tile, no larger than what there is."""
    queries, keys = (
        min(size, max(_SMALLEST_TILE, pl.next_power_of_2(length)))
        for size, length in ((tile.queries, x.q.shape[1]), (tile.keys, x.k.shape[1]))
    )
    return tile._replace(queries=queries, keys=keys)


def _call(
    kernel, grid, out_shape, tile: Tile, options: Options, name: str, *, products: int
):
    """A kernel that makes so many products of a query tile and a key tile."""

    def call(x: Operands, *given):
        return pl.pallas_call(
            kernel,
            grid=grid,
            out_shape=out_shape,
            compiler_params=plgpu.CompilerParams(
                num_warps=tile.warps, num_stages=tile.stages
            ),
            cost_estimate=_cost(x, out_shape, options, products),
            interpret=options.interpret,
            name=name,
        )(x, *given)

    return call


def _cost(x: Operands, out_shape, options: Options, products: int) -> pl.CostEstimate:
    """Of a kernel: each operand and result moved once, half the scores if causal."""
    batch, length, heads, width = x.q.shape
    scores = batch * heads * length * x.k.shape[1] // (2 if options.causal else 1)
    arrays = jax.tree.leaves((x, out_shape))
    return pl.CostEstimate(
        flops=2 * products * width * scores,
        transcendentals=scores,
        bytes_accessed=sum(math.prod(a.shape) * a.dtype.itemsize for a in arrays),
    )


def _like(x: Array, shape: tuple[int, ...], dtype=jnp.float32):
    """An output that varies over the mesh axes of ``shard_map`` that `x` does."""
    varying = jax.typeof(x).manual_axis_type
    return jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=varying)

"""A decoding step's attention as Pallas kernels for NVIDIA GPUs, W beams per row.

One program per row and head reads the keys in place for the queries of all its beams.
Slots that are not filled yet are not read, new keys and values are written by the same
program, and scores are never written.
Source: Dao et al. 2022 (FlashAttention), the forward pass alone.
"""

import math
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_batching import sequential_vmap
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Bool, Float, Float32, Int, Int8, Int32

from ntl_jax.kernels.attention.reference import MASKED
from ntl_jax.kernels.attention.tiles import Span, Tile, dot, load, store
from ntl_jax.sharding.spmd import shardable

_LOG2_E = math.log2(math.e)
_BEAMS = 16  # of one program: the fewest that the matrix units take


class _Own(NamedTuple):
    """What a step adds to its cache, and how it sees what was there before.

    Attributes:
        position: of the new tokens; so many times W slots are filled.
        bias: added to the scores.
        mask: not zero where a beam sees a slot; its own new one it always sees.
    """

    position: Int32[Array, "1"]
    bias: Float32[Array, "N S"]
    mask: Int8[Array, "B W S"]


class _Operands(NamedTuple):
    """What a kernel reads, over a cache (`own`), or over a source (`mask`, if any).

    Attributes:
        new: the queries, C = 1; over a cache, C = 3, the new keys and values too.
        keys: heads before positions.
        values: as the keys.
    """

    new: Float[Array, "B W C N H"]
    keys: Float[Array, "B N S H"]
    values: Float[Array, "B N S H"]
    own: _Own | None = None
    mask: Int8[Array, "B S"] | None = None


class _Options(NamedTuple):
    """What a kernel is compiled for."""

    tile: Tile
    interpret: bool


def attend_to_source(
    q: Float[Array, "B W N H"],
    keys: Float[Array, "B N S H"],
    values: Float[Array, "B N S H"],
    *,
    seen: Bool[Array, "B 1 1 S"] | None = None,
    keys_a_tile: int | None = None,
    interpret: bool = False,
) -> Float[Array, "B W N H"]:
    """softmax(q kᵀ) v of W queries per row, the softmax in float32.

    Args:
        q: queries, float32 or bfloat16; H is 16, 32, 64 or 128.
        keys: heads before positions.
        values: as the keys.
        seen: where a row's queries see a key; None: everywhere. Of a row that sees
            nothing comes the mean of all values.
        keys_a_tile: how many keys are read at a time, a power of two from 16.
        interpret: run the kernel by Pallas' interpreter, on any device and slowly.

    Returns:
        [B, W, N, H] in the queries' dtype.
    """
    mask = None if seen is None else seen[:, 0, 0].astype(jnp.int8)
    x = _Operands(q[:, :, None], keys, values, mask=mask)
    return _run(x, _options(q, keys_a_tile, interpret))[0]


def attend_to_cache(
    new: Float[Array, "B W 3 N H"],
    keys: Float[Array, "B N TW H"],
    values: Float[Array, "B N TW H"],
    *,
    position: Int[Array, ""],
    bias: Float32[Array, "1 N 1 TW"],
    seen: Bool[Array, "B 1 W TW"],
    keys_a_tile: int | None = None,
    interpret: bool = False,
) -> tuple[Float[Array, "B W N H"], ...]:
    """softmax(q kᵀ + bias) v of W beams' new tokens over themselves and a cache.

    Args:
        new: the new tokens' queries, keys and values, dtype and H as of
            `attend_to_source`.
        keys: slots of W beams at each of T positions, filled before `position`.
        values: as the keys.
        position: of the new tokens.
        bias: added to the scores, the same for all rows and queries.
        seen: where a beam sees an earlier slot.
        keys_a_tile: as of `attend_to_source`.
        interpret: as of `attend_to_source`.

    Returns:
        [B, W, N, H] in the queries' dtype; the keys and the values with the new tokens'
        at `position`, written in place.
    """
    own = _Own(
        jnp.reshape(position, 1).astype(jnp.int32),
        bias[0, :, 0],
        seen[:, 0].astype(jnp.int8),
    )
    x = _Operands(new, keys, values, own)
    return _run(x, _options(new, keys_a_tile, interpret))


def _options(new, keys_a_tile: int | None, interpret: bool) -> _Options:
    if keys_a_tile is None:
        keys_a_tile = 64 if new.shape[-1] * new.dtype.itemsize <= 256 else 32
    return _Options(Tile(_BEAMS, keys_a_tile), interpret)


def _run(x: _Operands, options: _Options) -> tuple[Array, ...]:
    leaves, tree = jax.tree.flatten(x)
    return _program(tree, options)(*leaves)


def _attend(x: _Operands, options: _Options) -> tuple[Array, ...]:
    batch, beams, _, heads, width = x.new.shape
    tile, scores = options.tile, batch * beams * heads * x.keys.shape[2]
    varying = jax.typeof(x.new).manual_axis_type
    like = partial(jax.ShapeDtypeStruct, dtype=x.new.dtype, manual_axis_type=varying)
    mixed, cache = like((batch, beams, heads, width)), like(x.keys.shape)
    return pl.pallas_call(
        partial(_kernel, tile=tile),
        grid=(pl.cdiv(beams, tile.queries), heads, batch),
        out_shape=(mixed, cache, cache) if x.own else (mixed,),
        input_output_aliases={1: 1, 2: 2} if x.own else {},
        compiler_params=plgpu.CompilerParams(
            num_warps=tile.warps, num_stages=tile.stages
        ),
        cost_estimate=pl.CostEstimate(
            flops=4 * width * scores,
            transcendentals=scores,
            bytes_accessed=x.keys.dtype.itemsize * (x.keys.size + x.values.size),
        ),
        interpret=options.interpret,
        name="ntl_attention_to_cache" if x.own else "ntl_attention_to_source",
    )(x)


def _kernel(x: _Operands, out_ref, *cache_refs, tile: Tile):
    """Queries of a row and head: a running maximum, and sums that follow it."""
    head, row = pl.program_id(1), pl.program_id(2)
    queries = Span(pl.program_id(0) * tile.queries, tile.queries, x.new.shape[1])
    q = _part(x, 0, row, head, queries)
    filled = x.keys.shape[2]
    start = (
        jnp.zeros(q.shape, jnp.float32),
        jnp.full(tile.queries, -jnp.inf, jnp.float32),
        jnp.zeros(tile.queries, jnp.float32),
    )
    if x.own is not None:
        filled = x.own.position[0] * queries.length
        start = _write(x, x.own, cache_refs, row, head, queries, filled)

    def add(j, carry):
        mixed, top, total = carry
        places = j * tile.keys + jnp.arange(tile.keys, dtype=jnp.int32)
        inside = places < filled
        slices = row, head, pl.ds(j * tile.keys, tile.keys), slice(None)
        k = load(x.keys.at[slices], inside[:, None])
        scores = _scores(x, dot(q, k, 1, 1), slices, queries, inside)
        higher = jnp.maximum(top, jnp.max(scores, axis=1))
        p = jnp.exp2(scores - higher[:, None])
        shrink = jnp.exp2(top - higher)
        total = total * shrink + jnp.sum(p, axis=1)
        v = load(x.values.at[slices], inside[:, None])
        mixed = mixed * shrink[:, None] + dot(p.astype(v.dtype), v, 1, 0)
        return mixed, higher, total

    count = jax.lax.div(filled + (tile.keys - 1), tile.keys)
    mixed, _, total = jax.lax.fori_loop(0, count, add, start)
    out = mixed / total[:, None]
    store(out_ref.at[row, queries.slice, head, :], out, queries.inside)


def _part(x: _Operands, c: int, row, head, queries: Span) -> Float[Array, "Q H"]:
    """The queries, the new keys or the new values of a row and head."""
    ref = x.new.at[row, queries.slice, pl.ds(c, 1), head, :]
    inside = queries.inside
    part = load(ref, None if inside is None else inside[:, None, None])
    return part.reshape(queries.size, -1)


def _write(x: _Operands, own: _Own, cache_refs, row, head, queries: Span, filled):
    """Writes the new tokens, and gives the sums over what each sees of them: itself."""
    q, k, v = (_part(x, c, row, head, queries) for c in range(3))
    slots = pl.ds(filled + queries.start, queries.size)
    for ref, new in zip(cache_refs, (k, v), strict=True):
        store(ref.at[row, head, slots, :], new, queries.inside)
    q, k, v = (y.astype(jnp.float32) for y in (q, k, v))
    bias = load(own.bias.at[head, slots], queries.inside)
    scores = (jnp.sum(q * k, axis=1) + bias) * _LOG2_E
    return v, scores, jnp.ones_like(scores)


def _scores(x: _Operands, products, slices, queries: Span, inside):
    """Scores [Q, K] as powers of 2; -1e30 where hidden, -inf where no key is."""
    row, head, keys, _ = slices
    scores = products * _LOG2_E
    seen = None
    if x.own is not None:
        bias = load(x.own.bias.at[head, keys], inside)
        scores = scores + bias[None, :] * _LOG2_E
        there = inside[None, :]
        if queries.inside is not None:
            there = queries.inside[:, None] & there
        seen = load(x.own.mask.at[row, queries.slice, keys], there)
    elif x.mask is not None:
        seen = load(x.mask.at[row, keys], inside)[None, :]
    if seen is not None:
        scores = jnp.where(seen != 0, scores, MASKED)
    return jnp.where(inside[None, :], scores, -jnp.inf)


@lru_cache(maxsize=256)
def _program(tree: Any, options: _Options):
    """`_attend` of flat operands, sharded by batch and heads."""

    def run(_, *leaves):
        return _attend(jax.tree.unflatten(tree, leaves), options)

    def rule(*leaves) -> str:
        x = jax.tree.unflatten(tree, leaves)
        keys, mixed = ["b n s h"] * 2, "b w n h"
        if x.own is None:
            mask = [] if x.mask is None else ["b s"]
            return f"{', '.join(['b w c n h', *keys, *mask])} -> {mixed}"
        operands = ["b w c n h", *keys, "e", "n s", "b w s"]
        return f"{', '.join(operands)} -> {', '.join([mixed, *keys])}"

    return shardable(
        run, rule, batch="b", tensor="n", partly=True, vmap=sequential_vmap
    )

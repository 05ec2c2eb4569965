"""Attention of a step's few queries over a cache, as a Pallas kernel for NVIDIA GPUs.

One program a row and head: the queries of all beams meet the keys where these lie, and
keys that no beam can see yet are not read. No scores are written.
Source: Dao et al. 2022 (FlashAttention), the forward pass alone.
"""

import math
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_batching import sequential_vmap
from jax.experimental import pallas as pl
from jax.experimental.custom_partitioning import custom_partitioning
from jax.experimental.pallas import triton as plgpu
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Float32, Int, Int8, Int32

from ntl_jax.models.flash_tiles import (
    Place,
    Span,
    Tile,
    dot,
    load,
    rows_of,
    store,
)
from ntl_jax.models.relative_bias import MASKED

_LOG2_E = math.log2(math.e)
_SMALLEST_TILE = 16  # of the matrix units


class _Operands(NamedTuple):
    """What the kernel reads; the mask without W where a row's queries are alike."""

    q: Float[Array, "B W N H"]
    keys: Float[Array, "B N S H"]
    values: Float[Array, "B N S H"]
    end: Int32[Array, "1"]
    bias: Float32[Array, "N S"] | None
    mask: Int8[Array, "B W S"] | Int8[Array, "B S"] | None


class _Options(NamedTuple):
    """What the kernel is compiled for."""

    tile: Tile
    interpret: bool


def attend_to_cache(
    q: Float[Array, "B W N H"],
    keys: Float[Array, "B N S H"],
    values: Float[Array, "B N S H"],
    *,
    bias: Float32[Array, "1 N 1 S"] | None = None,
    seen: Bool[Array, "B 1 #W S"] | None = None,
    end: Int[Array, ""] | None = None,
    keys_a_tile: int | None = None,
    interpret: bool = False,
) -> Float[Array, "B W N H"]:
    """softmax(q kᵀ + bias) v of W queries a row, the softmax in float32.

    Args:
        q: queries, float32 or bfloat16; H is 16, 32, 64 or 128.
        keys: heads before positions.
        values: as the keys.
        bias: added to the scores, alike for all rows and queries.
        seen: where a query sees a key; None: everywhere. A query that sees nothing
            gets the mean of all values.
        end: from which key on no query sees any; these are not read. None: S.
        keys_a_tile: how many keys are read at a time, a power of two from 16.
        interpret: run the kernel by Pallas' interpreter, on any device and slowly.

    Returns:
        [B, W, N, H] in the queries' dtype.
    """
    sources = keys.shape[2]
    if keys_a_tile is None:
        keys_a_tile = 64 if q.shape[3] * q.dtype.itemsize <= 256 else 32
    queries = max(_SMALLEST_TILE, pl.next_power_of_2(q.shape[1]))
    options = _Options(Tile(queries, keys_a_tile), interpret)
    x = _Operands(
        q,
        keys,
        values,
        jnp.full(1, sources if end is None else end, jnp.int32),
        None if bias is None else bias[0, :, 0],
        None if seen is None else _compact(seen),
    )
    if jax.sharding.get_abstract_mesh().are_all_axes_manual:
        return _attend(x, options)  # to what lies on a device
    leaves, tree = jax.tree.flatten(x)
    return _program(tree, tuple(y.ndim for y in leaves), options)(*leaves)


def _compact(seen):
    mask = seen[:, 0, 0] if seen.shape[2] == 1 else seen[:, 0]
    return mask.astype(jnp.int8)


def _attend(x: _Operands, options: _Options) -> Float[Array, "B W N H"]:
    batch, _, heads, width = x.q.shape
    tile, scores = options.tile, x.q.size // width * x.keys.shape[2]
    arrays = (x.q, x.q, x.keys, x.values)
    return pl.pallas_call(
        partial(_kernel, tile=tile),
        grid=(heads, batch),
        out_shape=jax.ShapeDtypeStruct(
            x.q.shape, x.q.dtype, manual_axis_type=jax.typeof(x.q).manual_axis_type
        ),
        compiler_params=plgpu.CompilerParams(
            num_warps=tile.warps, num_stages=tile.stages
        ),
        cost_estimate=pl.CostEstimate(
            flops=4 * width * scores,
            transcendentals=scores,
            bytes_accessed=sum(y.size * y.dtype.itemsize for y in arrays),
        ),
        interpret=options.interpret,
        name="ntl_attention_to_cache",
    )(x)


def _kernel(x: _Operands, out_ref, *, tile: Tile):
    """All queries of a row and head: a running maximum, and sums that follow it."""
    head, row = pl.program_id(0), pl.program_id(1)
    queries = Span(0, tile.queries, x.q.shape[1])
    q = rows_of(x.q, row, queries, head)

    def add(j, carry):
        mixed, top, total = carry
        keys = Span(j * tile.keys, tile.keys, x.keys.shape[2])
        rows = None if keys.inside is None else keys.inside[:, None]
        k = load(x.keys.at[row, head, keys.slice, :], rows)
        scores = _scores(x, dot(q, k, 1, 1), row, head, queries, keys)
        higher = jnp.maximum(top, jnp.max(scores, axis=1))
        p = jnp.exp2(scores - higher[:, None])
        shrink = jnp.exp2(top - higher)
        total = total * shrink + jnp.sum(p, axis=1)
        v = load(x.values.at[row, head, keys.slice, :], rows)
        mixed = mixed * shrink[:, None] + dot(p.astype(v.dtype), v, 1, 0)
        return mixed, higher, total

    start = (
        jnp.zeros(q.shape, jnp.float32),
        jnp.full(tile.queries, -jnp.inf, jnp.float32),
        jnp.zeros(tile.queries, jnp.float32),
    )
    count = jax.lax.div(x.end[0] + (tile.keys - 1), tile.keys)
    mixed, _, total = jax.lax.fori_loop(0, count, add, start)
    out = mixed / total[:, None]
    store(out_ref.at[row, queries.slice, head, :], out, queries.inside)


def _scores(x: _Operands, products, row, head, queries: Span, keys: Span):
    """Scores [Q, K] as powers of 2; -1e30 where hidden, -inf beyond the last key."""
    scores = products * _LOG2_E
    if x.bias is not None:
        bias = load(x.bias.at[head, keys.slice], keys.inside)
        scores = scores + bias[None, :] * _LOG2_E
    if x.mask is not None:
        if x.mask.ndim == 2:
            seen = load(x.mask.at[row, keys.slice], keys.inside)[None, :]
        else:
            inside = Place(row, head, queries, keys).inside
            seen = load(x.mask.at[row, queries.slice, keys.slice], inside)
        scores = jnp.where(seen != 0, scores, MASKED)
    inside = keys.inside
    return scores if inside is None else jnp.where(inside[None, :], scores, -jnp.inf)


@lru_cache(maxsize=256)
def _program(tree: Any, ndims: tuple[int, ...], options: _Options):
    """`_attend` of flat operands: XLA's partitioner may cut rows, and heads."""

    @custom_partitioning
    def whole(*leaves):
        return _attend(jax.tree.unflatten(tree, leaves), options)

    def partition(mesh, arguments, _):
        spec = arguments[0].sharding.spec
        rows, _, heads, _ = (*spec, *(None,) * (4 - len(spec)))
        placed = _Operands(
            q=P(rows, None, heads),
            keys=P(rows, heads),
            values=P(rows, heads),
            end=P(),
            bias=P(heads),
            mask=P(rows),
        )
        given = jax.tree.unflatten(tree, arguments)
        placed = [
            NamedSharding(mesh, place)
            for place, x in zip(placed, given, strict=True)
            if x is not None
        ]

        def shard(*leaves):
            # Which GPU it is, where the compiler has none to ask.
            with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
                return _attend(jax.tree.unflatten(tree, leaves), options)

        return mesh, shard, placed[0], tuple(placed)

    rule = "b w n h, b n s h, b n s h, e"
    some = jax.tree.unflatten(tree, ndims)
    if some.bias is not None:
        rule += ", n s"
    if some.mask is not None:
        rule += ", b s" if some.mask == 2 else ", b w s"
    whole.def_partition(
        partition=partition,
        infer_sharding_from_operands=lambda mesh, arguments, _: partition(
            mesh, arguments, None
        )[2],
        sharding_rule=f"{rule} -> b w n h",
        need_replication_factors=("w", "h", "s", "e"),
    )
    return sequential_vmap(whole)

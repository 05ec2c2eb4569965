"""Feed-forward experts: each token visits a few of many, and no visit is dropped.

The visits are sorted by expert into tiles of equal height, so that all experts run as
one batched matrix product of static shape, whatever the routing: with V visits to E
experts in tiles of about V/4E rows, at most a quarter of the rows are empty, and each
expert's weights are read about five times. A TPU has an instruction for groups of any
size (`ragged_dot`), which is given the same rows.

On a mesh each device routes its own tokens, all experts are sharded alike along their
hidden units, and sums follow. XLA's partitioner splits no sort: on TPUs, on a mesh that
is not known here, data-parallel devices repeat each other's experts.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.lax import RaggedDotDimensionNumbers
from jaxtyping import Array, Bool, Float, Float32, Int, Int32

from ntl_jax.sharding.constrain import constrain
from ntl_jax.sharding.mesh import fsdp_size
from ntl_jax.sharding.spmd import Axes, psum, shardable

FEW_TOKENS = 128
"""Up to here all experts see all tokens: reading the weights takes the time, and they
are read once. Decoding lives here."""

_SMALLEST_TILE = 8


def run_experts(
    x: Float[Array, "B T D"],
    weights: Float32[Array, "B T A"],
    chosen: Int[Array, "B T A"],
    gate_up: Float[Array, "E 2 F D"],
    down: Float[Array, "E D F"],
) -> Float[Array, "B T D"]:
    """The weighted sum of the outputs of each token's experts.

    sum_a weights[b, t, a] * down_e (silu(gate_e x) * up_e x), e = chosen[b, t, a]

    A step of decoding, where `fsdp` shards the parameters, runs all experts: the
    parameters stay where they are, and the few tokens travel.

    The backward pass recomputes `gate_e x` and `up_e x`: saved, they would take
    2 * A * F numbers per token and layer, and their places differ from mesh to mesh.

    Args:
        x: tokens; B may be sharded.
        weights: of each token's experts.
        chosen: the numbers of each token's experts, all different.
        gate_up: the experts' two input matrices, in `x`'s dtype; F may be sharded.
        down: their output matrices; F may be sharded, as in `gate_up`.

    Returns:
        [B, T, D] in `x`'s dtype.
    """
    if x.shape[1] == 1 and fsdp_size() > 1:  # a step: its tokens are sent around
        first = (x[:, 0], weights[:, 0], chosen[:, 0])
        return all_experts(*first, gate_up, down)[:, None]
    return _experts(x, weights, chosen, gate_up, down)


def _sharded_forward(axes: Axes, *operands):
    return (psum(local_experts(*operands), axes["f"]),)


def _sharded_gradients(axes: Axes, x, weights, chosen, gate_up, down, cotangent):
    """Gradients of all operands but `chosen`."""

    def run(x, weights, gate_up, down):
        return local_experts(x, weights, chosen, gate_up, down)

    pull = jax.vjp(run, x, weights, gate_up, down)[1]
    summed = ("f", "f", "b", "b")
    return tuple(
        psum(y, axes[letter]) for y, letter in zip(pull(cotangent), summed, strict=True)
    )


_OPERANDS = "b t d, b t a, b t a, e c f d, e d f"
_forward = shardable(
    _sharded_forward,
    lambda *_: f"{_OPERANDS} -> b t d",
    batch="b",
    tensor="f",
    reduced="f",
    on_tpus=True,
)
_backward = shardable(
    _sharded_gradients,
    lambda *_: f"{_OPERANDS}, b t d -> b t d, b t a, e c f d, e d f",
    batch="b",
    tensor="f",
    on_tpus=True,
)


@jax.custom_vjp
def _experts(*operands):
    return _forward(*_as_stored(*operands))[0]


def _experts_forward(*operands):
    return _experts(*operands), operands


def _experts_backward(operands, cotangent):
    x, weights, gate_up, down = _backward(*_as_stored(*operands), cotangent)
    return x, weights, None, gate_up, down


_experts.defvjp(_experts_forward, _experts_backward)


def _as_stored(x, weights, chosen, gate_up, down):
    """The operands, matrices sharded as they are stored: gathered after their casts."""
    gate_up = constrain(gate_up, None, None, "units", "hidden")
    return x, weights, chosen, gate_up, constrain(down, None, "hidden", "units")


def local_experts(
    x: Float[Array, "B T D"],
    weights: Float32[Array, "B T A"],
    chosen: Int[Array, "B T A"],
    gate_up: Float[Array, "E 2 F D"],
    down: Float[Array, "E D F"],
) -> Float[Array, "B T D"]:
    """`run_experts` on one device."""
    few = x.shape[0] * x.shape[1] <= FEW_TOKENS
    run = all_experts if few else chosen_experts
    flat = [y.reshape(-1, y.shape[-1]) for y in (x, weights, chosen)]
    return run(flat[0], flat[1], flat[2], gate_up, down).reshape(x.shape)


def all_experts(x, weights, chosen, gate_up, down) -> Float[Array, "N D"]:
    """All experts on all tokens; those that a token has not chosen weigh nothing."""
    visited = jax.nn.one_hot(chosen, len(down), dtype=jnp.float32)  # [N, A, E]
    shares = jnp.sum(visited * weights[..., None], axis=1)  # [N, E]
    hidden = jnp.einsum("nd,ecfd->cenf", x, gate_up)
    hidden = _activate(hidden[0], hidden[1], shares.T[..., None])  # [E, N, F]
    return jnp.einsum("enf,edf->nd", hidden, down)


def chosen_experts(x, weights, chosen, gate_up, down) -> Float[Array, "N D"]:
    """Every expert on the tokens that have chosen it."""
    experts, visits = len(down), chosen.shape[1]
    layout = lay_out(chosen, experts)
    rows = spread(visits, x, layout)  # [P, D]
    hidden = grouped_matmul(rows, gate_up.reshape(experts, -1, x.shape[1]), layout)
    gate, up = jnp.split(hidden, 2, axis=1)
    hidden = _activate(gate, up, spread(1, weights.reshape(-1, 1), layout))  # [P, F]
    return collect(visits, grouped_matmul(hidden, down, layout), layout)


def _activate(gate, up, shares) -> Array:
    # Weighted before the last product, not after: a token's experts are then summed
    # as they come, and the gradient does without the last product's result.
    weighted = up.astype(jnp.float32) * jnp.broadcast_to(shares, up.shape)
    return (jax.nn.silu(gate.astype(jnp.float32)) * weighted).astype(gate.dtype)


class Layout(NamedTuple):
    """Where visits are in P = M * tile rows, sorted by expert, each from a new tile.

    Attributes:
        visit: the visit in each row; token n's a-th visit has number n * A + a.
        filled: whether there is one.
        row: the row of each visit.
        expert: the expert of each tile.
        sizes: how many rows each expert has, empty ones included; they sum to P.
    """

    visit: Int32[Array, "P"]
    filled: Bool[Array, "P"]
    row: Int32[Array, "V"]
    expert: Int32[Array, "M"]
    sizes: Int32[Array, "E"]


def tile_rows(visits: int, experts: int) -> int:
    """Height of a tile: the power of two up to a quarter of an expert's fair share."""
    share = visits // (4 * experts)
    return max(_SMALLEST_TILE, 1 << max(share.bit_length() - 1, 0))


def lay_out(chosen: Int[Array, "N A"], experts: int) -> Layout:
    """Rows for the visits of tokens to experts."""
    visits = chosen.size
    tile = tile_rows(visits, experts)
    tiles = (visits + experts * (tile - 1)) // tile  # enough for any routing
    visited = chosen.reshape(-1).astype(jnp.int32)
    numbers = jnp.arange(experts, dtype=jnp.int32)
    counts = jnp.sum(visited[:, None] == numbers[None], axis=0, dtype=jnp.int32)
    last_tile = jnp.cumsum((counts + tile - 1) // tile, dtype=jnp.int32)  # [E]
    first_row = tile * jnp.concatenate([jnp.zeros_like(last_tile[:1]), last_tile[:-1]])
    first_visit = jnp.cumsum(counts, dtype=jnp.int32) - counts
    order = jnp.argsort(visited, stable=True).astype(jnp.int32)  # visits by expert

    numbered = jnp.arange(visits, dtype=jnp.int32)
    expert_of = _pick(visited, order)
    row_by_expert = _pick(first_row - first_visit, expert_of) + numbered
    row = jnp.zeros_like(order).at[order].set(row_by_expert, unique_indices=True)

    place = jnp.arange(tiles, dtype=jnp.int32)[:, None]
    expert = jnp.sum(place >= last_tile[None], axis=1, dtype=jnp.int32)  # [M]
    expert = jnp.minimum(expert, experts - 1)  # of spare tiles: the last
    within = tile * place - _pick(first_row, expert)[:, None]
    within = within + jnp.arange(tile, dtype=jnp.int32)[None]  # [M, tile]
    filled = within < _pick(counts, expert)[:, None]
    visit = _pick(order, within + _pick(first_visit, expert)[:, None])
    ends = jnp.concatenate([first_row[1:], jnp.full((1,), tiles * tile, jnp.int32)])
    return Layout(visit.reshape(-1), filled.reshape(-1), row, expert, ends - first_row)


def _pick(x: Array, index: Int32[Array, "..."]) -> Array:
    return jnp.take(x, index, axis=0, mode="clip")


def spread(share: int, x: Float[Array, "N D"], layout: Layout) -> Float[Array, "P D"]:
    """Row n of `x` to the rows of its visits n * share, ..., n * share + share - 1."""
    return _spread(share, x, layout)


def collect(share: int, y: Float[Array, "P D"], layout: Layout) -> Float[Array, "N D"]:
    """The sum of the rows of each `share` visits, in float32."""
    return _collect(share, y, layout)


# Rows are copied in and added up by reading only: a read's own gradient would add into
# rows in whatever order threads come, and each of the two is the other's gradient.
@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _spread(share, x, layout):
    rows = _pick(x, layout.visit // share)
    return jnp.where(layout.filled[:, None], rows, jnp.zeros_like(rows))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _collect(share, y, layout):
    rows = _pick(y, layout.row).reshape(-1, share, y.shape[1])
    return jnp.sum(rows.astype(jnp.float32), axis=1).astype(y.dtype)


def _spread_backward(share, layout, cotangent):
    return _collect(share, cotangent, layout), None


def _collect_backward(share, layout, cotangent):
    return _spread(share, cotangent, layout), None


_spread.defvjp(lambda s, x, layout: (_spread(s, x, layout), layout), _spread_backward)
_collect.defvjp(
    lambda s, y, layout: (_collect(s, y, layout), layout), _collect_backward
)


@jax.custom_vjp
def grouped_matmul(
    x: Float[Array, "P I"], kernels: Float[Array, "E O I"], layout: Layout
) -> Float[Array, "P O"]:
    """Each row times its expert's matrix: y[p] = kernels[expert of p] @ x[p].

    Args:
        x: rows as in `layout`.
        kernels: one matrix per expert.
        layout: of the rows.

    Returns:
        [P, O] in `x`'s dtype.
    """
    return jax.lax.platform_dependent(
        x, kernels, layout, tpu=_ragged_matmul, default=_tiled_matmul
    )


def _grouped_forward(x, kernels, layout):
    return grouped_matmul(x, kernels, layout), (x, kernels, layout)


def _grouped_backward(residuals, cotangent):
    x, kernels, layout = residuals
    by_row = grouped_matmul(cotangent, jnp.swapaxes(kernels, 1, 2), layout)
    by_kernel = jax.lax.platform_dependent(
        cotangent, x, layout, tpu=_ragged_outer, default=_tiled_outer
    )
    return by_row, by_kernel, None


grouped_matmul.defvjp(_grouped_forward, _grouped_backward)


def _tiles(x: Float[Array, "P I"], layout: Layout) -> Float[Array, "M tile I"]:
    return x.reshape(len(layout.expert), -1, x.shape[1])


def _tiled_matmul(x, kernels, layout: Layout):
    tiles = _tiles(x, layout)
    out = jnp.einsum("mti,moi->mto", tiles, _pick(kernels, layout.expert))
    return out.reshape(len(x), -1)


def _tiled_outer(y, x, layout: Layout) -> Float[Array, "E O I"]:
    by_tile = jnp.einsum("mto,mti->moi", _tiles(y, layout), _tiles(x, layout))
    # A product with one-hot rows adds up each expert's tiles in a fixed order.
    mine = jax.nn.one_hot(layout.expert, len(layout.sizes), dtype=x.dtype)
    return jnp.einsum("me,moi->eoi", mine, by_tile)


def _ragged_matmul(x, kernels, layout: Layout):
    dims = RaggedDotDimensionNumbers((([1], [2]), ([], [])), [0], [0])
    return jax.lax.ragged_dot_general(x, kernels, layout.sizes, dims)


def _ragged_outer(y, x, layout: Layout) -> Float[Array, "E O I"]:
    dims = RaggedDotDimensionNumbers((([0], [0]), ([], [])), [0], [])
    return jax.lax.ragged_dot_general(y, x, layout.sizes, dims)

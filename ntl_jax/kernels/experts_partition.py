"""Experts on a mesh: each device routes its own tokens and cuts every expert alike.

Tokens are sorted by expert, and XLA's partitioner splits no sort: left alone it hands
every device the whole batch. On a mesh that `sharding.on_mesh` tells of, each device
therefore runs its own tokens, and sums follow. On any other, `custom_partitioning`
tells the partitioner that rows do not meet, that an expert's units may be cut, and what
is summed over which devices.

The compiler for TPUs does not take `custom_partitioning` (jax 0.10): there, on a mesh
that is not told of, XLA splits what it can, the result is the same, and data-parallel
devices repeat each other's experts.
"""

import jax
from jax.custom_batching import custom_vmap
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Float32, Int

from ntl_jax.kernels.experts import all_experts, local_experts
from ntl_jax.sharding.mesh import fsdp_size
from ntl_jax.sharding.spmd import (
    AxisPartition,
    divides,
    shard_map_if_mesh,
    sum_rows,
    sum_units,
)

_TOKENS = "b t d, b t a, b t a"
_KERNELS = "e c f d, e d f"
_ROWS = AxisPartition(rows=0)
_CUTS = (
    _ROWS,
    _ROWS,
    _ROWS,
    AxisPartition(units=2, width=3),
    AxisPartition(units=2, width=1),
)


def run_experts(
    x: Float[Array, "B T D"],
    weights: Float32[Array, "B T A"],
    chosen: Int[Array, "B T A"],
    gate_up: Float[Array, "E 2 F D"],
    down: Float[Array, "E D F"],
) -> Float[Array, "B T D"]:
    """What each token's experts make of it, summed with weights.

    sum_a weights[b, t, a] * down_e (silu(gate_e x) * up_e x), e = chosen[b, t, a]

    A step of decoding, on a mesh that cuts the width of parameters, runs all experts:
    the parameters stay where they are, and the few tokens travel.

    The backward pass computes `gate_e x` and `up_e x` again: kept, they would take
    2 * A * F numbers a token and layer, and their places differ from mesh to mesh.

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


@jax.custom_vjp
def _experts(x, weights, chosen, gate_up, down):
    operands = (x, weights, chosen, gate_up, down)
    if not divides(operands, _CUTS):
        return _forward(*operands)

    def own(*parts):
        return sum_units(local_experts(*parts))

    return shard_map_if_mesh(own, operands, _CUTS, _ROWS.spec(x.ndim))


def _gradients(x, weights, chosen, gate_up, down, cotangent):
    """Gradients of all operands but `chosen`, on one device."""

    def run(x, weights, gate_up, down):
        return local_experts(x, weights, chosen, gate_up, down)

    return jax.vjp(run, x, weights, gate_up, down)[1](cotangent)


def _experts_forward(*operands):
    return _experts(*operands), operands


def _experts_backward(operands, cotangent):
    operands = (*operands, cotangent)
    cuts = (*_CUTS, _ROWS)
    if not divides(operands, cuts):
        x, weights, gate_up, down = _backward(*operands)
        return x, weights, None, gate_up, down

    def own(*parts):
        x, weights, gate_up, down = _gradients(*parts)
        x, weights = sum_units(x), sum_units(weights)
        return x, weights, sum_rows(gate_up), sum_rows(down)

    places = tuple(
        cut.spec(operand.ndim) for cut, operand in zip(cuts, operands, strict=True)
    )
    results = (places[0], places[1], places[3], places[4])
    x, weights, gate_up, down = shard_map_if_mesh(own, operands, cuts, results)
    return x, weights, None, gate_up, down


_experts.defvjp(_experts_forward, _experts_backward)


def _shardings(mesh, operands):
    """Of tokens, gate_up and down, and the axes that cut tokens and units."""
    rows = operands[0].sharding.spec[0]
    units = operands[3].sharding.spec[2]
    row_axes, unit_axes = _names(rows), _names(units)
    if set(row_axes) & set(unit_axes):  # an axis cuts one of the two
        units, unit_axes = None, ()
    tokens, gate_up, down = (
        NamedSharding(mesh, P(*spec))
        for spec in ((rows,), (None, None, units), (None, None, units))
    )
    return (tokens, tokens, tokens, gate_up, down), row_axes, unit_axes


def _names(entry) -> tuple[str, ...]:
    return (entry,) if isinstance(entry, str) else tuple(entry or ())


def _sum(x: Array, axes: tuple[str, ...]) -> Array:
    return jax.lax.psum(x, axes) if axes else x


def _partition_forward(mesh, operands, _):
    placed, _, unit_axes = _shardings(mesh, operands)

    def shard(*operands):
        return _sum(local_experts(*operands), unit_axes)

    return mesh, shard, placed[0], placed


def _partition_backward(mesh, operands, _):
    placed, row_axes, unit_axes = _shardings(mesh, operands)

    def shard(*operands):
        x, weights, gate_up, down = _gradients(*operands)
        return (
            _sum(x, unit_axes),
            _sum(weights, unit_axes),
            _sum(gate_up, row_axes),
            _sum(down, row_axes),
        )

    results = (placed[0], placed[1], placed[3], placed[4])
    return mesh, shard, results, (*placed, placed[0])


def _partitioned(run, partition, rule: str):
    """`run` as a function that can be split over devices, and batched by `vmap`."""
    whole = custom_partitioning(run)
    whole.def_partition(
        partition=partition,
        infer_sharding_from_operands=lambda mesh, operands, _: partition(
            mesh, operands, None
        )[2],
        sharding_rule=rule,
        reduction_factors=("f",) if "f ->" in rule else (),
        need_replication_factors=("t", "d", "a", "e", "c"),
    )

    @custom_vmap
    def call(*operands):
        return jax.lax.platform_dependent(*operands, tpu=run, default=whole)

    @call.def_vmap
    def _(size, in_batched, *operands):
        del size
        # No device could tell rows of one model from those of the next: XLA splits.
        in_axes = tuple(0 if batched else None for batched in in_batched)
        out = jax.vmap(run, in_axes=in_axes)(*operands)
        return out, jax.tree.map(lambda _: True, out)

    return call


_forward = _partitioned(
    local_experts, _partition_forward, f"{_TOKENS}, {_KERNELS} -> b t d"
)
_backward = _partitioned(
    _gradients,
    _partition_backward,
    f"{_TOKENS}, {_KERNELS}, b t d -> b t d, b t a, {_KERNELS}",
)

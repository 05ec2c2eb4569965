"""What each device of a mesh does with its own part of a batch, apart from the others.

XLA's partitioner splits no sort and no `top_k`: left alone, it hands every device the
whole batch.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import PartitionSpec

from ntl_jax.sharding.mesh import BATCH_AXES, current_mesh, data_shards


class AxisPartition(NamedTuple):
    """Which axes of an array are cut.

    Attributes:
        rows: the axis that the devices cut which share out a batch; None: they do not.
        units: the axis that the mesh's `tensor` axis cuts.
        width: the axis of a parameter that `fsdp` cuts, and that is gathered to run.
    """

    rows: int | None = None
    units: int | None = None
    width: int | None = None

    def spec(self, ndim: int) -> PartitionSpec:
        """The cut of an array with so many axes, its width gathered."""
        names: list[Any] = [None] * ndim
        if self.rows is not None:
            names[self.rows] = BATCH_AXES
        if self.units is not None:
            names[self.units] = "tensor"
        return PartitionSpec(*names)

    def kept(self, x: jax.Array) -> jax.Array:
        """A parameter as it lies, so that it is gathered after casts and not before."""
        if self.width is None:
            return x
        names: list[Any] = [*self.spec(x.ndim)]
        names[self.width] = "fsdp"
        return jax.lax.with_sharding_constraint(x, PartitionSpec(*names))


def row_by_row(
    run: Callable[[jax.Array], Any], x: jax.Array, *, parts: int | None = None
) -> Any:
    """`run(x)`, each device with its own rows.

    Args:
        run: takes an array like `x`, gives arrays with its leading axes; what comes of
            a row, or of a row's part, depends on it alone.
        x: [B, ...].
        parts: the axis of a row's parts, if the `tensor` axis cuts it.

    Returns:
        `run(x)`; without a mesh and where rows do not divide, computed as it stands.
    """
    mesh, cut = current_mesh(), AxisPartition(0, parts)
    if mesh is None or x.ndim < 2 or not divides([x], [cut]):
        return run(x)
    spec = cut.spec(x.ndim)
    return jax.shard_map(run, mesh=mesh, in_specs=spec, out_specs=spec)(x)


def divides(operands: Sequence[jax.Array], cuts: Sequence[AxisPartition]) -> bool:
    """Whether a mesh is known, and can cut arrays so."""
    mesh = current_mesh()
    return mesh is not None and all(
        (rows is None or x.shape[rows] % data_shards(mesh) == 0)
        and (units is None or x.shape[units] % mesh.shape["tensor"] == 0)
        and (width is None or x.shape[width] % mesh.shape["fsdp"] == 0)
        for x, (rows, units, width) in zip(operands, cuts, strict=True)
    )


def shard_map_if_mesh(
    run: Callable[..., Any],
    operands: Sequence[jax.Array],
    cuts: Sequence[AxisPartition],
    results: Any,
) -> Any:
    """`run(*operands)`, each device with its own parts of the operands.

    Not to be differentiated: a custom VJP runs it forward and backward.

    Args:
        run: takes parts and gives parts. It adds up by `sum_rows` and `sum_units` what
            devices hold summands of.
        operands: arrays that their cuts divide, see `divides`.
        cuts: one an operand.
        results: as what `run` gives, each array's specs in its place.

    Returns:
        As `run` gives.
    """
    specs = tuple(cut.spec(x.ndim) for x, cut in zip(operands, cuts, strict=True))
    # Results are alike on devices that do not cut them by the sums, unknown to JAX.
    mapped = jax.shard_map(
        run, mesh=current_mesh(), in_specs=specs, out_specs=results, check_vma=False
    )
    return mapped(*(cut.kept(x) for cut, x in zip(cuts, operands, strict=True)))


def sum_rows(x: jax.Array) -> jax.Array:
    """The sum over the devices that share out a batch, on each of them."""
    return jax.lax.psum(x, BATCH_AXES)


def sum_units(x: jax.Array) -> jax.Array:
    """The sum over the devices of the `tensor` axis, on each of them."""
    return jax.lax.psum(x, "tensor")

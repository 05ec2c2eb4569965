"""Column passes that XLA's partitioner cannot look into, on sharded logits.

XLA splits its own programs over devices. A Pallas kernel it does not know how to split:
left alone it would gather the logits. Here every device passes over its own rows and
columns, and a few numbers a position are summed over the devices that share out the
columns: on a mesh of `sharding.on_mesh` by ``shard_map``; on others, whose axes are not
known here, `custom_partitioning` tells the partitioner so (but the persistent
compilation cache then finds no program again, for the partitioner's rules are part of
its key by their address).
"""

from collections.abc import Callable
from functools import lru_cache

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from ntl_jax.kernels.logit_stats.reference import (
    ColumnCotangents,
    ColumnSums,
    combine_shards,
)
from ntl_jax.sharding.mesh import TENSOR_AXIS
from ntl_jax.sharding.spmd import AxisPartition, divides, shard_map_if_mesh

_AXES = "abcdefgh"  # of the positions, in sharding rules
_ROWS = AxisPartition(rows=0)


def _batch_axes(dims: int) -> str:
    if dims > len(_AXES):
        raise ValueError(
            f"logits of {dims + 1} dimensions; at most {len(_AXES) + 1} can be split "
            "over devices. Flatten the leading ones."
        )
    return " ".join(_AXES[:dims])


def _split(mesh, spec, dims: int) -> tuple[NamedSharding, NamedSharding, tuple]:
    """Shardings of logits and labels, and the mesh axes of the columns."""
    entries = (*spec, *(None,) * (dims + 1 - len(spec)))
    columns = entries[-1]
    axes = (columns,) if isinstance(columns, str) else columns or ()
    by_token = NamedSharding(mesh, P(*entries[:-1]))
    return NamedSharding(mesh, P(*entries)), by_token, axes


def _on(mesh):
    """Tells a kernel which GPU it is for, where the compiler has none to ask."""
    return jax.sharding.use_abstract_mesh(mesh.abstract_mesh)


def _first_column(axes: tuple[str, ...], columns: int):
    return jax.lax.axis_index(axes) * columns if axes else 0


@lru_cache(maxsize=256)
def _partitioned_logit_stats(read: Callable, dims: int) -> Callable:
    """``read(logits, labels, ids, first_column)`` as a function that can be split."""

    @custom_partitioning
    def whole(logits, labels, token_ids):
        return tuple(read(logits, labels, token_ids, 0))

    def results(mesh, spec):
        _, by_token, _ = _split(mesh, spec, dims)
        by_number = NamedSharding(mesh, P(*by_token.spec, None))
        return (by_token,) * 4 + (by_number,)

    def partition(mesh, args, _):
        spec = args[0].sharding.spec
        by_logit, by_token, axes = _split(mesh, spec, dims)

        def shard(logits, labels, token_ids):
            first = _first_column(axes, logits.shape[-1])
            with _on(mesh):
                sums = read(logits, labels, token_ids, first)
            return tuple(combine_shards(sums, axes) if axes else sums)

        operands = (by_logit, by_token, NamedSharding(mesh, P(None)))
        return mesh, shard, results(mesh, spec), operands

    tokens = _batch_axes(dims)
    rule = f"{tokens} v, {tokens}, k -> {', '.join([tokens] * 4)}, {tokens} k"
    whole.def_partition(
        partition=partition,
        infer_sharding_from_operands=lambda mesh, args, _: results(
            mesh, args[0].sharding.spec
        ),
        sharding_rule=rule,
    )
    return whole


@lru_cache(maxsize=256)
def _partitioned_logit_stats_vjp(write: Callable, dims: int) -> Callable:
    """``write(logits, ..., number_of_column, first_column)``, likewise."""

    @custom_partitioning
    def whole(logits, number_of_column, labels, top, log_sum, *cotangents):
        cotangents = ColumnCotangents(*cotangents)
        return write(logits, labels, top, log_sum, cotangents, number_of_column, 0)

    def partition(mesh, args, _):
        by_logit, by_token, axes = _split(mesh, args[0].sharding.spec, dims)

        def shard(logits, number_of_column, labels, top, log_sum, *cotangents):
            first = _first_column(axes, logits.shape[-1])
            cotangents = ColumnCotangents(*cotangents)
            with _on(mesh):
                return write(
                    logits, labels, top, log_sum, cotangents, number_of_column, first
                )

        by_column = NamedSharding(mesh, P(by_logit.spec[-1]))
        by_number = NamedSharding(mesh, P(*by_token.spec, None))
        operands = (by_logit, by_column, *(by_token,) * 6, by_number)
        return mesh, shard, by_logit, operands

    tokens = _batch_axes(dims)
    rule = f"{tokens} v, v, {', '.join([tokens] * 6)}, {tokens} k -> {tokens} v"
    whole.def_partition(
        partition=partition,
        infer_sharding_from_operands=lambda mesh, args, _: _split(
            mesh, args[0].sharding.spec, dims
        )[0],
        sharding_rule=rule,
    )
    return whole


def partitioned_logit_stats(read: Callable, logits, labels, token_ids) -> ColumnSums:
    """Reads the columns of logits that may be sharded.

    Args:
        read: a hashable ``read(logits, labels, token_ids, first_column) ->
            ColumnSums``.
        logits: [*B, V].
        labels: [*B].
        token_ids: [K], of NumPy where a branch of a program is traced: `vmap` may come
            to it when its tracers are gone.

    Returns:
        ColumnSums over [*B].
    """
    cuts = (AxisPartition(rows=0, units=labels.ndim), _ROWS, AxisPartition())

    def own(logits, labels, token_ids):
        first = _first_column((TENSOR_AXIS,), logits.shape[-1])
        sums = read(logits, labels, token_ids, first)
        return tuple(combine_shards(sums, TENSOR_AXIS))

    def whole(*operands):
        if labels.ndim == 0 or not divides(operands, cuts):
            return _partitioned_logit_stats(read, labels.ndim)(*operands)
        by_token = _ROWS.spec(labels.ndim)
        results = (*(by_token,) * 4, P(*by_token, None))
        if token_ids.size:
            return shard_map_if_mesh(own, operands, cuts, results)
        # XLA's partitioner (of jax 0.11.2) crashes on an operand without elements.
        return shard_map_if_mesh(
            lambda logits, labels: own(logits, labels, jnp.zeros((0,), jnp.int32)),
            operands[:2],
            cuts[:2],
            results,
        )

    def again(logits, labels):
        return tuple(partitioned_logit_stats(read, logits, labels, token_ids))

    return ColumnSums(*_over_batches(whole, again, token_ids, 2)(logits, labels))


def partitioned_logit_stats_vjp(
    write: Callable,
    logits,
    labels,
    top,
    log_sum,
    cotangents: ColumnCotangents,
    number_of_column,
):
    """Writes the gradient of logits that may be sharded.

    Args:
        write: a hashable ``write(logits, labels, top, log_sum, cotangents,
            number_of_column, first_column) -> gradient``.
        logits: [*B, V].
        labels, top, log_sum: [*B].
        cotangents: over [*B].
        number_of_column: [V], likewise.

    Returns:
        [*B, V].
    """
    by_logit = AxisPartition(rows=0, units=labels.ndim)
    cuts = (by_logit, AxisPartition(units=0), *(_ROWS,) * (3 + len(cotangents)))

    def own(logits, numbers, labels, top, log_sum, *cotangents):
        first = _first_column((TENSOR_AXIS,), logits.shape[-1])
        cotangents = ColumnCotangents(*cotangents)
        return write(logits, labels, top, log_sum, cotangents, numbers, first)

    def whole(*operands):
        if labels.ndim == 0 or not divides(operands, cuts):
            return _partitioned_logit_stats_vjp(write, labels.ndim)(*operands)
        return shard_map_if_mesh(own, operands, cuts, by_logit.spec(logits.ndim))

    def again(logits, labels, top, log_sum, *cotangents):
        return partitioned_logit_stats_vjp(
            write,
            logits,
            labels,
            top,
            log_sum,
            ColumnCotangents(*cotangents),
            number_of_column,
        )

    run = _over_batches(whole, again, number_of_column, 1)
    return run(logits, labels, top, log_sum, *cotangents)


def _over_batches(whole: Callable, again: Callable, table, place: int) -> Callable:
    """Lets ``vmap`` through: a batch is one more leading dimension, done ``again``.

    Args:
        whole: takes the operands, and at ``place`` among them the table.
        again: takes the operands with one more leading dimension, and no table.
        table: an operand that is the same for the whole batch.
        place: its position.
    """

    @custom_vmap
    def call(*operands):
        return whole(*operands[:place], table, *operands[place:])

    @call.def_vmap
    def batched(size, in_batched, *operands):
        operands = [
            x if is_batched else jnp.broadcast_to(x, (size, *x.shape))
            for x, is_batched in zip(operands, in_batched, strict=True)
        ]
        out = again(*operands)
        return out, jax.tree.map(lambda _: True, out)

    return call

"""The kernels of `logit_stats` on logits that may be sharded, and under `vmap`.

Every device passes over its own rows and columns, and a few numbers per position are
reduced over the devices that share a row's columns.
"""

from collections.abc import Callable
from functools import lru_cache, partial

import jax
import jax.numpy as jnp

from ntl_jax.kernels.logit_stats.reference import (
    ColumnCotangents,
    ColumnSums,
    combine_shards,
    real_columns,
)
from ntl_jax.sharding.mesh import current_mesh
from ntl_jax.sharding.spmd import Axes, add_batch_axis, shardable

_LETTERS = "abcdefgh"  # of the positions, in sharding rules
_shardable = partial(shardable, batch=_LETTERS[0], free=_LETTERS[1:], tensor="v")


def partitioned_logit_stats(
    read: Callable, logits, labels, token_ids, *, vocab_size: int
) -> ColumnSums:
    """Reads the columns of logits that may be sharded.

    Args:
        read: a hashable ``read(logits, labels, token_ids, first_column) ->
            ColumnSums``.
        logits: [*B, V].
        labels: [*B].
        token_ids: [K], the same for all that `vmap` batches.
        vocab_size: V without padding.

    Returns:
        ColumnSums over [*B].
    """
    # XLA's partitioner (of jax 0.11.2) crashes on a table without elements.
    ids = (token_ids,) if token_ids.size or current_mesh() is None else ()
    return ColumnSums(*_reading(read, vocab_size)(logits, labels, *ids))


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
        number_of_column: [V], the same for all that `vmap` batches.

    Returns:
        [*B, V].
    """
    operands = (logits, number_of_column, labels, top, log_sum, *cotangents)
    return _writing(write)(*operands)[0]


@lru_cache(maxsize=256)
def _reading(read: Callable, vocab_size: int) -> Callable:
    def run(axes: Axes, logits, labels, *ids):
        token_ids = ids[0] if ids else jnp.zeros((0,), jnp.int32)
        first = _first_column(axes, logits)
        sums = read(logits, labels, token_ids, first)
        if not axes["v"]:
            return tuple(sums)
        columns = real_columns(logits.shape[-1], first, vocab_size)
        return tuple(combine_shards(sums, axes["v"], columns))

    def rule(logits, labels, *ids) -> str:
        tokens = _letters(labels.ndim)
        operands = [f"{tokens} v", tokens, *["k"] * len(ids)]
        return f"{', '.join(operands)} -> {', '.join([tokens] * 4)}, {tokens} k"

    return _shardable(run, rule, vmap=partial(add_batch_axis, shared=(2,)))


@lru_cache(maxsize=256)
def _writing(write: Callable) -> Callable:
    def run(axes: Axes, logits, number_of_column, labels, top, log_sum, *cotangents):
        first, cotangents = _first_column(axes, logits), ColumnCotangents(*cotangents)
        return (
            write(logits, labels, top, log_sum, cotangents, number_of_column, first),
        )

    def rule(logits, number_of_column, labels, *others) -> str:
        tokens = _letters(labels.ndim)
        operands = [f"{tokens} v", "v", *[tokens] * len(others), f"{tokens} k"]
        return f"{', '.join(operands)} -> {tokens} v"

    return _shardable(run, rule, vmap=partial(add_batch_axis, shared=(1,)))


def _letters(dims: int) -> str:
    if dims > len(_LETTERS):
        raise ValueError(
            f"logits of {dims + 1} dimensions; at most {len(_LETTERS) + 1} can be "
            "sharded. Flatten the leading ones."
        )
    return " ".join(_LETTERS[:dims])


def _first_column(axes: Axes, logits):
    columns = axes["v"]
    return jax.lax.axis_index(columns) * logits.shape[-1] if columns else 0

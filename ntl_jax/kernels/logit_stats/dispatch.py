"""Which program passes over the columns: XLA's own, or a kernel where one is faster.

On NVIDIA GPUs it is the kernels of `gpu`; on every other device, for shapes
that these do not take, and in a JAX without the Triton backend of Pallas (deprecated
from 0.12 on), it is the plain program of `reference`.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int

from ntl_jax.kernels.logit_stats import reference
from ntl_jax.kernels.logit_stats.partition import (
    partitioned_logit_stats,
    partitioned_logit_stats_vjp,
)
from ntl_jax.kernels.logit_stats.reference import ColumnCotangents, ColumnSums
from ntl_jax.kernels.platforms import has_triton, traced_platform
from ntl_jax.numbers.vocab import NumberVocab

AxisName = str | tuple[str, ...] | None


class _Programs(NamedTuple):
    read: Callable[..., ColumnSums]
    write: Callable[..., Array]


def logit_stats(
    vocab_size: int,
    vocab: NumberVocab | None,
    axis_name: AxisName,
    logits: Float[Array, "*B C"],
    labels: Int[Array, "*B"],
) -> ColumnSums:
    """Sums up every position over the whole vocabulary.

    Args:
        vocab_size: V; columns from there on are padding.
        vocab: the number tokens, None for none.
        axis_name: inside ``shard_map``, the mesh axes that the columns are sharded
            over.
        logits: [*B, C], all columns, or this device's under ``axis_name``.
        labels: token ids [*B] in [0, V).

    Returns:
        ColumnSums over [*B].
    """
    ids, first = _token_ids(vocab), _first_column(axis_name, logits)
    triton = partial(_triton, vocab_size, vocab)

    def plain(logits, labels):
        return reference.logit_stats(logits, labels, ids, first, vocab_size=vocab_size)

    def kernel(logits, labels):
        return triton().read(logits, labels, ids, first)

    def split(logits, labels):
        return partitioned_logit_stats(
            triton().read, logits, labels, ids, vocab_size=vocab_size
        )

    sums = _choose(axis_name, plain, kernel, split, logits, labels)
    if axis_name is None:
        return sums
    columns = reference.real_columns(logits.shape[-1], first, vocab_size)
    return reference.combine_shards(sums, axis_name, columns)


def logit_stats_vjp(
    vocab_size: int,
    vocab: NumberVocab | None,
    axis_name: AxisName,
    logits: Float[Array, "*B C"],
    labels: Int[Array, "*B"],
    top: Float32[Array, "*B"],
    log_sum: Float32[Array, "*B"],
    cotangents: ColumnCotangents,
    *,
    in_place: bool = False,
) -> Float[Array, "*B C"]:
    """The gradient of the logits; see `reference.logit_stats_vjp`.

    Args:
        vocab_size: V; columns from there on are padding.
        vocab: the number tokens, None for none.
        axis_name: inside ``shard_map``, the mesh axes that the columns are sharded
            over.
        logits: [*B, C], all columns, or this device's under ``axis_name``.
        labels: token ids [*B] in [0, V).
        top: [*B], the largest logit of the whole vocabulary.
        log_sum: [*B], log sum_j exp(z_j - top) over the whole vocabulary.
        cotangents: the derivatives of the loss over [*B].
        in_place: lets a kernel overwrite the logits, if nothing reads them later. Where
            something does, XLA copies them first.

    Returns:
        [*B, C] in the dtype of the logits.
    """
    first = _first_column(axis_name, logits)
    number_of_column = _column_to_number_index(axis_name, vocab, logits)
    padded = _padded(axis_name, vocab_size, logits)
    triton = partial(_triton, vocab_size, vocab, padded, in_place)

    def plain(logits, labels, top, log_sum, cotangents):
        return reference.logit_stats_vjp(
            logits,
            labels,
            top,
            log_sum,
            cotangents,
            number_of_column,
            first,
            vocab_size=vocab_size,
        )

    def kernel(logits, labels, top, log_sum, cotangents):
        return triton().write(
            logits, labels, top, log_sum, cotangents, number_of_column, first
        )

    def split(logits, labels, top, log_sum, cotangents):
        return partitioned_logit_stats_vjp(
            triton().write, logits, labels, top, log_sum, cotangents, number_of_column
        )

    operands = (logits, labels, top, log_sum, cotangents)
    return _choose(axis_name, plain, kernel, split, *operands)


def _choose(axis_name, plain: Callable, kernel: Callable, split: Callable, *args):
    """Calls one of three programs: XLA's, a kernel, or a kernel split over devices."""
    mesh = jax.sharding.get_abstract_mesh()
    # Kernels are traced only where they can run: Pallas takes a second to import.
    if traced_platform() != "gpu" or mesh.explicit_axes or not _fits(args[0]):
        return plain(*args)
    if mesh.manual_axes and not mesh.are_all_axes_manual:
        return plain(*args)
    cuda = split if axis_name is None and not mesh.manual_axes else kernel
    return jax.lax.platform_dependent(*args, cuda=cuda, default=plain)


def _fits(logits: Array) -> bool:
    if not has_triton():
        return False
    from ntl_jax.kernels.logit_stats import gpu

    return gpu.fits(logits.shape, logits.dtype)


def _first_column(axis_name: AxisName, logits: Array) -> reference.FirstColumn:
    if axis_name is None:
        return 0
    return jax.lax.axis_index(axis_name) * logits.shape[-1]


def _padded(axis_name: AxisName, vocab_size: int, logits: Array) -> bool:
    shards = 1 if axis_name is None else jax.lax.axis_size(axis_name)
    return logits.shape[-1] * shards > vocab_size


def _token_ids(vocab: NumberVocab | None) -> np.ndarray:
    return np.zeros(0, np.int32) if vocab is None else vocab.token_ids


def _column_to_number_index(
    axis_name: AxisName, vocab: NumberVocab | None, logits: Array
):
    """Which number each column of the logits is: all columns, or this device's."""
    size = logits.shape[-1]
    if axis_name is None:
        return reference.column_to_number_index(size, _token_ids(vocab))
    every = size * jax.lax.axis_size(axis_name)
    numbers = jnp.asarray(reference.column_to_number_index(every, _token_ids(vocab)))
    first = _first_column(axis_name, logits)
    return jax.lax.dynamic_slice_in_dim(numbers, first, size)


@lru_cache(maxsize=256)
def _triton(
    vocab_size: int,
    vocab: NumberVocab | None,
    padded: bool = True,
    in_place: bool = False,
) -> _Programs:
    from ntl_jax.kernels.logit_stats import gpu

    ids = _token_ids(vocab)
    span = (int(ids.min()), int(ids.max())) if len(ids) else (0, 0)
    return _Programs(
        partial(gpu.logit_stats, vocab_size=vocab_size),
        partial(
            gpu.logit_stats_vjp,
            vocab_size=vocab_size,
            span=span,
            padded=padded,
            in_place=in_place,
        ),
    )

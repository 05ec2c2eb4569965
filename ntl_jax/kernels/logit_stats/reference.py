"""One pass over the columns of the logits, whole or one shard of them.

`logit_stats` sums up a position and `logit_stats_vjp` turns cotangents into a gradient.
Both look at the columns ``first_column .. first_column + C - 1`` of the vocabulary, so
that a device that holds a shard needs no other; `combine_shards` adds shards up.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int, Int32

# Stands in for a padded column and for a logit of -inf. Finite, so that sums over the
# vocabulary, and 0 times any loss, stay finite.
MASKED_LOGIT = -1e30

FirstColumn = int | Int32[Array, ""]
Ids = Int32[Array, "N"] | Int32[np.ndarray, "N"]


class ColumnSums(NamedTuple):
    """What a pass over the logits z of a position finds, all float32.

    Attributes:
        top: [*B], max_j z_j.
        exp_sum: [*B], sum_j exp(z_j - top).
        label_logit: [*B], the logit of the label, 0 where another shard has it.
        logit_sum: [*B], sum_j (z_j - top) over the real columns.
        number_logits: [*B, K], 0 where another shard has them.
    """

    top: Float32[Array, "*B"]
    exp_sum: Float32[Array, "*B"]
    label_logit: Float32[Array, "*B"]
    logit_sum: Float32[Array, "*B"]
    number_logits: Float32[Array, "*B K"]


class ColumnCotangents(NamedTuple):
    """The derivatives of a loss by the log-normaliser and by single logits.

    Attributes:
        log_sum: [*B].
        label_logit: [*B].
        logit_sum: [*B].
        number_logits: [*B, K].
    """

    log_sum: Float32[Array, "*B"]
    label_logit: Float32[Array, "*B"]
    logit_sum: Float32[Array, "*B"]
    number_logits: Float32[Array, "*B K"]


def logit_stats(
    logits: Float[Array, "*B C"],
    labels: Int[Array, "*B"],
    token_ids: Ids,
    first_column: FirstColumn = 0,
    *,
    vocab_size: int,
) -> ColumnSums:
    """Sums up C columns of the vocabulary.

    Args:
        logits: [*B, C] of any floating dtype.
        labels: token ids [*B] in [0, vocab_size).
        token_ids: [K], the number tokens.
        first_column: which column of the vocabulary the first one is.
        vocab_size: V; columns from there on are padding.

    Returns:
        ColumnSums over [*B].
    """
    z = _real_logits(logits, first_column, vocab_size)  # [*B, C]
    column = _columns(z, first_column)
    top = jnp.max(z, axis=-1)  # [*B]
    below = z - top[..., None]  # [*B, C]
    exp_sum = jnp.sum(jnp.exp(below), axis=-1)
    # A masked sum, unlike a gather, fuses with the others and leaves a vocabulary that
    # is sharded where it is.
    label_logit = jnp.sum(jnp.where(column == labels[..., None], z, 0.0), axis=-1)
    logit_sum = jnp.sum(jnp.where(column < vocab_size, below, 0.0), axis=-1)
    places = jnp.asarray(token_ids) - first_column
    number_logits = jnp.take(logits, places, axis=-1, mode="clip")  # [*B, K]
    number_logits = jnp.maximum(number_logits.astype(jnp.float32), MASKED_LOGIT)
    if not isinstance(first_column, int):
        here = jnp.broadcast_to(_inside(places, z.shape[-1]), number_logits.shape)
        number_logits = jnp.where(here, number_logits, 0.0)
    return ColumnSums(top, exp_sum, label_logit, logit_sum, number_logits)


def combine_shards(
    sums: ColumnSums, axis_name: str | tuple[str, ...], columns: Int32[Array, ""]
) -> ColumnSums:
    """Adds up what the devices along mesh axes found in their shards of the columns.

    Args:
        sums: ColumnSums over [*B] of one shard.
        columns: how many real columns the shard holds, see `real_columns`.
        axis_name: the mesh axes that the columns are sharded over.

    Returns:
        ColumnSums over [*B] of all columns, the same on every device.
    """
    top = jax.lax.pmax(sums.top, axis_name)
    lower = sums.top - top
    exp_sum = sums.exp_sum * jnp.exp(lower)
    logit_sum = sums.logit_sum + columns.astype(jnp.float32) * lower
    parts = (exp_sum, sums.label_logit, logit_sum, sums.number_logits)
    return ColumnSums(top, *jax.lax.psum(parts, axis_name))


def real_columns(
    columns: int, first_column: FirstColumn, vocab_size: int
) -> Int32[Array, ""]:
    """How many of C columns from the first one on are not padding."""
    return jnp.clip(jnp.asarray(vocab_size - first_column, jnp.int32), 0, columns)


def logit_stats_vjp(
    logits: Float[Array, "*B C"],
    labels: Int[Array, "*B"],
    top: Float32[Array, "*B"],
    log_sum: Float32[Array, "*B"],
    cotangents: ColumnCotangents,
    number_of_column: Ids,
    first_column: FirstColumn = 0,
    *,
    vocab_size: int,
) -> Float[Array, "*B C"]:
    """The gradient of C columns of the logits.

    softmax_j d_log_sum + [j is the label] d_label + d_sum + [j is number k] d_number_k

    Args:
        logits: [*B, C] of any floating dtype.
        labels: token ids [*B] in [0, vocab_size).
        top: [*B], the largest logit of the whole vocabulary.
        log_sum: [*B], log sum_j exp(z_j - top) over the whole vocabulary.
        cotangents: the derivatives of the loss over [*B].
        number_of_column: [C], which number token each column is, K for none.
        first_column: which column of the vocabulary the first one is.
        vocab_size: V; columns from there on are padding.

    Returns:
        [*B, C] in the dtype of the logits; 0 in padded columns and at logits of -inf.
    """
    z = _real_logits(logits, first_column, vocab_size)  # [*B, C]
    column = _columns(z, first_column)
    p = jnp.exp(z - top[..., None] - log_sum[..., None])
    d_log_sum = cotangents.log_sum[..., None]  # [*B, 1]
    # Not d_log_sum * p alone: where the logits hold NaN or inf, 0 * p is NaN.
    grad = jnp.where(d_log_sum == 0, 0.0, d_log_sum * p)  # [*B, C]
    grad += jnp.where(column == labels[..., None], cotangents.label_logit[..., None], 0)
    grad += cotangents.logit_sum[..., None]
    if cotangents.number_logits.shape[-1]:
        grad += to_columns(cotangents.number_logits, number_of_column)
    fixed = (column >= vocab_size) | (logits.astype(jnp.float32) <= MASKED_LOGIT)
    return jnp.where(fixed, 0.0, grad).astype(logits.dtype)


def to_columns(
    d_number: Float32[Array, "*B K"], number_of_column: Ids
) -> Float32[Array, "*B C"]:
    """Puts what belongs to K numbers into their columns, 0 elsewhere.

    A gather from a table with one column of zeros more, and not a scatter, so that it
    fuses with the sum it joins.

    Args:
        d_number: [*B, K].
        number_of_column: [C], which number each column is, K for none.

    Returns:
        f32[*B, C].
    """
    padding = [(0, 0)] * (d_number.ndim - 1) + [(0, 1)]
    return jnp.take(jnp.pad(d_number, padding), number_of_column, axis=-1, mode="clip")


def column_to_number_index(
    columns: int, token_ids: Int32[np.ndarray, "K"]
) -> Int32[np.ndarray, "C"]:
    """Which number token each of the first C columns is, K where it is none.

    Args:
        columns: C.
        token_ids: the number tokens.

    Returns:
        i32[C] in [0, K].
    """
    number = np.full(columns, len(token_ids), np.int32)
    number[token_ids] = np.arange(len(token_ids), dtype=np.int32)
    return number


def _real_logits(
    logits: Array, first_column: FirstColumn, vocab_size: int
) -> Float32[Array, "*B C"]:
    """Logits in float32, with MASKED_LOGIT for padded columns and for -inf."""
    z = jnp.maximum(logits.astype(jnp.float32), MASKED_LOGIT)
    if isinstance(first_column, int) and first_column + z.shape[-1] <= vocab_size:
        return z
    return jnp.where(_columns(z, first_column) < vocab_size, z, MASKED_LOGIT)


def _columns(z: Array, first_column: FirstColumn) -> Int[Array, "*B C"]:
    """The index in the vocabulary of each column, in the shape of z."""
    return first_column + jax.lax.broadcasted_iota(jnp.int32, z.shape, z.ndim - 1)


def _inside(places: Array, columns: int) -> Array:
    return (places >= 0) & (places < columns)

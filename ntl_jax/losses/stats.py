"""NumberStats: the few numbers a position that every loss is made from.

One pass over the logits gives them, and one pass back gives the gradient of any mixture
of losses: no second softmax, no one-hot of the vocabulary kept in memory.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int

from ntl_jax.losses.positions import check_labels, safe_labels
from ntl_jax.number_vocab import NumberVocab

# Stands in for a padded column and for a logit of -inf. Finite, so that sums over the
# vocabulary, and 0 times any loss, stay finite.
MASKED_LOGIT = -1e30


class NumberStats(NamedTuple):
    """What the losses read from the logits z of a position, all float32.

    Attributes:
        lse: [*B], log sum_j exp(z_j) over the V real columns.
        label_logit: [*B], the logit of the label; of column 0 where it is ignored.
        number_logits: [*B, K], the logits of ``vocab.token_ids``.
        logit_sum: [*B], sum_j z_j over the V real columns.
    """

    lse: Float32[Array, "*B"]
    label_logit: Float32[Array, "*B"]
    number_logits: Float32[Array, "*B K"]
    logit_sum: Float32[Array, "*B"]


def stats_from_logits(
    logits: Float[Array, "*B V"],
    labels: Int[Array, "*B"],
    vocab: NumberVocab,
    *,
    ignore_index: int = -100,
) -> NumberStats:
    """Reads the NumberStats off dense logits.

    The gradient takes any cotangent, goes to the logits only, in their dtype, and is
    exactly 0 at a position whose cotangents are all 0, whatever its logits hold.

    Args:
        logits: [*B, V] of any floating dtype. Columns from ``vocab.vocab_size`` on are
            padding: they have no probability and no gradient. So have logits of -inf.
        labels: token ids [*B]. Ids outside [0, V) are clipped.
        vocab: the number tokens.
        ignore_index: the label that counts nothing.

    Returns:
        NumberStats over [*B], float32.

    Raises:
        TypeError: for integer logits or floating labels.
        ValueError: if the shapes differ or the logits have too few columns.

    >>> vocab = NumberVocab.from_mapping({"a": 0, "1": 1, "2": 2}, vocab_size=3)
    >>> stats = stats_from_logits(jnp.zeros((1, 3)), jnp.array([2]), vocab)
    >>> round(float(stats.lse[0]), 4), stats.number_logits.shape  # log 3
    (1.0986, (1, 2))
    """
    check_labels(logits, labels)
    vocab.check_columns(logits.shape[-1])
    labels = safe_labels(labels, vocab.vocab_size, ignore_index=ignore_index)
    return _dense_stats(vocab.vocab_size, vocab, logits, labels)


def stats_without_numbers(
    logits: Float[Array, "*B V"],
    labels: Int[Array, "*B"],
    vocab_size: int,
    *,
    ignore_index: int = -100,
) -> NumberStats:
    """Like `stats_from_logits`, for a loss that reads no numbers.

    Args:
        logits: [*B, V] of any floating dtype.
        labels: token ids [*B].
        vocab_size: the real columns of the logits; the rest are padding.
        ignore_index: the label that counts nothing.

    Returns:
        NumberStats over [*B], float32, with K = 0.
    """
    check_labels(logits, labels)
    labels = safe_labels(labels, vocab_size, ignore_index=ignore_index)
    return _dense_stats(vocab_size, None, logits, labels)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _dense_stats(vocab_size, vocab, logits, labels) -> NumberStats:
    return _forward(vocab_size, vocab, logits, labels)[0]


def _forward(vocab_size, vocab, logits, labels):
    z = _real_logits(logits, vocab_size)  # [*B, V]
    column = _columns(z)
    top = jnp.max(z, axis=-1)  # [*B]
    log_sum = jnp.log(jnp.sum(jnp.exp(z - top[..., None]), axis=-1))
    # A masked sum, unlike a gather, fuses with the others and leaves a vocabulary that
    # is sharded where it is.
    label_logit = jnp.sum(jnp.where(column == labels[..., None], z, 0.0), axis=-1)
    logit_sum = jnp.sum(jnp.where(column < vocab_size, z, 0.0), axis=-1)
    token_ids = np.zeros(0, np.int32) if vocab is None else vocab.token_ids
    number_logits = jnp.take(logits, token_ids, axis=-1, mode="clip")  # [*B, K]
    number_logits = jnp.maximum(number_logits.astype(jnp.float32), MASKED_LOGIT)
    stats = NumberStats(top + log_sum, label_logit, number_logits, logit_sum)
    # Both parts of lse: its float32 sum would round the softmax of logits near 1e4.
    return stats, (logits, labels, top, log_sum)


def _backward(vocab_size, vocab, residuals, cotangent: NumberStats):
    logits, labels, top, log_sum = residuals
    z = _real_logits(logits, vocab_size)  # [*B, V]
    column = _columns(z)
    p = jnp.exp(z - top[..., None] - log_sum[..., None])
    d_lse = cotangent.lse[..., None]  # [*B, 1]
    # Not d_lse * p alone: where the logits hold NaN or inf, 0 * p is NaN.
    grad = jnp.where(d_lse == 0, 0.0, d_lse * p)  # [*B, V]
    grad += jnp.where(column == labels[..., None], cotangent.label_logit[..., None], 0)
    grad += cotangent.logit_sum[..., None]
    if vocab is not None:
        grad += _to_columns(cotangent.number_logits, vocab, logits.shape[-1])
    fixed = (column >= vocab_size) | (logits.astype(jnp.float32) <= MASKED_LOGIT)
    return jnp.where(fixed, 0.0, grad).astype(logits.dtype), None


_dense_stats.defvjp(_forward, _backward)


def _real_logits(logits: Array, vocab_size: int) -> Float32[Array, "*B V"]:
    """Logits in float32, with MASKED_LOGIT for padded columns and for -inf."""
    z = jnp.maximum(logits.astype(jnp.float32), MASKED_LOGIT)
    if logits.shape[-1] == vocab_size:
        return z
    return jnp.where(_columns(z) < vocab_size, z, MASKED_LOGIT)


def _columns(z: Array) -> Int[Array, "*B V"]:
    """The index of each column, in the shape of z."""
    return jax.lax.broadcasted_iota(jnp.int32, z.shape, z.ndim - 1)


def _to_columns(
    d_number: Float32[Array, "*B K"], vocab: NumberVocab, columns: int
) -> Float32[Array, "*B V"]:
    """Puts the gradient of the number logits into their columns, 0 elsewhere.

    A gather from a table with one column of zeros more, and not a scatter, so that it
    fuses with the sum it joins.
    """
    source = np.full(columns, len(vocab), np.int32)
    source[vocab.token_ids] = np.arange(len(vocab), dtype=np.int32)
    padding = [(0, 0)] * (d_number.ndim - 1) + [(0, 1)]
    return jnp.take(jnp.pad(d_number, padding), source, axis=-1, mode="clip")

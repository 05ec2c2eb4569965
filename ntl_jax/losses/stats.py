"""NumberStats: the few numbers a position that every loss is made from.

One pass over the logits gives them, and one pass back gives the gradient of any mixture
of losses: no second softmax, no one-hot of the vocabulary kept in memory.
"""

from functools import partial
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int

from ntl_jax.kernels.logit_stats.dispatch import AxisName, logit_stats, logit_stats_vjp
from ntl_jax.kernels.logit_stats.reference import MASKED_LOGIT as MASKED_LOGIT
from ntl_jax.kernels.logit_stats.reference import (
    ColumnCotangents,
    column_to_number_index,
    to_columns,
)
from ntl_jax.losses.checks import check_labels, check_vocab
from ntl_jax.losses.targets import clip_labels
from ntl_jax.numbers.vocab import NumberVocab
from ntl_jax.sharding.auto_axes import on_auto_axes


class NumberStats(NamedTuple):
    """What the losses read from the logits z of a position, all float32.

    All but ``top`` are relative to the largest logit, so that logits with a common
    offset keep their digits: differences of two fields are exact where those of
    logits near 1e4 would be rounded to 1e-3. Gradients take ``top`` for a constant,
    which is exact, since a common offset of the other fields belongs to ``log_sum``.

    Attributes:
        log_sum: [*B], log sum_j exp(z_j - top) over the V real columns.
        label_logit: [*B], z_y - top of the label y; of column 0 where it is ignored.
        number_logits: [*B, K], z_k - top of ``vocab.token_ids``.
        logit_sum: [*B], sum_j (z_j - top) over the V real columns.
        top: [*B], max_j z_j.
    """

    log_sum: Float32[Array, "*B"]
    label_logit: Float32[Array, "*B"]
    number_logits: Float32[Array, "*B K"]
    logit_sum: Float32[Array, "*B"]
    top: Float32[Array, "*B"]

    @property
    def lse(self) -> Float32[Array, "*B"]:
        """[*B], log sum_j exp(z_j). Subtract nothing from it: take ``log_sum``."""
        return self.top + self.log_sum


def check_stats(stats: NumberStats, shape: tuple[int, ...]) -> None:
    """Raises unless these are NumberStats over labels of this shape, no logits, say."""
    if not isinstance(stats, NumberStats):
        raise TypeError(
            f"stats must be NumberStats, not {type(stats).__name__}: take "
            "stats_from_logits(logits, labels, vocab)."
        )
    if stats.log_sum.shape != shape:  # they may broadcast, to a loss of something else
        raise ValueError(
            f"stats over {stats.log_sum.shape} do not match labels of shape {shape}: "
            "take both of the same positions."
        )


@on_auto_axes(labels=1)
def stats_from_logits(
    logits: Float[Array, "*B V"],
    labels: Int[Array, "*B"],
    vocab: NumberVocab,
    *,
    ignore_index: int = -100,
    axis_name: AxisName = None,
) -> NumberStats:
    """Reads the NumberStats off dense logits.

    The gradient takes any cotangent, goes to the logits only, in their dtype, and is
    exactly 0 at a position whose cotangents are all 0, whatever its logits hold.

    Under ``jit`` the logits may be sharded in any way, the vocabulary too: only a few
    numbers a position travel between devices. Where a mesh of the axes data, fsdp and
    tensor is set, GPUs lay out anew what is not cut by rows over the first two and by
    columns over the last. Inside ``shard_map`` name the mesh axes that share out the
    vocabulary.

    Args:
        logits: [*B, V] of any floating dtype. Columns from ``vocab.vocab_size`` on are
            padding: they have no probability and no gradient. So have logits of -inf.
        labels: token ids [*B]. Ids outside [0, V) are clipped.
        vocab: the number tokens.
        ignore_index: the label that counts nothing.
        axis_name: inside ``shard_map``, the mesh axis (or axes, major first) that the
            columns are sharded over; the logits are then this device's V / shards
            columns, the labels ids of the whole vocabulary, and the stats those of the
            whole vocabulary. Under ``check_vma=False`` differentiate inside: from
            outside, the gradient arrives divided by the number of shards.

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
    shards = 1 if axis_name is None else jax.lax.axis_size(axis_name)
    check_vocab(vocab)
    vocab.check_columns(logits.shape[-1] * shards)
    labels = clip_labels(labels, vocab.vocab_size, ignore_index=ignore_index)
    return _dense_stats(vocab.vocab_size, vocab, axis_name, logits, labels)


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
    labels = clip_labels(labels, vocab_size, ignore_index=ignore_index)
    return _dense_stats(vocab_size, None, None, logits, labels)


def stats_of_numbers(
    logits: Float[Array, "*B V"],
    labels: Int[Array, "*B"],
    vocab: NumberVocab,
    *,
    ignore_index: int = -100,
) -> NumberStats:
    """Like `stats_from_logits`, for a loss that reads the number logits alone.

    It looks at K columns only, which is many times faster forward.

    Args:
        logits: [*B, V] of any floating dtype.
        labels: token ids [*B].
        vocab: the number tokens.
        ignore_index: the label that counts nothing.

    Returns:
        NumberStats over [*B], float32, 0 but for the number logits, which are those
        of the model (``top`` is 0).
    """
    del ignore_index
    check_labels(logits, labels)
    check_vocab(vocab)
    vocab.check_columns(logits.shape[-1])
    nothing = jnp.zeros(labels.shape, jnp.float32)
    numbers = cast(Array, _number_logits(vocab, logits))
    return NumberStats(nothing, nothing, numbers, nothing, top=nothing)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _number_logits(vocab: NumberVocab, logits):
    numbers = jnp.take(logits, vocab.token_ids, axis=-1, mode="clip")  # [*B, K]
    return jnp.maximum(numbers.astype(jnp.float32), MASKED_LOGIT)


def _numbers_forward(vocab, logits):
    return _number_logits(vocab, logits), logits


def _numbers_backward(vocab, logits, cotangent):
    gradient = to_columns(
        cotangent, column_to_number_index(logits.shape[-1], vocab.token_ids)
    )
    # Zeros at -inf; and reading the logits keeps the gradient sharded as they are.
    fixed = logits.astype(jnp.float32) <= MASKED_LOGIT
    return (jnp.where(fixed, 0.0, gradient).astype(logits.dtype),)


_number_logits.defvjp(_numbers_forward, _numbers_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _dense_stats(vocab_size, vocab, axis_name, logits, labels) -> NumberStats:
    return _forward(vocab_size, vocab, axis_name, logits, labels)[0]


def _forward(vocab_size, vocab, axis_name, logits, labels):
    sums = logit_stats(vocab_size, vocab, axis_name, logits, labels)
    log_sum, top = jnp.log(sums.exp_sum), sums.top
    stats = NumberStats(
        log_sum,
        sums.label_logit - top,
        sums.number_logits - top[..., None],
        sums.logit_sum,
        top,
    )
    return stats, (logits, labels, top, log_sum)


def _backward(vocab_size, vocab, axis_name, residuals, cotangent: NumberStats):
    logits, labels, top, log_sum = residuals
    cotangents = ColumnCotangents(
        log_sum=cotangent.log_sum,
        label_logit=cotangent.label_logit,
        logit_sum=cotangent.logit_sum,
        number_logits=cotangent.number_logits,
    )
    gradient = logit_stats_vjp(
        vocab_size, vocab, axis_name, logits, labels, top, log_sum, cotangents
    )
    return gradient, None


_dense_stats.defvjp(_forward, _backward)

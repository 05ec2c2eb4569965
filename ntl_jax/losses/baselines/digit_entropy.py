"""DEL, the digit entropy loss: binary cross-entropies under the digits' own softmax."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Int

from ntl_jax.losses.checks import check_digits
from ntl_jax.losses.on_logits import on_logits
from ntl_jax.losses.reduction import Reduction
from ntl_jax.losses.row_scans import row_index
from ntl_jax.losses.softmax import logits_of_numbers, number_probabilities
from ntl_jax.losses.spans import NumberSpans, number_spans
from ntl_jax.losses.stats import NumberStats
from ntl_jax.losses.targets import number_targets
from ntl_jax.numbers.vocab import NumberVocab
from ntl_jax.sharding.auto_axes import on_auto_axes

_LOG_DECAY = math.log(1.02)  # of a decimal's weight from place to place


def digit_entropy(
    logits: Float[Array, "*B T V"],
    labels: Int[Array, "*B T"],
    vocab: NumberVocab,
    *,
    paper_compat: bool = False,
    weights: Float[Array, "*B T"] | Bool[Array, "*B T"] | None = None,
    reduction: Reduction = None,
    segment_ids: Int[Array, "*B T"] | None = None,
    ignore_index: int = -100,
) -> Float32[Array, "..."]:
    """The digit entropy loss; see `digit_entropy_from_stats` for the formula.

    Args:
        logits: [*B, T, V] of any floating dtype; columns from ``vocab.vocab_size`` on
            are padding. A constant added to all of them changes this loss.
        labels: token ids [*B, T]; a row is the last axis.
        vocab: the number tokens, each worth one digit.
        paper_compat: whether the decimals of a number that begins with its point weigh
            as the digits of a whole number.
        weights: non-negative weights [*B, T]; 1 where None.
        reduction: None, "sum", or "mean" over the weight of digit labels.
        segment_ids: which of several packed texts a position is of [*B, T].
        ignore_index: the label that counts nothing.

    Returns:
        float32, [*B, T] or a scalar; exactly 0, in value and gradient, where the label
        is no digit, is ignored or has weight 0.

    Raises:
        TypeError, ValueError: as `ntl_jax.losses.stats_from_logits` does, and for a
            number token that is no single digit.

    >>> tokens = {str(d): d for d in range(10)} | {".": 10, "a": 11}
    >>> vocab = NumberVocab.from_mapping(tokens, vocab_size=12)
    >>> labels = jnp.array([1, 2, 10, 3])  # 12.3, with weights 4, 2 and 0.96
    >>> loss = digit_entropy(jnp.zeros((4, 12)), labels, vocab)
    >>> [round(float(x), 3) for x in loss]
    [0.277, 0.139, 0.0, 0.067]
    """
    return on_logits(
        digit_entropy_from_stats,
        logits,
        labels,
        vocab,
        weights=weights,
        reduction=reduction,
        ignore_index=ignore_index,
        numbers_only=True,
        paper_compat=paper_compat,
        segment_ids=segment_ids,
    )


@on_auto_axes(labels=1)
def digit_entropy_from_stats(
    stats: NumberStats,
    labels: Int[Array, "*B T"],
    vocab: NumberVocab,
    *,
    paper_compat: bool = False,
    weights: Float[Array, "*B T"] | Bool[Array, "*B T"] | None = None,
    segment_ids: Int[Array, "*B T"] | None = None,
    ignore_index: int = -100,
) -> tuple[Float32[Array, "*B T"], Float32[Array, "*B T"]]:
    """The digit entropy loss of a position whose label is digit k = y.

    w / K sum_k q_k b_k, where b_k = log(1 + exp(z_k)) - [k = y] z_k,
    q is the softmax of the K digit logits z, and both have a gradient

    w = 2 (e + 1) for a whole digit e places left of the units, 1.02^e for a decimal,
    where e is -2 for the first: 12.34 has 4, 2, 0.961 and 0.942. Of several points in
    a number the first counts. The weights are part of the value: the mean over digits
    is that of the paper, in which long numbers count for more.

    b reads raw logits, not probabilities: a constant on all of them changes value and
    gradient, and logits must be scaled as the model's own softmax has them. Distance
    plays no part.

    Its weight beside cross-entropy: the released scripts say 0.01 and 0.1. In the one
    that says 0.01, 32 micro-batches on each of 4 devices add up what is averaged here,
    so that it trained with 1.28 times this mean. Begin with 1.

    Args:
        stats: NumberStats over [*B, T].
        labels: token ids [*B, T]; a row is the last axis.
        vocab: the number tokens, each worth one digit.
        paper_compat: whether a number that begins with its point, such as .55, weighs
            as if it had none (4, 2), as in the released code, and not as decimals.
        weights: non-negative weights [*B, T]; 1 where None.
        segment_ids: which of several packed texts a position is of [*B, T].
        ignore_index: the label that counts nothing, and ends a number.

    Returns:
        (value, weight), both f32[*B, T]: the loss, at least 0, exactly 0 where the
        weight is 0; and what each counts.

    Raises:
        ValueError: for a number token that is no single digit.

    Source: DEL (arXiv 2605.20369), ``PolyU-VCLab/DEL``, which joins the numbers on both
    sides of ignored labels and of rows.
    """
    check_digits(vocab)
    targets = number_targets(labels, vocab, weights, ignore_index=ignore_index)
    spans = number_spans(
        labels,
        vocab,
        points="always",
        segment_ids=segment_ids,
        ignore_index=ignore_index,
    )
    q = number_probabilities(stats, targets, "numbers")  # [*B, T, K]
    top = jnp.where(targets.mask, stats.top, 0.0)
    z = logits_of_numbers(stats, targets) + top[..., None]
    label = jax.nn.one_hot(targets.row, len(vocab), dtype=jnp.bool_)
    # log(1 + exp(z)) - z is log(1 + exp(-z)), which loses no digits for large z.
    entropy = jnp.mean(q * jax.nn.softplus(jnp.where(label, -z, z)), axis=-1)
    loss = _place_weight(spans, paper_compat) * entropy
    return jnp.where(targets.mask, loss, 0.0), targets.weight


def _place_weight(spans: NumberSpans, paper_compat: bool) -> Float32[Array, "*B T"]:
    """2 (e + 1) for e >= 0, 1.02^e below, at digits."""
    e = spans.exponent
    if paper_compat:
        e = jnp.where(spans.leads, spans.end - row_index(e), e)
    e = jnp.where(spans.digit, e, 0).astype(jnp.float32)
    return jnp.where(e >= 0, 2 * (e + 1), jnp.exp(_LOG_DECAY * e))

"""Cross-entropy that knows ignored labels and padded columns."""

import math

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Int

from ntl_jax.losses.checks import check_labels
from ntl_jax.losses.reduction import Reduction, reduce_tokens
from ntl_jax.losses.stats import NumberStats, check_stats, stats_without_numbers
from ntl_jax.losses.targets import token_weights
from ntl_jax.numbers.vocab import NumberVocab
from ntl_jax.sharding.auto_axes import on_auto_axes

_LARGEST_LSE = 1e15  # its square, times any vocabulary, is a finite float32


@on_auto_axes(labels=1)
def cross_entropy(
    logits: Float[Array, "*B V"],
    labels: Int[Array, "*B"],
    *,
    vocab_size: int | None = None,
    weights: Float[Array, "*B"] | Bool[Array, "*B"] | None = None,
    reduction: Reduction = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    ignore_index: int = -100,
) -> Float32[Array, "..."]:
    """Cross-entropy on logits; see `cross_entropy_from_stats` for the formula.

    Args:
        logits: [*B, V] of any floating dtype.
        labels: token ids [*B].
        vocab_size: the real columns, where the logits have padded ones after them.
        weights: non-negative weights [*B]; 1 where None.
        reduction: None, "sum", or "mean" over the weight of labels not ignored.
        label_smoothing: the share of the target spread over the real vocabulary.
        z_loss: the coefficient of lse^2, which keeps logits from drifting.
        ignore_index: the label that counts nothing.

    Returns:
        float32 nats, [*B] or a scalar; exactly 0, in value and gradient, where the
        label is ignored or has weight 0.

    Raises:
        TypeError, ValueError: as `ntl_jax.losses.stats_from_logits` and
            `cross_entropy_from_stats` do, and for an unknown reduction.

    >>> loss = cross_entropy(jnp.zeros((2, 8)), jnp.array([3, -100]))
    >>> print(loss.round(3))  # log 8, and an ignored label
    [2.079 0.   ]

    Source: ``torch.nn.functional.cross_entropy``; z-loss from PaLM (2022), section 5.
    """
    check_labels(logits, labels)
    columns = logits.shape[-1]
    vocab_size = columns if vocab_size is None else vocab_size
    if not 0 < vocab_size <= columns:
        raise ValueError(
            f"vocab_size={vocab_size} does not fit logits of {columns} columns."
        )
    stats = stats_without_numbers(logits, labels, vocab_size, ignore_index=ignore_index)
    weight = token_weights(labels, weights, ignore_index=ignore_index)
    value = _cross_entropy(stats, weight, vocab_size, label_smoothing, z_loss)
    return reduce_tokens(value, weight, reduction)


@on_auto_axes(labels=1)
def cross_entropy_from_stats(
    stats: NumberStats,
    labels: Int[Array, "*B"],
    vocab: NumberVocab,
    *,
    weights: Float[Array, "*B"] | Bool[Array, "*B"] | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> tuple[Float32[Array, "*B"], Float32[Array, "*B"]]:
    """Cross-entropy of a position with logits z, label y and V real columns.

    (1 - s) (lse - z_y) + s (lse - mean_j z_j) + c lse^2, where lse = log sum_j exp(z_j)

    Args:
        stats: NumberStats over [*B].
        labels: token ids [*B].
        vocab: the number tokens; only its ``vocab_size`` is read.
        weights: non-negative weights [*B]; 1 where None.
        ignore_index: the label that counts nothing.
        label_smoothing: s, the share of the target spread over the vocabulary.
        z_loss: c.

    Returns:
        (value, weight), both f32[*B]: nats, exactly 0 where the weight is 0, and what
        each counts.

    Raises:
        ValueError: for a label_smoothing outside [0, 1), or a z_loss that is negative
            or not finite.

    Source: as `cross_entropy`.
    """
    weight = token_weights(labels, weights, ignore_index=ignore_index)
    vocab_size = vocab.vocab_size
    return _cross_entropy(stats, weight, vocab_size, label_smoothing, z_loss), weight


def _cross_entropy(
    stats: NumberStats,
    weight: Float32[Array, "*B"],
    vocab_size: int,
    label_smoothing: float,
    z_loss: float,
) -> Float32[Array, "*B"]:
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing must be in [0, 1), not {label_smoothing}.")
    if not 0 <= z_loss < math.inf:
        raise ValueError(f"z_loss must be 0 or positive, and finite, not {z_loss}.")
    check_stats(stats, weight.shape)
    mask = weight != 0
    # Masked before the arithmetic too: a NaN that nobody counts has no gradient.
    log_sum = jnp.where(mask, stats.log_sum, 0.0)
    value = log_sum - jnp.where(mask, stats.label_logit, 0.0)
    if label_smoothing:
        mean_logit = jnp.where(mask, stats.logit_sum, 0.0) / vocab_size
        value = (1 - label_smoothing) * value + label_smoothing * (log_sum - mean_logit)
    if z_loss:
        # The clip is for a position without a single finite logit: its lse is -1e30.
        lse = log_sum + jnp.where(mask, stats.top, 0.0)
        value += z_loss * jnp.clip(lse, -_LARGEST_LSE, _LARGEST_LSE) ** 2
    return value

"""NTL-WAS: the Wasserstein-1 distance from the predicted digit to the true one."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int

from ntl_jax.losses.number_softmax import Support, finish, number_probabilities
from ntl_jax.losses.on_logits import on_logits
from ntl_jax.losses.positions import number_targets
from ntl_jax.losses.reduction import Reduction
from ntl_jax.losses.stats import NumberStats
from ntl_jax.number_vocab import NumberVocab


def ntl_was(
    logits: Float[Array, "*B V"],
    labels: Int[Array, "*B"],
    vocab: NumberVocab,
    *,
    weights: Float[Array, "*B"] | Bool[Array, "*B"] | None = None,
    reduction: Reduction = None,
    reweigh: bool = False,
    support: Support = "numbers",
    ignore_index: int = -100,
) -> Float32[Array, "..."]:
    """NTL-WAS on logits; see `ntl_was_from_stats` for the formula.

    Args:
        logits: [*B, V] of any floating dtype; columns from ``vocab.vocab_size`` on are
            padding.
        labels: token ids [*B].
        vocab: the number tokens.
        weights: non-negative weights [*B]; 1 where None.
        reduction: None, "sum", or "mean" over the weight of number labels.
        reweigh: whether to charge for mass that is not on numbers.
        support: "numbers" or "full".
        ignore_index: the label that counts nothing.

    Returns:
        float32, [*B] or a scalar, in the units of ``vocab.values``; exactly 0, in value
        and gradient, where the label is no number, is ignored or has weight 0.

    Raises:
        TypeError, ValueError: as `ntl_jax.losses.stats_from_logits` does, and for an
            unknown reduction or support.

    >>> digits = {str(i): i for i in range(10)} | {"a": 10}
    >>> vocab = NumberVocab.from_mapping(digits, vocab_size=11)
    >>> print(ntl_was(jnp.zeros((3, 11)), jnp.array([4, 0, 10]), vocab).round(3))
    [2.5 4.5 0. ]
    """
    return on_logits(
        ntl_was_from_stats,
        logits,
        labels,
        vocab,
        weights=weights,
        reduction=reduction,
        ignore_index=ignore_index,
        reweigh=reweigh,
        support=support,
    )


def ntl_was_from_stats(
    stats: NumberStats,
    labels: Int[Array, "*B"],
    vocab: NumberVocab,
    *,
    weights: Float[Array, "*B"] | Bool[Array, "*B"] | None = None,
    ignore_index: int = -100,
    reweigh: bool = False,
    support: Support = "numbers",
) -> tuple[Float32[Array, "*B"], Float32[Array, "*B"]]:
    """NTL-WAS of a position whose label is the number y.

    sum_k q_k |v_k - y|, where q is the distribution over number tokens worth v

    For a single true number this is the exact Wasserstein-1 distance, for any spacing
    of the values and in any order.

    Args:
        stats: NumberStats over [*B].
        labels: token ids [*B].
        vocab: the number tokens.
        weights: non-negative weights [*B]; 1 where None.
        ignore_index: the label that counts nothing.
        reweigh: whether to charge ``1.01 (v_max - v_min)`` for mass off the numbers.
        support: "numbers" for a q that sums to 1, "full" for the number part of the
            softmax over the vocabulary.

    Returns:
        (value, weight), both f32[*B]: the distance, in [0, v_max - v_min] unless
        reweighed, exactly 0 where the weight is 0; and what each counts.

    Source: Regress, Don't Guess (ICML 2025), equation NTL-WAS; ntloss 0.3.2,
    ``NTLoss``.
    """
    targets = number_targets(labels, vocab, weights, ignore_index=ignore_index)
    q = number_probabilities(stats, targets, support)  # [*B, K]
    values = jnp.broadcast_to(jnp.asarray(vocab.values), q.shape)  # [*B, K]
    distance = jnp.abs(values - targets.value[..., None])
    loss = jnp.sum(q * distance, axis=-1)  # [*B]
    worst = jnp.asarray(np.ptp(vocab.values))
    return finish(loss, stats, targets, support=support, reweigh=reweigh, worst=worst)

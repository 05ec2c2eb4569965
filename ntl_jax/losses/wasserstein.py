"""NTL-WAS: the Wasserstein-1 distance from the predicted digit to the true one."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int

from ntl_jax.losses.distances import check_costs
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
    distance: Float[Array, "K K"] | None = None,
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
        distance: what each wrong number costs, such as `distances.squashed` gives;
            |v_k - y| where None.
        reweigh: whether to charge for mass that is not on numbers.
        support: "numbers" or "full".
        ignore_index: the label that counts nothing.

    Returns:
        float32, [*B] or a scalar, in the units of the distance; exactly 0, in value
        and gradient, where the label is no number, is ignored or has weight 0.

    Raises:
        TypeError, ValueError: as `ntl_jax.losses.stats_from_logits` does, for an
            unknown reduction or support, and for a distance that is no cost matrix.

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
        distance=distance,
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
    distance: Float[Array, "K K"] | None = None,
    reweigh: bool = False,
    support: Support = "numbers",
) -> tuple[Float32[Array, "*B"], Float32[Array, "*B"]]:
    """NTL-WAS of a position whose label is the number y.

    sum_k q_k d(y, v_k), where q is the distribution over number tokens worth v, and d
    is |v_k - y| or row y of a matrix

    For a single true number this is the exact cost of transport: with |v_k - y| the
    Wasserstein-1 distance, for any spacing of the values and in any order.

    Args:
        stats: NumberStats over [*B].
        labels: token ids [*B].
        vocab: the number tokens.
        weights: non-negative weights [*B]; 1 where None.
        ignore_index: the label that counts nothing.
        distance: [K, K], row y the costs of a true y, in the order of
            ``vocab.token_ids`` (see `ntl_jax.losses.distances`); |v_k - y| where None.
        reweigh: whether to charge 1.01 times the largest distance between any two
            numbers, ``v_max - v_min`` without a matrix, for mass off the numbers.
        support: "numbers" for a q that sums to 1, "full" for the number part of the
            softmax over the vocabulary.

    Returns:
        (value, weight), both f32[*B]: the expected distance, between 0 and the largest
        distance unless reweighed, exactly 0 where the weight is 0; and what each
        counts.

    Raises:
        TypeError, ValueError: for a distance that is no cost matrix.

    Source: Regress, Don't Guess (ICML 2025), equation NTL-WAS; ntloss 0.3.2,
    ``NTLoss``, and with `distances.squashed` its ``squash_factor``.
    """
    targets = number_targets(labels, vocab, weights, ignore_index=ignore_index)
    q = number_probabilities(stats, targets, support)  # [*B, K]
    if distance is None:
        values = jnp.broadcast_to(jnp.asarray(vocab.values), q.shape)  # [*B, K]
        cost = jnp.abs(values - targets.value[..., None])
        worst = jnp.asarray(np.ptp(vocab.values))
    else:
        matrix = check_costs(distance, vocab)
        cost = jnp.take(matrix, targets.row, axis=0, mode="clip")  # [*B, K]
        worst = jnp.max(matrix)
    loss = jnp.sum(q * cost, axis=-1)  # [*B]
    return finish(loss, stats, targets, support=support, reweigh=reweigh, worst=worst)

"""NTL-WAS: the Wasserstein-1 distance from the predicted numbers to the true ones."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int

from ntl_jax.losses.checks import check_floating
from ntl_jax.losses.distances import check_costs
from ntl_jax.losses.on_logits import on_logits
from ntl_jax.losses.reduction import Reduction
from ntl_jax.losses.softmax import (
    Support,
    abs_zero_grad,
    number_probabilities,
    reweigh_and_mask,
)
from ntl_jax.losses.stats import NumberStats
from ntl_jax.losses.targets import NumberTargets, number_targets
from ntl_jax.numbers.vocab import NumberVocab
from ntl_jax.sharding.auto_axes import on_auto_axes

# Up to here one small matrix product, whatever the order of the values, is cheaper than
# to sort the columns and to scan them.
_FEW_NUMBERS = 128


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

    Source: as `ntl_was_from_stats`.
    """
    return on_logits(
        ntl_was_from_stats,
        logits,
        labels,
        vocab,
        weights=weights,
        reduction=reduction,
        ignore_index=ignore_index,
        numbers_only=support == "numbers" and not reweigh,
        distance=distance,
        reweigh=reweigh,
        support=support,
    )


@on_auto_axes(labels=1)
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
    return reweigh_and_mask(
        loss, stats, targets, support=support, reweigh=reweigh, worst=worst
    )


def ntl_was_cdf(
    logits: Float[Array, "*B V"],
    labels: Int[Array, "*B"],
    vocab: NumberVocab,
    *,
    target: Float[Array, "*B K"] | None = None,
    weights: Float[Array, "*B"] | Bool[Array, "*B"] | None = None,
    reduction: Reduction = None,
    gaps: bool = True,
    reweigh: bool = False,
    support: Support = "numbers",
    ignore_index: int = -100,
) -> Float32[Array, "..."]:
    """NTL-WAS to any target, on logits; see `ntl_was_cdf_from_stats` for the formula.

    Args:
        logits: [*B, V] of any floating dtype; columns from ``vocab.vocab_size`` on are
            padding.
        labels: token ids [*B].
        vocab: the number tokens.
        target: the true distribution over ``vocab.token_ids``; the label itself where
            None.
        weights: non-negative weights [*B]; 1 where None.
        reduction: None, "sum", or "mean" over the weight of number labels.
        gaps: whether to weigh by the steps between the values.
        reweigh: whether to charge for mass that is not on numbers.
        support: "numbers" or "full".
        ignore_index: the label that counts nothing.

    Returns:
        float32, [*B] or a scalar, in the units of ``vocab.values`` (without gaps, in
        places of the sorted vocabulary); exactly 0, in value and gradient, where the
        label is no number, is ignored or has weight 0.

    Raises:
        TypeError, ValueError: as `ntl_jax.losses.stats_from_logits` does, for an
            unknown reduction or support, and for a target of another shape or dtype.

    >>> digits = {str(i): i for i in range(10)} | {"a": 10}
    >>> vocab = NumberVocab.from_mapping(digits, vocab_size=11)
    >>> logits, labels = jnp.zeros((1, 11)), jnp.array([4])
    >>> print(ntl_was_cdf(logits, labels, vocab))  # as ntl_was
    [2.5]
    >>> even = jnp.full((1, 10), 0.1)  # what the uniform logits say
    >>> print(ntl_was_cdf(logits, labels, vocab, target=even).round(3))
    [0.]

    Source: as `ntl_was_cdf_from_stats`.
    """
    return on_logits(
        ntl_was_cdf_from_stats,
        logits,
        labels,
        vocab,
        target=target,
        weights=weights,
        reduction=reduction,
        ignore_index=ignore_index,
        numbers_only=support == "numbers" and not reweigh,
        gaps=gaps,
        reweigh=reweigh,
        support=support,
    )


@on_auto_axes(labels=1)
def ntl_was_cdf_from_stats(
    stats: NumberStats,
    labels: Int[Array, "*B"],
    vocab: NumberVocab,
    *,
    target: Float[Array, "*B K"] | None = None,
    weights: Float[Array, "*B"] | Bool[Array, "*B"] | None = None,
    ignore_index: int = -100,
    gaps: bool = True,
    reweigh: bool = False,
    support: Support = "numbers",
) -> tuple[Float32[Array, "*B"], Float32[Array, "*B"]]:
    """The Wasserstein-1 distance from the prediction q to a target t over numbers.

    sum_j (v_{j+1} - v_j) |sum_{k<=j} (q_k - t_k)|, over the number tokens in ascending
    order of their values v

    Exact for any target and any spacing. A target that is the label alone gives
    `ntl_was`, which costs less.

    Args:
        stats: NumberStats over [*B].
        labels: token ids [*B]; only positions whose label is a number count.
        vocab: the number tokens.
        target: t, [*B, K] of any floating dtype, not negative, in the order of
            ``vocab.token_ids``, such as smoothed labels; the label where None. Rows are
            divided by their sums, since W1 is between distributions. A row of zeros
            asks for nothing: its value and gradient are 0, its weight is kept.
        weights: non-negative weights [*B]; 1 where None.
        ignore_index: the label that counts nothing.
        gaps: False counts every step as 1, which is how the paper's equation and its
            PyTorch code read. That is W1 only where neighbouring values are 1 apart.
        reweigh: whether to charge 1.01 times the largest distance, ``v_max - v_min`` or
            K - 1 without gaps, for mass off the numbers.
        support: "numbers" for a q that sums to 1. "full" for the number part of the
            softmax over the vocabulary: its mass m is moved to m t, so that the value
            is m W1, as `ntl_was` has it.

    Returns:
        (value, weight), both f32[*B]: the distance, between 0 and the largest one
        unless reweighed, exactly 0 where the weight is 0; and what each counts.

    Raises:
        TypeError, ValueError: for a target that is not floating point or not [*B, K].

    Source: Regress, Don't Guess (ICML 2025), NTL-WAS by cumulative distributions, here
    with the steps between the values.
    """
    targets = number_targets(labels, vocab, weights, ignore_index=ignore_index)
    t, targets = target_distribution(target, targets, vocab)  # [*B, K]
    q = number_probabilities(stats, targets, support)  # [*B, K]
    mass = jnp.sum(q, axis=-1, keepdims=True) if support == "full" else 1.0
    moved = abs_zero_grad(_sums_in_order(q - mass * t, vocab))  # [*B, K-1]
    steps = vocab.gaps if gaps else np.ones_like(vocab.gaps)
    loss = jnp.sum(moved * jnp.broadcast_to(steps, moved.shape), axis=-1)  # [*B]
    worst = jnp.asarray(steps.sum(dtype=np.float64).astype(np.float32))
    return reweigh_and_mask(
        loss, stats, targets, support=support, reweigh=reweigh, worst=worst
    )


def target_distribution(
    target: Float[Array, "*B K"] | None, targets: NumberTargets, vocab: NumberVocab
) -> tuple[Float32[Array, "*B K"], NumberTargets]:
    """The true distribution over number tokens, of each position.

    Args:
        target: [*B, K] with any sums, in the order of ``vocab.token_ids``; the label
            alone where None.
        targets: the positions that count.
        vocab: the number tokens.

    Returns:
        f32[*B, K] with sums of 1 (uniform outside the mask, whatever the target holds
        there), and the targets without the positions whose rows are 0.

    Raises:
        TypeError, ValueError: for a target that is not floating point or not [*B, K].
    """
    shape = (*targets.row.shape, len(vocab))
    if target is None:
        column = jnp.broadcast_to(np.arange(len(vocab), dtype=np.int32), shape)
        return (column == targets.row[..., None]).astype(jnp.float32), targets
    check_floating("target", target)
    if target.shape != shape:
        raise ValueError(
            f"a target of shape {target.shape} does not fit labels of shape "
            f"{targets.row.shape} and {len(vocab)} number tokens: give {shape}, in the "
            "order of vocab.token_ids."
        )
    kept = jnp.asarray(target).astype(jnp.float32)
    kept = jnp.where(targets.mask[..., None], kept, 0.0)
    total = jnp.sum(kept, axis=-1)  # [*B]
    mask = total != 0
    kept = kept / jnp.where(mask, total, 1.0)[..., None]
    kept = jnp.where(mask[..., None], kept, 1 / len(vocab))
    return kept, targets._replace(mask=targets.mask & mask)


def _sums_in_order(
    x: Float32[Array, "*B K"], vocab: NumberVocab
) -> Float32[Array, "*B K-1"]:
    """Cumulative sums over the number tokens by ascending value, without the last."""
    numbers = len(vocab)
    if numbers <= _FEW_NUMBERS:
        rank = np.argsort(vocab.order)  # [K]
        below = rank[:, None] <= np.arange(numbers - 1)[None, :]  # [K, K-1]
        below = jnp.asarray(below.astype(np.float32))
        highest = jax.lax.Precision.HIGHEST
        return jnp.einsum("...k,kj->...j", x, below, precision=highest)
    if (np.diff(vocab.order) != 1).any():
        x = jnp.take(x, vocab.order, axis=-1, mode="clip")
    return jnp.cumsum(x[..., :-1], axis=-1)

"""NTL with a penalty on the expected number: NTL-MSE, NTL-MAE and NTL-Huber."""

import math
from collections.abc import Callable
from functools import partial

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Int

from ntl_jax.losses.checks import scalar
from ntl_jax.losses.on_logits import on_logits
from ntl_jax.losses.predict_numbers import expected_value
from ntl_jax.losses.reduction import Reduction
from ntl_jax.losses.softmax import (
    Support,
    abs_zero_grad,
    number_probabilities,
    reweigh_and_mask,
)
from ntl_jax.losses.stats import NumberStats
from ntl_jax.losses.targets import number_targets
from ntl_jax.numbers.vocab import NumberVocab
from ntl_jax.sharding.auto_axes import on_auto_axes

Penalty = Callable[[Array, Array], Array]


def squared(prediction: Float32[Array, "*B"], target: Float32[Array, "*B"]) -> Array:
    """(prediction - target)^2."""
    return jnp.square(prediction - target)


def absolute(prediction: Float32[Array, "*B"], target: Float32[Array, "*B"]) -> Array:
    """|prediction - target|."""
    return abs_zero_grad(prediction - target)


def huber(
    prediction: Float32[Array, "*B"],
    target: Float32[Array, "*B"],
    delta: float | Float32[Array, ""] = 1.0,
) -> Array:
    """d^2 / 2 where |d| <= delta, delta (|d| - delta / 2) beyond."""
    if isinstance(delta, int | float) and not 0 < delta < math.inf:
        raise ValueError(
            f"delta must be positive and finite, not {delta}; the square without an "
            "end is 0.5 * ntl_mse."
        )
    delta = scalar("delta", delta)
    distance = jnp.abs(prediction - target)
    near = jnp.minimum(distance, delta)
    # Equal to both branches, and never doubles the gradient where they meet.
    return 0.5 * near**2 + delta * (distance - near)


def ntl_dot_product(
    logits: Float[Array, "*B V"],
    labels: Int[Array, "*B"],
    vocab: NumberVocab,
    *,
    penalty: Penalty = squared,
    weights: Float[Array, "*B"] | Bool[Array, "*B"] | None = None,
    reduction: Reduction = None,
    reweigh: bool = False,
    support: Support = "numbers",
    ignore_index: int = -100,
) -> Float32[Array, "..."]:
    """NTL-Lp on logits; see `ntl_dot_product_from_stats` for the formula.

    Args:
        logits: [*B, V] of any floating dtype; columns from ``vocab.vocab_size`` on are
            padding.
        labels: token ids [*B].
        vocab: the number tokens.
        penalty: an elementwise function of (prediction, target), such as those of
            optax.
        weights: non-negative weights [*B]; 1 where None.
        reduction: None, "sum", or "mean" over the weight of number labels.
        reweigh: whether to charge for mass that is not on numbers.
        support: "numbers" or "full".
        ignore_index: the label that counts nothing.

    Returns:
        float32, [*B] or a scalar, in the units of the penalty; exactly 0, in value and
        gradient, where the label is no number, is ignored or has weight 0.

    Raises:
        TypeError, ValueError: as `ntl_jax.losses.stats_from_logits` and
            `ntl_dot_product_from_stats` do, and for an unknown reduction.

    >>> digits = {str(i): i for i in range(10)} | {"a": 10}
    >>> vocab = NumberVocab.from_mapping(digits, vocab_size=11)
    >>> fourth = lambda prediction, target: (prediction - target) ** 4
    >>> loss = ntl_dot_product(jnp.zeros(11), jnp.array(6), vocab, penalty=fourth)
    >>> print(f"{loss:.3f}")  # 1.5^4
    5.062

    Source: as `ntl_dot_product_from_stats`.
    """
    return on_logits(
        ntl_dot_product_from_stats,
        logits,
        labels,
        vocab,
        penalty=penalty,
        weights=weights,
        reduction=reduction,
        ignore_index=ignore_index,
        numbers_only=support == "numbers" and not reweigh,
        reweigh=reweigh,
        support=support,
    )


@on_auto_axes(labels=1)
def ntl_dot_product_from_stats(
    stats: NumberStats,
    labels: Int[Array, "*B"],
    vocab: NumberVocab,
    *,
    penalty: Penalty = squared,
    weights: Float[Array, "*B"] | Bool[Array, "*B"] | None = None,
    ignore_index: int = -100,
    reweigh: bool = False,
    support: Support = "numbers",
) -> tuple[Float32[Array, "*B"], Float32[Array, "*B"]]:
    """NTL-Lp of a position whose label is the number y.

    rho(sum_k q_k v_k, y), where q is the distribution over number tokens worth v

    The minimum is not unique: half the mass on 0 and half on 8 is a perfect 4. Prefer
    `ntl_was`, unless the expected number itself is of use.

    Args:
        stats: NumberStats over [*B].
        labels: token ids [*B].
        vocab: the number tokens.
        penalty: rho, an elementwise function of (prediction, target).
        weights: non-negative weights [*B]; 1 where None.
        ignore_index: the label that counts nothing.
        reweigh: whether to charge 1.01 times the largest penalty, that between v_min
            and v_max, for mass off the numbers.
        support: "numbers" for a q that sums to 1, "full" for the number part of the
            softmax over the vocabulary.

    Returns:
        (value, weight), both f32[*B]: the penalty, exactly 0 where the weight is 0; and
        what each counts.

    Raises:
        ValueError: for a penalty that is not elementwise, or an unknown support.

    Source: Regress, Don't Guess (ICML 2025), equation NTL-MSE; ntloss 0.3.2,
    ``NTLossDotProduct``.
    """
    targets = number_targets(labels, vocab, weights, ignore_index=ignore_index)
    q = number_probabilities(stats, targets, support)  # [*B, K]
    low, high = jnp.min(vocab.values), jnp.max(vocab.values)
    # Off the numbers a pair that the penalty must be able to take anyway, so that no
    # pole or kink of a user's penalty makes a NaN there.
    prediction = jnp.where(targets.mask, expected_value(q, vocab), high)  # [*B]
    loss = penalty(prediction, jnp.where(targets.mask, targets.value, low))
    if jnp.shape(loss) != prediction.shape:
        raise ValueError(
            f"the penalty made shape {jnp.shape(loss)} of predictions of shape "
            f"{prediction.shape}: give one that takes no mean or sum of its own."
        )
    worst = jnp.maximum(jnp.abs(penalty(low, high)), jnp.abs(penalty(high, low)))
    return reweigh_and_mask(
        loss, stats, targets, support=support, reweigh=reweigh, worst=worst
    )


def ntl_mse(
    logits: Float[Array, "*B V"],
    labels: Int[Array, "*B"],
    vocab: NumberVocab,
    **options,
) -> Float32[Array, "..."]:
    """NTL-MSE on logits: (sum_k q_k v_k - y)^2.

    Args:
        logits: [*B, V] of any floating dtype.
        labels: token ids [*B].
        vocab: the number tokens.
        **options: those of `ntl_dot_product`, but for the penalty.

    Returns:
        float32, [*B] or a scalar, in squared units of ``vocab.values``; 0 where
        `ntl_dot_product` is.

    Raises:
        TypeError, ValueError: as `ntl_dot_product` does.

    >>> digits = {str(i): i for i in range(10)} | {"a": 10}
    >>> vocab = NumberVocab.from_mapping(digits, vocab_size=11)
    >>> print(ntl_mse(jnp.zeros((2, 11)), jnp.array([4, 10]), vocab).round(3))
    [0.25 0.  ]

    Source: Regress, Don't Guess (ICML 2025), equation NTL-MSE.
    """
    return ntl_dot_product(logits, labels, vocab, penalty=squared, **options)


def ntl_mae(
    logits: Float[Array, "*B V"],
    labels: Int[Array, "*B"],
    vocab: NumberVocab,
    **options,
) -> Float32[Array, "..."]:
    """NTL-MAE on logits: |sum_k q_k v_k - y|.

    Args:
        logits: [*B, V] of any floating dtype.
        labels: token ids [*B].
        vocab: the number tokens.
        **options: those of `ntl_dot_product`, but for the penalty.

    Returns:
        float32, [*B] or a scalar, in the units of ``vocab.values``; 0 where
        `ntl_dot_product` is.

    Raises:
        TypeError, ValueError: as `ntl_dot_product` does.

    >>> digits = {str(i): i for i in range(10)} | {"a": 10}
    >>> vocab = NumberVocab.from_mapping(digits, vocab_size=11)
    >>> print(f"{ntl_mae(jnp.zeros(11), jnp.array(6), vocab):.3f}")  # 4.5 on average
    1.500

    Source: ntloss 0.3.2, ``NTLossDotProduct`` with ``torch.nn.functional.l1_loss``.
    """
    return ntl_dot_product(logits, labels, vocab, penalty=absolute, **options)


def ntl_huber(
    logits: Float[Array, "*B V"],
    labels: Int[Array, "*B"],
    vocab: NumberVocab,
    *,
    delta: float | Float32[Array, ""] = 1.0,
    **options,
) -> Float32[Array, "..."]:
    """NTL-Huber on logits: `huber` of the expected number and the true one.

    Args:
        logits: [*B, V] of any floating dtype.
        labels: token ids [*B].
        vocab: the number tokens.
        delta: where the penalty turns from square to straight, in the units of
            ``vocab.values``.
        **options: those of `ntl_dot_product`, but for the penalty.

    Returns:
        float32, [*B] or a scalar, in squared units of ``vocab.values``; 0 where
        `ntl_dot_product` is.

    Raises:
        TypeError, ValueError: as `ntl_dot_product` does, and for a delta that is not
            positive and finite, or no scalar.

    >>> digits = {str(i): i for i in range(10)} | {"a": 10}
    >>> vocab = NumberVocab.from_mapping(digits, vocab_size=11)
    >>> print(f"{ntl_huber(jnp.zeros(11), jnp.array(6), vocab):.3f}")  # 1.5 - 1 / 2
    1.000

    Source: ntloss 0.3.2, ``NTLossDotProduct`` with ``torch.nn.functional.huber_loss``.
    """
    penalty = partial(huber, delta=delta)
    return ntl_dot_product(logits, labels, vocab, penalty=penalty, **options)


def ntl_mse_from_stats(
    stats: NumberStats, labels: Int[Array, "*B"], vocab: NumberVocab, **options
) -> tuple[Float32[Array, "*B"], Float32[Array, "*B"]]:
    """NTL-MSE; `ntl_dot_product_from_stats` with the squared penalty.

    Args:
        stats: NumberStats over [*B].
        labels: token ids [*B].
        vocab: the number tokens.
        **options: its other options.

    Returns:
        (value, weight), both f32[*B]: in squared units of ``vocab.values``, exactly
        0 where the weight is 0; and what each counts.

    Raises:
        ValueError: as `ntl_dot_product_from_stats` does.
    """
    return ntl_dot_product_from_stats(stats, labels, vocab, penalty=squared, **options)


def ntl_mae_from_stats(
    stats: NumberStats, labels: Int[Array, "*B"], vocab: NumberVocab, **options
) -> tuple[Float32[Array, "*B"], Float32[Array, "*B"]]:
    """NTL-MAE; `ntl_dot_product_from_stats` with the absolute penalty.

    Args:
        stats: NumberStats over [*B].
        labels: token ids [*B].
        vocab: the number tokens.
        **options: its other options.

    Returns:
        (value, weight), both f32[*B]: in the units of ``vocab.values``, exactly
        0 where the weight is 0; and what each counts.

    Raises:
        ValueError: as `ntl_dot_product_from_stats` does.
    """
    return ntl_dot_product_from_stats(stats, labels, vocab, penalty=absolute, **options)


def ntl_huber_from_stats(
    stats: NumberStats,
    labels: Int[Array, "*B"],
    vocab: NumberVocab,
    *,
    delta: float | Float32[Array, ""] = 1.0,
    **options,
) -> tuple[Float32[Array, "*B"], Float32[Array, "*B"]]:
    """NTL-Huber; `ntl_dot_product_from_stats` with the Huber penalty.

    Args:
        stats: NumberStats over [*B].
        labels: token ids [*B].
        vocab: the number tokens.
        delta: as in `ntl_huber`.
        **options: its other options.

    Returns:
        (value, weight), both f32[*B]: in squared units of ``vocab.values``, exactly
        0 where the weight is 0; and what each counts.

    Raises:
        ValueError: as `ntl_dot_product_from_stats` does, or for such a delta as
            `ntl_huber` refuses.
    """
    penalty = partial(huber, delta=delta)
    return ntl_dot_product_from_stats(stats, labels, vocab, penalty=penalty, **options)

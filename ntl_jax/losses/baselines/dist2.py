"""DIST2Loss: the divergence from a target that decays with the squared distance."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Int

from ntl_jax.losses.checks import scalar
from ntl_jax.losses.gaussian import SMALLEST_SIGMA, gaussian_exponents
from ntl_jax.losses.on_logits import on_logits
from ntl_jax.losses.reduction import Reduction
from ntl_jax.losses.softmax import Support, logits_of_numbers
from ntl_jax.losses.stats import NumberStats
from ntl_jax.losses.targets import number_targets
from ntl_jax.numbers.vocab import NumberVocab
from ntl_jax.sharding.auto_axes import on_auto_axes


def dist2(
    logits: Float[Array, "*B V"],
    labels: Int[Array, "*B"],
    vocab: NumberVocab,
    *,
    tau: float | Float[Array, ""] = 1.0,
    weights: Float[Array, "*B"] | Bool[Array, "*B"] | None = None,
    reduction: Reduction = None,
    support: Support = "numbers",
    ignore_index: int = -100,
) -> Float32[Array, "..."]:
    """DIST2Loss on logits; see `dist2_from_stats` for the formula.

    Args:
        logits: [*B, V] of any floating dtype; columns from ``vocab.vocab_size`` on are
            padding.
        labels: token ids [*B].
        vocab: the number tokens.
        tau: the temperature of the target, in squared units of ``vocab.values``.
        weights: non-negative weights [*B]; 1 where None.
        reduction: None, "sum", or "mean" over the weight of number labels.
        support: "numbers" or "full".
        ignore_index: the label that counts nothing.

    Returns:
        float32 nats, [*B] or a scalar; exactly 0, in value and gradient, where the
        label is no number, is ignored or has weight 0.

    Raises:
        TypeError, ValueError: as `ntl_jax.losses.stats_from_logits` does, and for a
            negative tau or an unknown reduction or support.

    >>> digits = {str(i): i for i in range(10)} | {"a": 10}
    >>> vocab = NumberVocab.from_mapping(digits, vocab_size=11)
    >>> print(dist2(jnp.zeros((2, 11)), jnp.array([4, 10]), vocab).round(4))
    [1.2311 0.    ]
    """
    return on_logits(
        dist2_from_stats,
        logits,
        labels,
        vocab,
        weights=weights,
        reduction=reduction,
        ignore_index=ignore_index,
        numbers_only=support == "numbers",
        tau=tau,
        support=support,
    )


@on_auto_axes(labels=1)
def dist2_from_stats(
    stats: NumberStats,
    labels: Int[Array, "*B"],
    vocab: NumberVocab,
    *,
    tau: float | Float[Array, ""] = 1.0,
    weights: Float[Array, "*B"] | Bool[Array, "*B"] | None = None,
    ignore_index: int = -100,
    support: Support = "numbers",
) -> tuple[Float32[Array, "*B"], Float32[Array, "*B"]]:
    """DIST2Loss of a position whose label is the number y.

    KL(f || q) = sum_k f_k log(f_k / q_k), where f = softmax_k(-(v_k - y)^2 / tau)

    f is the target of `ntl_jax.losses.gaussian_targets` with tau = 2 sigma^2. The
    minimum is q = f and not the label alone, so weigh it well below the cross-entropy
    it is added to: the paper's weight is 0.1.

    Args:
        stats: NumberStats over [*B].
        labels: token ids [*B].
        vocab: the number tokens, worth v.
        tau: the temperature, in squared units of ``vocab.values``; may be traced. The
            paper's is 1 for digits. At 0 f is the label (shared with tokens of its
            value) and the loss is cross-entropy over the numbers.
        weights: non-negative weights [*B]; 1 where None. The released reward-model
            training gives a digit as many as there are from it to the end of its
            number, which `ntl_jax.losses.digit_weights` makes with ``form="linear",
            base=2.0, points="never"``.
        ignore_index: the label that counts nothing.
        support: "numbers" for a q that sums to 1, as in the released code; "full" for
            the softmax over the vocabulary, as in the paper, which adds -log of the
            mass that is on numbers.

    Returns:
        (value, weight), both f32[*B]: nats, at least 0 but for rounding, exactly 0
        where the weight is 0; and what each counts.

    Raises:
        ValueError: for a negative tau, one that is no scalar, or an unknown support.

    Source: DIST2Loss (ICLR 2026, arXiv 2503.02379).
    """
    if isinstance(tau, int | float):
        if not tau >= 0:
            raise ValueError(f"tau must be 0 or positive, not {tau}.")
        sigma = math.sqrt(tau / 2)
    else:
        # From the smallest width on, below which all targets are alike: at 0 itself
        # the square root has no derivative.
        sigma = jnp.sqrt(jnp.maximum(scalar("tau", tau) / 2, SMALLEST_SIGMA**2))
    targets = number_targets(labels, vocab, weights, ignore_index=ignore_index)
    mask = targets.mask[..., None]  # [*B, 1]
    # Logs of f from its exponents, never of f itself, which can be 0.
    log_f = jax.nn.log_softmax(gaussian_exponents(targets.value, vocab, sigma), axis=-1)
    logits = logits_of_numbers(stats, targets)  # [*B, K]
    if support == "numbers":
        log_q = jax.nn.log_softmax(logits, axis=-1)
    elif support == "full":
        log_q = logits - jnp.where(mask, stats.log_sum[..., None], 0.0)
    else:
        raise ValueError(f"support must be 'numbers' or 'full', not {support!r}.")
    loss = jnp.sum(jnp.exp(log_f) * (log_f - log_q), axis=-1)
    return jnp.where(targets.mask, loss, 0.0), targets.weight

"""Gaussian cross-entropy: soft targets that give a number's neighbours a share."""

import math
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Int

from ntl_jax.losses.checks import scalar
from ntl_jax.losses.on_logits import on_logits
from ntl_jax.losses.reduction import Reduction
from ntl_jax.losses.stats import NumberStats, check_stats
from ntl_jax.losses.targets import NumberTargets, number_targets, token_weights
from ntl_jax.numbers.vocab import NumberVocab
from ntl_jax.sharding.auto_axes import on_auto_axes

GaussianForm = Literal["normalised", "density", "doubled"]

SMALLEST_SIGMA = 1e-6  # below it even the density times a masked logit is finite
_FURTHEST = 1e3  # in sigmas; exp(-1e6 / 2) is 0 and its square is finite


def gaussian_targets(
    labels: Int[Array, "*B"],
    vocab: NumberVocab,
    sigma: float | Float[Array, ""] = 0.5,
    *,
    form: GaussianForm = "normalised",
    ignore_index: int = -100,
) -> Float32[Array, "*B K"]:
    """Soft targets around each number label.

    g_k = exp(-(v_k - y)^2 / (2 sigma^2)) / Z

    Tokens of equal value, such as 1 and a word-starting 1, get equal shares.

    Args:
        labels: token ids [*B].
        vocab: the number tokens.
        sigma: the width, in the units of ``vocab.values``; may be traced. 0 stands for
            the one-hot target of the label, in every form.
        form: what Z is. "normalised": the sum over the number tokens. "density":
            sqrt(2 pi sigma^2), so that targets need not sum to 1. "doubled": the sum
            too, once the label's own term has been doubled.
        ignore_index: the label that counts nothing.

    Returns:
        f32[*B, K], at least 0, in the order of ``vocab.token_ids``; all 0 where the
        label is no number.

    Raises:
        ValueError: for a negative sigma, one that is no scalar, or an unknown form.

    >>> digits = {str(i): i for i in range(10)} | {"a": 10}
    >>> vocab = NumberVocab.from_mapping(digits, vocab_size=11)
    >>> targets = gaussian_targets(jnp.array(4), vocab, sigma=0.5)
    >>> [round(float(g), 3) for g in targets[2:7]]
    [0.0, 0.106, 0.787, 0.106, 0.0]

    Source: Regress, Don't Guess (ICML 2025), Gaussian label smoothing: printed as
    "density", released as "normalised" with 1e-8 more in Z, which float32 cannot tell
    from Z >= 1. "doubled": Token-Mol (Nature Communications, 2025),
    ``jkwang93/Token-Mol``.
    """
    targets = number_targets(labels, vocab, ignore_index=ignore_index)
    return _soft_targets(targets, vocab, sigma, form)


def gaussian_exponents(
    value: Float32[Array, "*B"], vocab: NumberVocab, sigma: float | Float[Array, ""]
) -> Float32[Array, "*B K"]:
    """-(v_k - y)^2 / (2 sigma^2), finite and with a finite gradient for any sigma >= 0.

    Args:
        value: y [*B].
        vocab: the number tokens, worth v.
        sigma: the width, 1e-6 where it is less; what is more than 1000 of it away
            counts as 1000 away.

    Returns:
        f32[*B, K] in [-5e5, 0].
    """
    sigma = jnp.maximum(scalar("sigma", sigma), SMALLEST_SIGMA)
    shape = (*value.shape, len(vocab))
    distance = jnp.abs(jnp.broadcast_to(vocab.values, shape) - value[..., None])
    # The cap comes before the division: no overflow, and none in the gradient.
    return -0.5 * jnp.square(jnp.minimum(distance, _FURTHEST * sigma) / sigma)


def gaussian_cross_entropy(
    logits: Float[Array, "*B V"],
    labels: Int[Array, "*B"],
    vocab: NumberVocab,
    *,
    sigma: float | Float[Array, ""] = 0.5,
    form: GaussianForm = "normalised",
    weights: Float[Array, "*B"] | Bool[Array, "*B"] | None = None,
    reduction: Reduction = None,
    ignore_index: int = -100,
) -> Float32[Array, "..."]:
    """Gaussian cross-entropy; see `gaussian_cross_entropy_from_stats` for the formula.

    Args:
        logits: [*B, V] of any floating dtype; columns from ``vocab.vocab_size`` on are
            padding.
        labels: token ids [*B].
        vocab: the number tokens.
        sigma: the width of the target, in the units of ``vocab.values``.
        form: as in `gaussian_targets`.
        weights: non-negative weights [*B]; 1 where None.
        reduction: None, "sum", or "mean" over the weight of labels not ignored.
        ignore_index: the label that counts nothing.

    Returns:
        float32 nats, [*B] or a scalar; exactly 0, in value and gradient, where the
        label is ignored or has weight 0.

    Raises:
        TypeError, ValueError: as `ntl_jax.losses.stats_from_logits` and
            `gaussian_targets` do.

    >>> digits = {str(i): i for i in range(10)} | {"a": 10}
    >>> vocab = NumberVocab.from_mapping(digits, vocab_size=11)
    >>> logits = jnp.zeros((1, 11)).at[0, 3].set(5.0)  # says 3 where 4 is right
    >>> label = jnp.array([4])
    >>> for sigma in (1.0, 0.0):
    ...     loss = gaussian_cross_entropy(logits, label, vocab, sigma=sigma)
    ...     print(f"{float(loss[0]):.3f}")
    3.855
    5.065

    Source: as `gaussian_cross_entropy_from_stats`.
    """
    return on_logits(
        gaussian_cross_entropy_from_stats,
        logits,
        labels,
        vocab,
        weights=weights,
        reduction=reduction,
        ignore_index=ignore_index,
        sigma=sigma,
        form=form,
    )


@on_auto_axes(labels=1)
def gaussian_cross_entropy_from_stats(
    stats: NumberStats,
    labels: Int[Array, "*B"],
    vocab: NumberVocab,
    *,
    sigma: float | Float[Array, ""] = 0.5,
    form: GaussianForm = "normalised",
    weights: Float[Array, "*B"] | Bool[Array, "*B"] | None = None,
    ignore_index: int = -100,
) -> tuple[Float32[Array, "*B"], Float32[Array, "*B"]]:
    """Cross-entropy against soft targets at numbers, plain cross-entropy elsewhere.

    -sum_k g_k log p_k, where p is the softmax over the whole vocabulary

    It takes the place of cross-entropy: numbers and text both count. Its best guess is
    g, not the label alone. It has no label smoothing of its own: the share that g gives
    to neighbours is the smoothing.

    Args:
        stats: NumberStats over [*B].
        labels: token ids [*B].
        vocab: the number tokens.
        sigma: the width of g, in the units of ``vocab.values``; may be traced. 0 is
            plain cross-entropy. The paper's best is 0.5; its code has 1.0.
        form: as in `gaussian_targets`.
        weights: non-negative weights [*B]; 1 where None.
        ignore_index: the label that counts nothing.

    Returns:
        (value, weight), both f32[*B]: nats, exactly 0 where the weight is 0; and what
        each counts.

    Raises:
        ValueError: as `gaussian_targets` does.

    With NTL to the same soft target:

    >>> from ntl_jax.losses import ntl_was_cdf_from_stats, stats_from_logits
    >>> digits = {str(i): i for i in range(10)} | {"a": 10}
    >>> vocab = NumberVocab.from_mapping(digits, vocab_size=11)
    >>> labels = jnp.array([4, 10])
    >>> stats = stats_from_logits(jnp.zeros((2, 11)), labels, vocab)
    >>> target = gaussian_targets(labels, vocab, sigma=0.5)
    >>> gce, _ = gaussian_cross_entropy_from_stats(stats, labels, vocab, sigma=0.5)
    >>> ntl, _ = ntl_was_cdf_from_stats(stats, labels, vocab, target=target)
    >>> [round(float(x), 3) for x in gce + 0.3 * ntl]
    [3.084, 2.398]

    Source: Regress, Don't Guess (ICML 2025), Gaussian cross-entropy.
    """
    weight = token_weights(labels, weights, ignore_index=ignore_index)
    targets = number_targets(labels, vocab, weights, ignore_index=ignore_index)
    g = _soft_targets(targets, vocab, sigma, form)  # [*B, K], 0 off the numbers
    check_stats(stats, weight.shape)
    counts = weight != 0
    # Masked before the arithmetic: a NaN that nobody counts has no gradient.
    log_sum = jnp.where(counts, stats.log_sum, 0.0)
    plain = log_sum - jnp.where(counts, stats.label_logit, 0.0)
    logits = jnp.where(targets.mask[..., None], stats.number_logits, 0.0)  # [*B, K]
    soft = jnp.sum(g * (log_sum[..., None] - logits), axis=-1)
    return jnp.where(targets.mask, soft, plain), weight


def _soft_targets(
    targets: NumberTargets,
    vocab: NumberVocab,
    sigma: float | Float[Array, ""],
    form: GaussianForm,
) -> Float32[Array, "*B K"]:
    if isinstance(sigma, int | float) and not sigma >= 0:
        raise ValueError(f"sigma must be 0 or positive, not {sigma}.")
    label = jax.nn.one_hot(targets.row, len(vocab), dtype=jnp.float32)  # [*B, K]
    sigma = scalar("sigma", sigma)
    g = jnp.exp(gaussian_exponents(targets.value, vocab, sigma))
    if form == "doubled":
        g = g + label
    if form in ("normalised", "doubled"):
        g = g / jnp.sum(g, axis=-1, keepdims=True)
    elif form == "density":
        g = g / (math.sqrt(2 * math.pi) * jnp.maximum(sigma, SMALLEST_SIGMA))
    else:
        raise ValueError(
            f"form must be 'normalised', 'density' or 'doubled', not {form!r}."
        )
    g = jnp.where(sigma == 0, label, g)
    return jnp.where(targets.mask[..., None], g, 0.0)

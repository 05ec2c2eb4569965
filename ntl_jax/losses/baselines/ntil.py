"""NTIL, the numerical token integrity loss: digits by place, and whole numbers."""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Int, Key, UInt32

from ntl_jax.losses.checks import Scalar, check_digits, negative_power_of_ten, scalar
from ntl_jax.losses.on_logits import on_logits
from ntl_jax.losses.reduction import Reduction, unstack
from ntl_jax.losses.softmax import (
    abs_zero_grad,
    logits_of_numbers,
    shift_logits,
    softmax_mean,
)
from ntl_jax.losses.span_sums import span_sum
from ntl_jax.losses.spans import NumberSpans, number_spans
from ntl_jax.losses.stats import NumberStats
from ntl_jax.losses.targets import number_targets, token_weights
from ntl_jax.numbers.vocab import NumberVocab
from ntl_jax.sharding.auto_axes import on_auto_axes

DigitMode = Literal["straight_through", "expected"]

_REACH = 64  # positions of a number that count: float32 sees no further
_TINY = 1e-10
_LARGEST_SCALE = 1e30


def ntil(
    logits: Float[Array, "*B T V"],
    labels: Int[Array, "*B T"],
    vocab: NumberVocab,
    *,
    weights: Float[Array, "*B T"] | Bool[Array, "*B T"] | None = None,
    reduction: Reduction = None,
    ignore_index: int = -100,
    **options,
) -> Float32[Array, "..."]:
    """The numerical token integrity loss; see `ntil_from_stats` for the formula.

    Args:
        logits: [*B, T, V] of any floating dtype; columns from ``vocab.vocab_size`` on
            are padding.
        labels: token ids [*B, T]; a row is the last axis.
        vocab: the number tokens, each worth one digit.
        weights: non-negative weights [*B, T]; 1 where None.
        reduction: None for one loss a row [*B], "sum", or "mean" over the rows with a
            label that counts.
        ignore_index: the label that counts nothing.
        **options: those of `ntil_from_stats`.

    Returns:
        float32, [*B] or a scalar.

    Raises:
        TypeError, ValueError: as `ntl_jax.losses.stats_from_logits` and
            `ntil_from_stats` do.

    >>> from ntl_jax import cross_entropy
    >>> tokens = {str(d): d for d in range(10)} | {"a": 10}
    >>> vocab = NumberVocab.from_mapping(tokens, vocab_size=11)
    >>> logits, labels = jnp.zeros((1, 3, 11)), jnp.array([[10, 4, 2]])
    >>> loss = ntil(logits, labels, vocab, reduction="mean")
    >>> ce = cross_entropy(logits, labels, reduction="mean")
    >>> print(f"{ntil_total(ce, loss) / ce:.3f}")  # the value says nothing of the loss
    1.300
    """
    return on_logits(
        ntil_from_stats,
        logits,
        labels,
        vocab,
        weights=weights,
        reduction=reduction,
        ignore_index=ignore_index,
        numbers_only=True,
        **options,
    )


@on_auto_axes(labels=1)
def ntil_from_stats(
    stats: NumberStats,
    labels: Int[Array, "*B T"],
    vocab: NumberVocab,
    *,
    digits: DigitMode = "straight_through",
    key: Key[Array, ""] | UInt32[Array, "2"] | None = None,
    noise: Scalar = 0.01,
    temperature: Scalar = 0.1,
    place_base: Scalar = 1.2,
    token_weight: Scalar = 1.0,
    relative_weight: Scalar = 0.2,
    magnitude_weight: Scalar = 0.2,
    weights: Float[Array, "*B T"] | Bool[Array, "*B T"] | None = None,
    segment_ids: Int[Array, "*B T"] | None = None,
    ignore_index: int = -100,
) -> tuple[Float32[Array, "*B"], Float32[Array, "*B"]]:
    """The numerical token integrity loss of a row, from its digits and its numbers.

    a mean_digits g^j sum_k q_k |v_k - y|
      + b mean_numbers |X - Y| / (max(X, Y) + 1)
      + c mean_numbers |log(X + 1) - log(Y + 1)|

    j is how many digits of the number stand to the right, Y the number that the labels
    spell, X the one that is predicted. A number is a run of digits: points, signs and
    commas part it, and leading zeros are worth nothing.

    "straight_through", the released form, takes the most likely digits for X, with the
    gradient of a softmax at a low temperature. That gradient is gone once the best
    digit leads by a logit or so: in effect only the first term trains. "expected", not
    of the paper, takes the expected digits, and has a gradient everywhere.

    It is added to cross-entropy by `ntil_total`.

    Args:
        stats: NumberStats over [*B, T].
        labels: token ids [*B, T]; a row is the last axis.
        vocab: the number tokens, each worth one digit.
        digits: how X is put together.
        key: for Gumbel noise on the digit logits of "straight_through"; no noise where
            None.
        noise: the size of that noise.
        temperature: that of the softmax of "straight_through", above 0.
        place_base: g, above 0; 1 makes the first term NTL-WAS. May be traced, as may
            the three weights. j counts up to 63.
        token_weight: a; 1 as released.
        relative_weight: b; 0.2 as released, 0 in its example.
        magnitude_weight: c; 0.2 as released, 0 in its example.
        weights: non-negative weights [*B, T]; 1 where None. A number has the weight of
            its first digit. A digit of weight 0 counts as predicted right.
        segment_ids: which of several packed texts a position is of [*B, T].
        ignore_index: the label that counts nothing, and ends a number.

    Returns:
        (value, weight), both f32[*B]: one loss a row, 0 for a row without digits; and 1
        for each row that has a label that counts, 0 for the others.

    Raises:
        ValueError: for a number token that is no single digit, an unknown way to take
            digits, a key it has no use for, or a temperature or base that is not above
            0.

    Source: NTIL (ACL 2025, arXiv 2505.13077), ``xfey/NTIL``. Numbers may have any
    length here: they are compared in units of their leading place, of which less than
    1e-30 is taken for 1e-30.
    """
    check_digits(vocab)
    _check_options(digits, key, temperature, place_base)
    targets = number_targets(labels, vocab, weights, ignore_index=ignore_index)
    spans = number_spans(
        labels,
        vocab,
        points="never",
        segment_ids=segment_ids,
        ignore_index=ignore_index,
    )
    z = logits_of_numbers(stats, targets)  # [*B, T, K]
    values = jnp.broadcast_to(jnp.asarray(vocab.values), z.shape)
    off_by = jnp.abs(values - targets.value[..., None])
    distance = softmax_mean(shift_logits(z), off_by)  # [*B, T]
    if digits == "expected":
        predicted = softmax_mean(shift_logits(z), values)
    else:
        if key is not None:
            gumbel = jax.random.gumbel(key, z.shape, jnp.float32)
            z = z + scalar("noise", noise) * gumbel
        predicted = _most_likely(z, values, scalar("temperature", temperature))
    right = jnp.where(targets.mask, jnp.minimum(spans.right, _REACH - 1), 0)
    place = jnp.power(scalar("place_base", place_base), right.astype(jnp.float32))
    by_token = jnp.where(targets.mask, place * distance, 0.0)
    truth = number_targets(labels, vocab, ignore_index=ignore_index).value
    predicted = jnp.where(targets.mask, predicted, truth)
    relative, logarithmic = _number_errors(predicted, truth, spans)
    of_numbers = scalar("relative_weight", relative_weight) * relative
    of_numbers += scalar("magnitude_weight", magnitude_weight) * logarithmic
    of_number = jnp.where(spans.first, targets.weight, 0.0)
    of_tokens = scalar("token_weight", token_weight) * by_token
    counts = token_weights(labels, weights, ignore_index=ignore_index) != 0
    # All sums along the rows in one: on a GPU each is a kernel.
    along = (of_tokens * targets.weight, targets.weight, of_numbers * of_number)
    along += (of_number, counts.astype(jnp.float32))
    sums = unstack(jnp.sum(jnp.stack(along), axis=-1))  # 5 x [*B]
    loss = _ratio(sums[0], sums[1]) + _ratio(sums[2], sums[3])
    return loss, (sums[4] > 0).astype(jnp.float32)


def ntil_total(
    ce: Float[Array, ""], loss: Float[Array, ""], *, coefficient: Scalar = 0.3
) -> Float32[Array, ""]:
    """Cross-entropy and NTIL, the latter rescaled to the size of the former.

    ce + c s loss, where s = ce / (loss + 1e-10) has no gradient

    The value is (1 + c) ce whatever the loss, so log the loss by itself. The gradient
    is that of ce + c s loss.

    Args:
        ce: the mean cross-entropy, a scalar.
        loss: the mean NTIL, a scalar.
        coefficient: c; 0.3 as released.

    Returns:
        A float32 scalar; ce alone where the loss is 0.

    Source: NTIL (ACL 2025, arXiv 2505.13077), ``xfey/NTIL``.
    """
    ce, loss = ce.astype(jnp.float32), loss.astype(jnp.float32)
    scale = jnp.minimum(ce / (loss + _TINY), _LARGEST_SCALE)
    return ce + scalar("coefficient", coefficient) * jax.lax.stop_gradient(scale) * loss


def _check_options(digits, key, temperature, place_base) -> None:
    if digits not in ("straight_through", "expected"):
        raise ValueError(
            f"digits must be 'straight_through' or 'expected', not {digits!r}."
        )
    if digits == "expected" and key is not None:
        raise ValueError("a key is for digits='straight_through' only: leave it out.")
    for name, value in {"temperature": temperature, "place_base": place_base}.items():
        if isinstance(value, int | float) and not value > 0:
            raise ValueError(f"{name} must be above 0, not {value}.")


def _most_likely(
    z: Float32[Array, "*B T K"],
    values: Float32[Array, "*B T K"],
    temperature: Float32[Array, ""],
) -> Float32[Array, "*B T"]:
    """The most likely digit, with the gradient of the expected one."""
    top = jnp.max(z, axis=-1, keepdims=True)
    hard = jnp.min(jnp.where(z == top, values, jnp.inf), axis=-1)  # the smallest equal
    # The largest is taken off first: a compiler that divides and takes it off in one
    # rounding is off by more than exp bears where logits are huge.
    soft = softmax_mean(shift_logits(z) / temperature, values)
    return jax.lax.stop_gradient(hard) + (soft - jax.lax.stop_gradient(soft))


def _number_errors(
    predicted: Float32[Array, "*B T"],
    truth: Float32[Array, "*B T"],
    spans: NumberSpans,
) -> tuple[Float32[Array, "*B T"], Float32[Array, "*B T"]]:
    """|X - Y| / (max(X, Y) + 1) and |log(X + 1) - log(Y + 1)|, at first digits.

    In units of the leading place, so that no length overflows.
    """
    counts = spans.digit & (spans.left < _REACH)
    place = jnp.where(counts, negative_power_of_ten(spans.left), 0.0)
    guess, truth = (
        span_sum(x * place, spans, reach=_REACH) for x in (predicted, truth)
    )
    one = jnp.where(spans.first, negative_power_of_ten(spans.length - 1), 1.0)
    relative = abs_zero_grad(guess - truth) / (jnp.maximum(guess, truth) + one)
    ratio = abs_zero_grad(jnp.log(guess + one) - jnp.log(truth + one))
    return relative, ratio


def _ratio(
    total: Float32[Array, "*B"], weight: Float32[Array, "*B"]
) -> Float32[Array, "*B"]:
    """total / weight, 0 where there is none."""
    return total / jnp.where(weight == 0, 1.0, weight)

"""Losses on whole numbers: the digits of a number make one value, and one loss."""

from typing import Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int

from ntl_jax.losses.checks import check_digits, negative_power_of_ten
from ntl_jax.losses.on_logits import on_logits
from ntl_jax.losses.reduction import Reduction
from ntl_jax.losses.row_scans import row_index, shift
from ntl_jax.losses.softmax import (
    abs_zero_grad,
    logits_of_numbers,
    reweigh_and_mask,
    shift_logits,
    softmax_mean,
)
from ntl_jax.losses.span_sums import broadcast_first_digit, span_sum
from ntl_jax.losses.spans import NumberSpans, number_spans
from ntl_jax.losses.stats import NumberStats
from ntl_jax.losses.targets import NumberTargets, number_targets, token_weights
from ntl_jax.numbers.vocab import NumberVocab
from ntl_jax.sharding.auto_axes import on_auto_axes

Mode = Literal["decimal", "ntloss"]

# Of a number's positions this many count: float32 has no place further from the leading
# one, even with a comma after every third digit.
_REACH = 64


def number_level_loss(
    logits: Float[Array, "*B T V"],
    labels: Int[Array, "*B T"],
    vocab: NumberVocab,
    *,
    mode: Mode = "decimal",
    log_space: bool = False,
    signs: bool = True,
    commas: bool = False,
    float_level: bool = False,
    max_number_length: int = 20,
    weights: Float[Array, "*B T"] | Bool[Array, "*B T"] | None = None,
    reduction: Reduction = None,
    reweigh: bool = False,
    segment_ids: Int[Array, "*B T"] | None = None,
    ignore_index: int = -100,
) -> Float32[Array, "..."]:
    """A loss on whole numbers; see `number_level_loss_from_stats` for the formulas.

    Args:
        logits: [*B, T, V] of any floating dtype; columns from ``vocab.vocab_size`` on
            are padding.
        labels: token ids [*B, T]; a row is the last axis.
        vocab: the number tokens, each worth one digit.
        mode: "decimal", or "ntloss" for what the PyTorch package computes.
        log_space: whether to compare logarithms ("decimal").
        signs: whether a minus sign counts ("decimal").
        commas: whether commas join groups of three digits ("decimal").
        float_level: whether points join digits ("ntloss").
        max_number_length: the largest power of ten, plus one ("ntloss").
        weights: non-negative weights [*B, T]; 1 where None. A number has the weight of
            its first digit.
        reduction: None, "sum", or "mean" over the weight of numbers.
        reweigh: whether to charge for mass that is not on numbers ("ntloss").
        segment_ids: which of several packed texts a position is of [*B, T].
        ignore_index: the label that counts nothing.

    Returns:
        float32, [*B, T] or a scalar, without unit (in log space in nats), in the
        ranges of `number_level_loss_from_stats`; exactly 0, in value and gradient, but
        at the first digit of a number that counts.

    Raises:
        TypeError, ValueError: as `ntl_jax.losses.stats_from_logits` does; for a number
            token that is no single digit; for an option of the other mode.

    >>> tokens = {str(d): d for d in range(10)} | {".": 10, "-": 11, "a": 12}
    >>> vocab = NumberVocab.from_mapping(tokens, vocab_size=13)
    >>> labels = jnp.array([12, 3, 10, 5, 12, 0])  # "a 3.5 a 0", predicted 4.95, 4.5
    >>> loss = number_level_loss(jnp.zeros((6, 13)), labels, vocab)
    >>> [round(float(x), 3) for x in loss]  # 1.45 / (3.5 + 1) and 4.5 / (0 + 1)
    [0.0, 0.322, 0.0, 0.0, 0.0, 4.5]

    Source: as `number_level_loss_from_stats`.
    """
    return on_logits(
        number_level_loss_from_stats,
        logits,
        labels,
        vocab,
        mode=mode,
        log_space=log_space,
        signs=signs,
        commas=commas,
        float_level=float_level,
        max_number_length=max_number_length,
        weights=weights,
        reduction=reduction,
        reweigh=reweigh,
        segment_ids=segment_ids,
        ignore_index=ignore_index,
    )


@on_auto_axes(labels=1)
def number_level_loss_from_stats(
    stats: NumberStats,
    labels: Int[Array, "*B T"],
    vocab: NumberVocab,
    *,
    mode: Mode = "decimal",
    log_space: bool = False,
    signs: bool = True,
    commas: bool = False,
    float_level: bool = False,
    max_number_length: int = 20,
    weights: Float[Array, "*B T"] | Bool[Array, "*B T"] | None = None,
    reweigh: bool = False,
    segment_ids: Int[Array, "*B T"] | None = None,
    ignore_index: int = -100,
) -> tuple[Float32[Array, "*B T"], Float32[Array, "*B T"]]:
    """The loss of a number Y that the labels spell, at its first digit.

    decimal:            |X - Y| / (|Y| + 10^n)
    decimal, log_space: |slog X - slog Y|,  slog x = sign(x) log(1 + |x|)
    ntloss:             |X - Y| / (X + Y + eps)

    X is Y with each digit replaced by the expected one, sum_k q_k v_k with q the
    softmax over the number tokens at that position. n is the place of Y's leading
    digit, so that the error is relative and yet 0 is a number like others.

    "decimal" reads ``-12.34`` as that. Its sign is predicted too: X is multiplied by
    1 - 2 p, where p is the probability of the minus sign at its position, in the
    softmax over the vocabulary. A minus after a digit, a closing bracket or a letter of
    its word subtracts or joins, and is no sign. Numbers may have any length. A digit or
    sign of weight 0 counts as predicted right. In log space more than 30 leading zeros
    are taken for 30.

    "ntloss" takes digits alone, without sign: 12.34 is 12 and 34, or 1234 with
    ``float_level``; further left than ``max_number_length`` places digits are worth no
    more. Its loss of a number 0 is 1 whatever is predicted, with no gradient.

    Args:
        stats: NumberStats over [*B, T].
        labels: token ids [*B, T]; a row is the last axis.
        vocab: the number tokens, each worth one digit.
        mode: "decimal" or "ntloss".
        log_space: whether to compare logarithms ("decimal").
        signs: whether a minus sign counts ("decimal").
        commas: whether commas join groups of three digits ("decimal").
        float_level: whether a point between two digits joins them ("ntloss").
        max_number_length: the largest power of ten, plus one ("ntloss").
        weights: non-negative weights [*B, T]; 1 where None.
        reweigh: whether to charge 1.01 for mass off the numbers, at the first digit
            ("ntloss").
        segment_ids: which of several packed texts a position is of [*B, T].
        ignore_index: the label that counts nothing.

    Returns:
        (value, weight), both f32[*B, T]: value in [0, 10) for "decimal", from 0 on in
        log space, in [0, 1] for "ntloss" unless reweighed; exactly 0 but at the first
        digit of a number that counts; and the weight of that digit.

    Raises:
        ValueError: for a number token that is no single digit, an unknown mode, an
            option of the other mode, or a max_number_length below 1.

    Source: ntloss 0.3.2, ``NumberLevelLoss``, for "ntloss". The forms of "decimal" are
    this package's own; in log space it is the logarithm of the accuracy ratio.
    """
    _check_options(
        mode,
        decimal={"log_space": log_space, "commas": commas, "signs=False": not signs},
        ntloss={
            "float_level": float_level,
            "reweigh": reweigh,
            "max_number_length": max_number_length != 20,
        },
    )
    if not isinstance(max_number_length, int) or max_number_length < 1:
        raise ValueError(
            f"max_number_length must be a whole number, at least 1, not "
            f"{max_number_length}."
        )
    check_digits(vocab)
    spans = number_spans(
        labels,
        vocab,
        points="one" if mode == "decimal" else "between" if float_level else "never",
        commas=commas,
        segment_ids=segment_ids,
        ignore_index=ignore_index,
    )
    weight = token_weights(labels, weights, ignore_index=ignore_index)
    digits = number_targets(labels, vocab, ignore_index=ignore_index)
    number = _only(digits, spans.first & (weight != 0), weight)
    if mode == "decimal":
        digits = _only(digits, digits.mask & (weight != 0), weight)
        agreement = _sign_agreement(stats, weight, spans) if signs else None
        loss = _decimal(stats, digits, spans, vocab, agreement, log_space)
    else:
        digits = _only(digits, broadcast_first_digit(number.mask, spans), weight)
        loss = _ntloss(stats, digits, spans, vocab, max_number_length)
    return reweigh_and_mask(
        loss,
        stats,
        number,
        support="numbers",
        reweigh=reweigh,
        worst=jnp.float32(1.0),
    )


def _decimal(
    stats: NumberStats,
    digits: NumberTargets,
    spans: NumberSpans,
    vocab: NumberVocab,
    agreement: Float32[Array, "*B T"] | None,
    log_space: bool,
) -> Float32[Array, "*B T"]:
    """The error of X, in units of Y's leading place: no length can overflow."""
    place = negative_power_of_ten(spans.left)
    error = _expected_digits(stats, digits, vocab) - digits.value
    error = span_sum(jnp.where(digits.mask, error * place, 0.0), spans, reach=_REACH)
    truth = jnp.where(spans.digit, digits.value * place, 0.0)
    truth = span_sum(truth, spans, reach=_REACH)  # |Y|
    if agreement is not None:  # X becomes agreement * X, with Y's sign taken off both
        error = agreement * error - (1.0 - agreement) * truth
    if not log_space:
        return abs_zero_grad(error) / (truth + 1.0)
    # A number that begins with its point has tenths for a leading place.
    one = jnp.where(spans.leads, 10.0, negative_power_of_ten(spans.place))
    guess = error + truth
    log_guess, log_truth = jnp.log(jnp.abs(guess) + one), jnp.log(truth + one)
    same_sign = abs_zero_grad(log_guess - log_truth)
    decades = jnp.where(spans.first, spans.place, 0).astype(jnp.float32)
    other_sign = log_guess + log_truth + 2.0 * np.log(10.0).item() * decades
    return jnp.where(guess >= 0, same_sign, other_sign)


def _ntloss(
    stats: NumberStats,
    digits: NumberTargets,
    spans: NumberSpans,
    vocab: NumberVocab,
    max_number_length: int,
) -> Float32[Array, "*B T"]:
    """|X - Y| / (X + Y + eps), all of it over the largest power of ten in it."""
    largest = jnp.minimum(spans.length, max_number_length) - 1
    power = jnp.minimum(spans.right, max_number_length - 1)
    scale = jnp.where(digits.mask, negative_power_of_ten(largest - power), 0.0)
    prediction = span_sum(_expected_digits(stats, digits, vocab) * scale, spans)
    truth = span_sum(digits.value * scale, spans)
    eps = np.finfo(np.float32).eps * negative_power_of_ten(largest)
    return abs_zero_grad(prediction - truth) / (prediction + truth + eps)


def _sign_agreement(
    stats: NumberStats, weight: Float32[Array, "*B T"], spans: NumberSpans
) -> Float32[Array, "*B T"]:
    """The expected sign times the true one, at first digits: 1 where there is none."""
    begins = spans.start == row_index(weight)
    sign = shift(spans.negative & begins, -1) & (weight != 0)
    minus = jnp.where(sign, stats.label_logit, 0.0) - jnp.where(
        sign, stats.log_sum, 0.0
    )
    expected = 2.0 * jnp.exp(jnp.minimum(minus, 0.0)) - 1.0
    # The digit before which it stands, or the one after the point there.
    expected = jnp.where(spans.leads, shift(expected, 2), shift(expected, 1))
    return jnp.where(spans.negative & spans.first, expected, 1.0)


def _expected_digits(
    stats: NumberStats, digits: NumberTargets, vocab: NumberVocab
) -> Float32[Array, "*B T"]:
    """sum_k q_k v_k at the digits that count."""
    z = shift_logits(logits_of_numbers(stats, digits))  # [*B, T, K]
    return softmax_mean(z, jnp.broadcast_to(jnp.asarray(vocab.values), z.shape))


def _only(
    targets: NumberTargets, mask: Bool[Array, "*B T"], weight: Float32[Array, "*B T"]
) -> NumberTargets:
    """The targets of some positions."""
    return targets._replace(mask=mask, weight=jnp.where(mask, weight, 0.0))


def _check_options(mode: str, **options: dict[str, bool]) -> None:
    if mode not in options:
        raise ValueError(f"mode must be 'decimal' or 'ntloss', not {mode!r}.")
    for needed, given in options.items():
        foreign = [name for name, is_given in given.items() if is_given]
        if needed != mode and foreign:
            raise ValueError(f"{', '.join(foreign)}: this needs mode={needed!r}.")

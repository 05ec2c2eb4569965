"""Weights that make the leading digits of a number count more than the last."""

import math
from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float32, Int

from ntl_jax.losses.checks import scalar
from ntl_jax.losses.spans import NumberSpans, Points, number_spans
from ntl_jax.numbers.vocab import NumberVocab
from ntl_jax.sharding.auto_axes import on_auto_axes

Form = Literal["geometric", "linear"]

_HEAVIEST = 1e18  # of a digit; with it, sums over a batch are still finite


@on_auto_axes(labels=0)
def digit_weights(
    labels: Int[Array, "*B T"],
    vocab: NumberVocab,
    *,
    form: Form = "geometric",
    base: float | Float32[Array, ""] = 1.2,
    normalise: bool = False,
    points: Points = "one",
    commas: bool = False,
    segment_ids: Int[Array, "*B T"] | None = None,
    ignore_index: int = -100,
) -> Float32[Array, "*B T"]:
    """How much each digit should count, with j digits of its number to its right.

    geometric: base^j
    linear:    1 + (base - 1) j

    Both give 1 to the last digit and ``base`` to the one before it. Pass the result as
    ``weights`` to any loss; everything but digits keeps the weight 1.

    Args:
        labels: token ids [*B, T]; a row is the last axis.
        vocab: the number tokens, and which tokens are points and commas.
        form: "geometric" or "linear".
        base: the weight of the last digit but one; over 1 for weight on the leading
            digits. May be an array.
        normalise: whether to divide by the mean over the number, so that each number
            keeps as much weight as it has digits.
        points: which points join digits; see `ntl_jax.losses.spans.number_spans`. With
            "never", 12.34 is 12 and 34.
        commas: whether commas join groups of three digits.
        segment_ids: which of several packed texts a position is of [*B, T].
        ignore_index: the label that counts nothing.

    Returns:
        f32[*B, T], non-negative, at most 1e18.

    Raises:
        ValueError: for an unknown form, a base that is not positive, or a linear base
            under 1, whose weights would be negative.

    >>> tokens = {str(d): d for d in range(10)} | {"a": 10}
    >>> vocab = NumberVocab.from_mapping(tokens, vocab_size=11)
    >>> labels = jnp.array([10, 3, 4, 7, 10])  # "a 347 a"
    >>> print(digit_weights(labels, vocab, base=2.0))
    [1. 4. 2. 1. 1.]
    >>> print(digit_weights(labels, vocab, form="linear", base=2.0, normalise=True))
    [1.  1.5 1.  0.5 1. ]

    Source: NTIL (ACL 2025), the weights (1 + sigma)^(n - i - 1) of its token term, for
    "geometric" with base 1.2 and points "never".
    """
    if form not in ("geometric", "linear"):
        raise ValueError(f"form must be 'geometric' or 'linear', not {form!r}.")
    if isinstance(base, int | float) and not 0 < base < math.inf:
        raise ValueError(f"base must be positive and finite, not {base}.")
    if form == "linear" and isinstance(base, int | float) and base < 1:
        raise ValueError(
            f"a linear base must be at least 1, not {base}: weights would be negative. "
            "Use form='geometric' to weigh the last digits more."
        )
    spans = number_spans(
        labels,
        vocab,
        points=points,
        commas=commas,
        segment_ids=segment_ids,
        ignore_index=ignore_index,
    )
    # Elsewhere numbers of one digit, of which no form makes 0 / 0.
    spans = spans._replace(
        left=jnp.where(spans.digit, spans.left, 0),
        right=jnp.where(spans.digit, spans.right, 0),
        length=jnp.where(spans.digit, spans.length, 1),
    )
    rate = scalar("base", base)
    weight_of = _geometric if form == "geometric" else _linear
    return jnp.where(spans.digit, weight_of(spans, rate, normalise), 1.0)


def _linear(
    spans: NumberSpans, base: Float32[Array, ""], normalise: bool
) -> Float32[Array, "*B T"]:
    slope = base - 1.0
    weight = 1.0 + slope * spans.right.astype(jnp.float32)
    if normalise:
        weight /= 1.0 + slope * (spans.length - 1).astype(jnp.float32) / 2.0
    return weight


def _geometric(
    spans: NumberSpans, base: Float32[Array, ""], normalise: bool
) -> Float32[Array, "*B T"]:
    log_base = jnp.log(base)
    if not normalise:
        exponent = spans.right.astype(jnp.float32) * log_base
        return jnp.exp(jnp.minimum(exponent, jnp.log(_HEAVIEST)))
    # Relative to the heaviest digit of the number, so that no length overflows.
    rising = log_base > 0
    decay = jnp.where(rising, -log_base, log_base)
    steps = jnp.where(rising, spans.left, spans.right).astype(jnp.float32)
    length = spans.length.astype(jnp.float32)
    # sum_i exp(i decay) over the digits; for a base of 1 the quotient is 0 / 0.
    flat = decay > -1e-7
    slope = jnp.where(flat, -1.0, decay)
    sloping_total = jnp.expm1(length * slope) / jnp.expm1(slope)
    flat_total = length + decay * length * (length - 1.0) / 2.0
    total = jnp.where(flat, flat_total, sloping_total)
    return jnp.exp(steps * decay) * length / total

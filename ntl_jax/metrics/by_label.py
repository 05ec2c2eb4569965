"""Errors by kind of label: last digit, decimal places, round numbers."""

from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from ntl_jax.metrics.bootstrap import Interval, wilson_interval
from ntl_jax.metrics.pairs import NumberPairs
from ntl_jax.numbers.grammar import Exact

LABEL_TYPES: Mapping[str, Callable[[int], bool]] = {
    "ends_in_0": lambda label: abs(label) % 10 == 0,
    "ends_in_9": lambda label: abs(label) % 10 == 9,
    "power_of_ten": lambda label: label > 1 and _is_power_of_ten(label),
    "power_of_ten_or_1": lambda label: _is_power_of_ten(label),
}
"""Kinds of whole labels; a label may belong to several."""


class ErrorRates(NamedTuple):
    """How answers miss, as shares of all n with Wilson's intervals.

    Attributes:
        n: labels of the kind.
        exact: the prediction is the label.
        over: it is larger.
        under: it is smaller.
        unparsable: there is no prediction. The four shares add up to 1.
    """

    n: int
    exact: Interval | None
    over: Interval | None
    under: Interval | None
    unparsable: Interval | None


class DigitAccuracy(NamedTuple):
    """The n labels with a digit at a place, and the share predicted correctly."""

    n: int
    accuracy: Interval


class ErrorHistograms(NamedTuple):
    """Counts of prediction - label by last digit d of the label.

    Attributes:
        centres: i64[2 limit + 1], -limit..limit; bins are one unit wide.
        counts: i64[10, 2 limit + 1].
        below: i64[10], errors below all bins.
        above: i64[10], errors above all bins.
        unparsable: i64[10], predictions without a number.
    """

    centres: np.ndarray
    counts: np.ndarray
    below: np.ndarray
    above: np.ndarray
    unparsable: np.ndarray


def error_rates(
    pairs: NumberPairs,
    *,
    types: Mapping[str, Callable[[int], bool]] = LABEL_TYPES,
    confidence: float = 0.95,
) -> dict[str, ErrorRates]:
    """How often answers are exact, too large or too small, by kind of label.

    Args:
        pairs: N pairs of numbers.
        types: by name, whether a label belongs to the kind. Only whole labels below
            10^50 can.
        confidence: of the intervals.

    Returns:
        The rates by name, ``"all"`` first; the shares are None where n is 0.

    Example:
        >>> from ntl_jax.metrics import read_pairs
        >>> rates = error_rates(read_pairs(["9", "30", "?"], ["10", "20", "19"]))
        >>> rates["ends_in_0"].n, rates["ends_in_0"].over.value
        (2, 0.5)

    Source: *Regress, Don't Guess* (ICML 2025), table of error rates; there the rates
    are of the readable predictions.
    """
    whole = [_whole(label) for label in pairs.labels]
    members = {"all": np.ones(len(pairs), bool)}
    for name, belongs in types.items():
        members[name] = np.array([y is not None and belongs(y) for y in whole], bool)
    outcomes = (pairs.exact, pairs.order > 0, pairs.order < 0, ~pairs.parsed)
    rates = {}
    for name, member in members.items():
        n = int(member.sum())
        shares = [
            wilson_interval(int((outcome & member).sum()), n, confidence=confidence)
            for outcome in outcomes
        ]
        rates[name] = ErrorRates(n, *shares)
    return rates


def error_histograms(pairs: NumberPairs, *, limit: int = 11) -> ErrorHistograms:
    """Histograms of prediction - label in unit bins, by last digit of whole labels.

    Args:
        pairs: N pairs of numbers.
        limit: centre of the outermost bins.

    Returns:
        The counts. An error halfway between two bins belongs to the upper one.

    Raises:
        ValueError: a negative limit.

    Source: *Regress, Don't Guess* (ICML 2025), figure of error histograms.
    """
    if limit < 0:
        raise ValueError(f"limit must not be negative, got {limit}")
    width = 2 * limit + 1
    whole = [_whole(label) for label in pairs.labels]
    last = np.array([-1 if y is None else abs(y) % 10 for y in whole])
    # Column 0 counts errors below all bins, the last one those above.
    bins = np.clip(np.floor(pairs.error + 0.5) + limit + 1, 0, width + 1).astype(int)
    counts = np.zeros((10, width + 2), np.int64)
    known = pairs.parsed & (last >= 0)
    np.add.at(counts, (last[known], bins[known]), 1)
    silent = last[~pairs.parsed & (last >= 0)]
    return ErrorHistograms(
        np.arange(-limit, limit + 1),
        counts[:, 1:-1],
        counts[:, 0],
        counts[:, -1],
        np.bincount(silent, minlength=10),
    )


def digit_accuracy(
    pairs: NumberPairs,
    *,
    places: range = range(-6, 13),
    confidence: float = 0.95,
) -> dict[int, DigitAccuracy]:
    """Share of digits predicted correctly at each decimal place.

    Labels and predictions are aligned at their decimal points; place k is worth 10^k.
    The places of a label are those it is written with, without leading zeros: 12.50
    has 1, 0, -1 and -2. Signs are not compared; an unreadable prediction has every
    digit wrong, a shorter one has zeros at the missing places.

    Args:
        pairs: N pairs of numbers. Labels that are fractions have no places.
        places: which to score.
        confidence: of the intervals.

    Returns:
        The scores by place, descending, for places that some label has.

    Example:
        >>> from ntl_jax.metrics import read_pairs
        >>> scores = digit_accuracy(read_pairs(["354.1", "7"], ["347.1", "7"]))
        >>> {place: score.accuracy.value for place, score in scores.items()}
        {2: 1.0, 1: 0.0, 0: 0.5, -1: 1.0}

    Source: the metric by integer and decimal place of DEL (arXiv 2605.20369), whose
    alignment is not published.
    """
    wanted = sorted(places, reverse=True)
    right, total = dict.fromkeys(wanted, 0), dict.fromkeys(wanted, 0)
    for label, guess in zip(pairs.labels, pairs.guesses, strict=True):
        if not isinstance(label, Decimal):
            continue
        top, bottom = _extent(label)
        written = [place for place in wanted if bottom <= place <= top]
        hits = [False] * len(written)
        if guess is not None:
            digits = zip(_digits(label, written), _digits(guess, written), strict=True)
            hits = [a == b for a, b in digits]
        for place, hit in zip(written, hits, strict=True):
            total[place] += 1
            right[place] += hit
    scores = {}
    for place, n in total.items():
        share = wilson_interval(right[place], n, confidence=confidence)
        if share is not None:
            scores[place] = DigitAccuracy(n, share)
    return scores


def _extent(number: Decimal) -> tuple[int, int]:
    """The places of the first and last digit, units among them."""
    exponent = int(number.as_tuple().exponent)
    return max(number.adjusted() if number else 0, 0), min(exponent, 0)


def _digits(number: Exact, places: list[int]) -> list[int]:
    """The digits worth 10^place in the decimal expansion."""
    if not isinstance(number, Decimal):
        return [int(abs(number) * Fraction(10) ** -place) % 10 for place in places]
    _, digits, exponent = number.as_tuple()
    units = len(digits) - 1 + int(exponent)  # where in them the units are
    indices = [units - place for place in places]
    return [digits[i] if 0 <= i < len(digits) else 0 for i in indices]


def _whole(label: Exact) -> int | None:
    """The label if it is a whole number of a size below 10^50."""
    if not -(10**50) < label < 10**50:
        return None
    numerator, denominator = label.as_integer_ratio()
    return numerator if denominator == 1 else None


def _is_power_of_ten(label: int) -> bool:
    return str(label).rstrip("0") == "1"

"""The number in each prediction beside that in its reference, read once."""

import dataclasses
import decimal
import functools
from collections.abc import Sequence
from decimal import Decimal

import numpy as np

from ntl_jax.numbers.grammar import Exact, last_number

FARTHEST = 1e100
"""Larger float64 values are clipped to this, so that squares stay finite."""

_PAPER_FARTHEST = 1e10
# Differences and ratios of decimals of any size, without overflow or traps.
_WIDE = decimal.Context(prec=60, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN, traps=[])


@dataclasses.dataclass(frozen=True)
class NumberPairs:
    """N labels and their predictions.

    Differences are taken between the exact numbers and rounded to float64 afterwards,
    so an error of 1 in a number of 25 digits is 1. Only results beyond +-1e100 are
    clipped (see `clipped`). Logarithms need no clipping.

    Attributes:
        labels: N exact numbers.
        guesses: N exact numbers, or None where a prediction contains none.
        paper_compat: errors are those of the paper's code: differences in float64,
            predictions (not labels) clipped to +-1e10.
    """

    labels: tuple[Exact, ...]
    guesses: tuple[Exact | None, ...]
    paper_compat: bool = False

    def __len__(self) -> int:
        return len(self.labels)

    @functools.cached_property
    def parsed(self) -> np.ndarray:
        """bool[N]: the prediction contains a number."""
        return np.array([guess is not None for guess in self.guesses], bool)

    @functools.cached_property
    def order(self) -> np.ndarray:
        """i8[N]: 1 where the prediction is too large, -1 too small, 0 exact or None."""
        signs = [
            0 if guess is None else (guess > label) - (guess < label)
            for guess, label in zip(self.guesses, self.labels, strict=True)
        ]
        return np.array(signs, np.int8)

    @functools.cached_property
    def exact(self) -> np.ndarray:
        """bool[N]: both numbers are equal, exactly."""
        return self.parsed & (self.order == 0)

    @functools.cached_property
    def y(self) -> np.ndarray:
        """f64[N]: the labels."""
        return _floats(self.labels, FARTHEST)

    @functools.cached_property
    def p(self) -> np.ndarray:
        """f64[N]: the predictions, 0 where there are none."""
        limit = _PAPER_FARTHEST if self.paper_compat else FARTHEST
        return _floats(self._filled, limit)

    @functools.cached_property
    def error(self) -> np.ndarray:
        """f64[N]: prediction - label, 0 where there is no prediction."""
        if self.paper_compat:
            return np.where(self.parsed, self.p - self.y, 0.0)
        return np.where(self.parsed, _floats(self._differences, FARTHEST), 0.0)

    @functools.cached_property
    def percentage(self) -> np.ndarray:
        """f64[N]: 100 |error / label|; 0 where the label is 0 or p is missing."""
        if self.paper_compat:
            return 100 * np.abs(self.error / np.where(self.y == 0, np.inf, self.y))
        ratios = [
            _WIDE.divide(difference, _decimal(label)) if label else Decimal(0)
            for difference, label in zip(self._differences, self.labels, strict=True)
        ]
        return np.where(self.parsed, 100 * np.abs(_floats(ratios, FARTHEST)), 0.0)

    @functools.cached_property
    def log_y(self) -> np.ndarray:
        """f64[N]: sign(y) log10(abs(y) + 1) of the labels."""
        return _signed_log(self.labels)

    @functools.cached_property
    def log_p(self) -> np.ndarray:
        """f64[N]: the same of the predictions."""
        if self.paper_compat:
            return np.sign(self.p) * np.log10(np.abs(self.p) + 1.0)
        return _signed_log(self._filled)

    @functools.cached_property
    def clipped(self) -> np.ndarray:
        """bool[N]: the true error is larger than `error`."""
        if self.paper_compat:
            return np.abs(_unlimited(self._filled)) > _PAPER_FARTHEST
        return self.parsed & (np.abs(_unlimited(self._differences)) > FARTHEST)

    def within(self, relative: float, absolute: float = 0.0) -> np.ndarray:
        """bool[N]: abs(p - y) <= absolute + relative abs(y)."""
        if self.paper_compat:
            limit = absolute + relative * np.abs(self.y)
            return self.parsed & (np.abs(self.error) <= limit)
        # The shortest decimals, not the floats: 1% of 100 is 1.
        share, rest = Decimal(str(relative)), Decimal(str(absolute))
        limits = (_WIDE.fma(share, _decimal(y).copy_abs(), rest) for y in self.labels)
        near = [
            difference.copy_abs() <= limit
            for difference, limit in zip(self._differences, limits, strict=True)
        ]
        return self.parsed & np.array(near, bool)

    @functools.cached_property
    def _filled(self) -> list[Exact]:
        return [Decimal(0) if guess is None else guess for guess in self.guesses]

    @functools.cached_property
    def _differences(self) -> list[Decimal]:
        return [
            _WIDE.subtract(_decimal(guess), _decimal(label))
            for guess, label in zip(self._filled, self.labels, strict=True)
        ]


def read_pairs(
    predictions: Sequence[str],
    references: Sequence[str],
    *,
    paper_compat: bool = False,
    fractions: bool = True,
) -> NumberPairs:
    """Reads the last number of each prediction and of its reference.

    Args:
        predictions: N generated texts.
        references: N answers, each with at least one number.
        paper_compat: read and compare numbers as the paper's code does.
        fractions: read 3/4 as one number (not under `paper_compat`).

    Returns:
        The pairs, which all numeric metrics take.

    Raises:
        ValueError: lengths differ, are zero, or a reference contains no number.

    Example:
        >>> pairs = read_pairs(["It is 3/4", "5", "five"], ["0.75", "4", "5"])
        >>> pairs.exact.tolist(), pairs.error.tolist(), pairs.parsed.tolist()
        ([True, False, False], [0.0, 1.0, 0.0], [True, True, False])

    Source: *Regress, Don't Guess* (ICML 2025), its evaluation code, for
    ``paper_compat``.
    """
    if len(predictions) != len(references) or not references:
        raise ValueError(
            f"{len(predictions)} predictions for {len(references)} references; "
            "give one prediction per reference, at least one"
        )
    mode = "paper" if paper_compat else "grammar"

    def read(text: str) -> Exact | None:
        return last_number(text, mode=mode, fractions=fractions)

    return NumberPairs(
        read_labels(references, paper_compat=paper_compat, fractions=fractions),
        tuple(map(read, predictions)),
        paper_compat,
    )


def read_labels(
    references: Sequence[str], *, paper_compat: bool = False, fractions: bool = True
) -> tuple[Exact, ...]:
    """Reads the last number of each reference, as `read_pairs` does.

    Raises:
        ValueError: a reference contains no number.
    """
    mode = "paper" if paper_compat else "grammar"
    labels = []
    for row, text in enumerate(references):
        label = last_number(text, mode=mode, fractions=fractions)
        if label is None:
            raise ValueError(
                f"reference {row} contains no number: {text[:80]!r}; numeric metrics "
                "need one in each reference"
            )
        labels.append(label)
    return tuple(labels)


def mean_of(numbers: Sequence[Exact]) -> Decimal:
    """The mean of at least one number, to sixty digits."""
    total = Decimal(0)
    for number in numbers:
        total = _WIDE.add(total, _decimal(number))
    return _WIDE.divide(total, Decimal(len(numbers)))


def _decimal(number: Exact) -> Decimal:
    """A decimal unchanged, a fraction to sixty digits."""
    if isinstance(number, Decimal):
        return number
    return _WIDE.divide(Decimal(number.numerator), Decimal(number.denominator))


def _unlimited(numbers: Sequence[Exact]) -> np.ndarray:
    """f64[N], infinite beyond 1.8e308."""
    return np.array([float(_decimal(number)) for number in numbers], np.float64)


def _floats(numbers: Sequence[Exact], limit: float) -> np.ndarray:
    """f64[N], clipped to +-limit."""
    return np.clip(_unlimited(numbers), -limit, limit)


def _signed_log(numbers: Sequence[Exact]) -> np.ndarray:
    """f64[N]: sign(x) log10(abs(x) + 1), of numbers of any size."""
    x = _unlimited(numbers)
    logs = np.log1p(np.minimum(np.abs(x), FARTHEST)) / np.log(10.0)
    # So far out, adding 1 changes nothing.
    for row in np.flatnonzero(np.abs(x) > FARTHEST).tolist():
        number = _decimal(numbers[row])
        digits = number.adjusted()
        mantissa = number.copy_abs().scaleb(-digits, _WIDE)
        logs[row] = digits + np.log10(float(mantissa))
    return np.sign(x) * logs

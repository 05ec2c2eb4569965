"""How sure is a score, and is one run better than another? Intervals and tests."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import special

Statistic = Callable[..., np.ndarray]
"""Takes arrays [R, N] of R resamples, one an argument, and returns R scores [R]."""

_BLOCK = 1 << 22  # resampled values held at a time


class Interval(NamedTuple):
    """A score and the bounds of its interval."""

    value: float
    low: float
    high: float


class Comparison(NamedTuple):
    """A score of run b minus that of run a.

    Attributes:
        difference: b - a.
        low: lower bound of its interval.
        high: upper bound.
        p_value: two-sided, of the hypothesis that the runs are exchangeable, in (0, 1].
    """

    difference: float
    low: float
    high: float
    p_value: float


def mean(values: np.ndarray) -> np.ndarray:
    """The statistic of accuracies and mean errors, over the last axis."""
    return values.mean(axis=-1)


def root_mean_square(errors: np.ndarray) -> np.ndarray:
    """The statistic of RMSE, over the last axis."""
    return np.sqrt(np.square(errors).mean(axis=-1))


def median(values: np.ndarray) -> np.ndarray:
    """The statistic of median errors, over the last axis."""
    return np.median(values, axis=-1)


def wilson_interval(
    successes: int, n: int, *, confidence: float = 0.95
) -> Interval | None:
    """Wilson's score interval of a share.

    With s = successes / n and z the normal quantile:
    (s + z^2/2n +- z sqrt(s (1 - s) / n + z^2/4n^2)) / (1 + z^2/n).

    Args:
        successes: how many of n.
        n: trials.
        confidence: in (0, 1).

    Returns:
        The share and its bounds, in [0, 1]; None without trials.

    Raises:
        ValueError: successes outside 0..n, or a confidence outside (0, 1).

    Example:
        >>> [round(float(x), 4) for x in wilson_interval(0, 10)]
        [0.0, 0.0, 0.2775]

    Source: E. B. Wilson, *Probable inference, the law of succession, and statistical
    inference* (1927).
    """
    _check_confidence(confidence)
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes in {n} trials: give 0 to {n}.")
    if n == 0:
        return None
    z = float(special.ndtri(0.5 + confidence / 2))
    share = successes / n
    centre = share + z * z / (2 * n)
    spread = z * np.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2)
    low, high = ((centre + side * spread) / (1 + z * z / n) for side in (-1, 1))
    # At either end the bound is the share itself, but for rounding.
    low, high = float(low) if successes else 0.0, float(high) if successes < n else 1.0
    return Interval(share, low, high)


def bootstrap_interval(
    *samples: np.ndarray,
    statistic: Statistic = mean,
    resamples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap over the N examples of a run.

    Args:
        samples: arrays [N] of what the statistic needs of each example: 0 or 1 for an
            accuracy, errors, or labels and predictions.
        statistic: the score of resamples [R, N], over the last axis.
        resamples: how many.
        confidence: in (0, 1).
        seed: equal seeds give equal bounds.

    Returns:
        The score of the samples and its bounds.

    Raises:
        ValueError: no samples, other shapes than [N] or unequal N.

    Example:
        >>> bootstrap_interval(np.array([0.0, 1.0, 1.0, 1.0])).value
        0.75

    Source: Efron and Tibshirani, *An introduction to the bootstrap* (1993), 13.3.
    """
    _check_confidence(confidence)
    arrays = _checked(samples)
    scores = _resampled(arrays, statistic, resamples, seed)
    return Interval(_score(statistic, arrays), *_bounds(scores, confidence))


def compare_runs(
    a: np.ndarray | tuple[np.ndarray, ...],
    b: np.ndarray | tuple[np.ndarray, ...],
    *,
    statistic: Statistic = mean,
    resamples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Comparison:
    """Compares two runs on the same N examples, example by example.

    The interval is the percentile bootstrap of the difference, both runs resampled
    alike; the p-value is of the permutation test that swaps the runs' examples. They
    speak of other examples, not of other seeds of training: for these, compare the
    scores of several seeds, or give each example's mean over them.

    Args:
        a: array [N], or a tuple of them, as `bootstrap_interval` takes: the first run.
        b: the same of the second run, on the same examples in the same order.
        statistic: the score of resamples [R, N], over the last axis.
        resamples: how many, of each kind.
        confidence: in (0, 1).
        seed: equal seeds give equal results.

    Returns:
        score(b) - score(a), its bounds and p-value, (1 + as far or farther) /
        (1 + resamples).

    Raises:
        ValueError: no samples, other shapes than [N], or unequal N.

    Example:
        >>> right = np.array([1.0, 0.0, 1.0, 1.0])
        >>> compare_runs(right, right)
        Comparison(difference=0.0, low=0.0, high=0.0, p_value=1.0)

    Source: Efron and Tibshirani (1993), 13.3 and 15.2.
    """
    _check_confidence(confidence)
    first = a if isinstance(a, tuple) else (a,)
    second = b if isinstance(b, tuple) else (b,)
    if len(first) != len(second):
        raise ValueError(
            f"{len(first)} arrays of run a, {len(second)} of run b: give the same "
            "arrays of both."
        )
    arrays = _checked((*first, *second))
    k = len(first)

    def difference(*resampled: np.ndarray) -> np.ndarray:
        return statistic(*resampled[k:]) - statistic(*resampled[:k])

    scores = _resampled(arrays, difference, resamples, seed)
    observed = _score(difference, arrays)
    swapped = _swapped(arrays, k, difference, resamples, seed)
    # A tie that rounding parts is a tie.
    slack = 1e-12 * max(abs(observed), float(np.abs(swapped).max()))
    extreme = int((np.abs(swapped) >= abs(observed) - slack).sum())
    p_value = (1 + extreme) / (1 + resamples)
    return Comparison(observed, *_bounds(scores, confidence), p_value)


def _resampled(
    arrays: list[np.ndarray], statistic: Statistic, resamples: int, seed: int
) -> np.ndarray:
    """f64[resamples]: the statistic of examples drawn with replacement."""
    rng, n = np.random.default_rng(seed), len(arrays[0])
    scores = []
    for size in _block_sizes(resamples, n):
        rows = rng.integers(0, n, (size, n))  # [R, N]
        scores.append(statistic(*(x[rows] for x in arrays)))
    return np.concatenate(scores)


def _swapped(
    arrays: list[np.ndarray], k: int, statistic: Statistic, resamples: int, seed: int
) -> np.ndarray:
    """f64[resamples]: the statistic of runs that exchange random rows."""
    rng, n = np.random.default_rng([seed, 1]), len(arrays[0])
    scores = []
    for size in _block_sizes(resamples, n):
        swap = rng.random((size, n)) < 0.5  # [R, N]
        a = [np.where(swap, y, x) for x, y in zip(arrays[:k], arrays[k:], strict=True)]
        b = [np.where(swap, x, y) for x, y in zip(arrays[:k], arrays[k:], strict=True)]
        scores.append(statistic(*a, *b))
    return np.concatenate(scores)


def _block_sizes(resamples: int, n: int) -> list[int]:
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, got {resamples}")
    block = max(1, _BLOCK // n)
    return [min(block, resamples - start) for start in range(0, resamples, block)]


def _score(statistic: Statistic, arrays: list[np.ndarray]) -> float:
    return float(statistic(*(x[None] for x in arrays))[0])


def _bounds(scores: np.ndarray, confidence: float) -> tuple[float, float]:
    tail = (1 - confidence) / 2
    low, high = np.quantile(scores, (tail, 1 - tail))
    return float(low), float(high)


def _checked(samples: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    arrays = [np.asarray(x, np.float64) for x in samples]
    shapes = [x.shape for x in arrays]
    if not arrays or len(set(shapes)) > 1 or arrays[0].ndim != 1 or not arrays[0].size:
        raise ValueError(
            f"samples of shapes {shapes}: give arrays of one value an example, all of "
            "one length N >= 1."
        )
    return arrays


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}")

"""Confidence intervals of scores, and tests of whether one run beats another."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import stats

Statistic = Callable[..., np.ndarray]
"""Takes arrays [R, N] of R resamples, one per argument, and returns R scores [R]."""

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
    """Wilson's score interval of a proportion.

    With s = successes / n and z the normal quantile:
    (s + z^2/2n +- z sqrt(s (1 - s) / n + z^2/4n^2)) / (1 + z^2/n).

    Args:
        successes: the successful trials.
        n: all trials.
        confidence: in (0, 1).

    Returns:
        The proportion and its bounds, in [0, 1]; None without trials.

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
    bounds = stats.binomtest(successes, n).proportion_ci(confidence, method="wilson")
    return Interval(successes / n, float(bounds.low), float(bounds.high))


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
        resamples: the number R of resamples.
        confidence: in (0, 1).
        seed: equal seeds give equal bounds.

    Returns:
        The score of the samples and its bounds.

    Raises:
        ValueError: no samples, other shapes than [N], unequal N, no resamples, or a
            confidence outside (0, 1).

    Example:
        >>> bootstrap_interval(np.array([0.0, 1.0, 1.0, 1.0])).value
        0.75

    Source: Efron and Tibshirani, *An introduction to the bootstrap* (1993), 13.3.
    """
    arrays = _checked(samples)
    return _percentile_interval(arrays, statistic, resamples, confidence, seed)


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
    alike; the p-value is that of the permutation test that swaps the runs' examples.
    Both account for the choice of examples, not for the training seed: for that,
    compare the scores of several seeds, or pass each example's mean over them.

    Args:
        a: array [N], or a tuple of them, as `bootstrap_interval` takes: the first run.
        b: the same of the second run, on the same examples in the same order.
        statistic: the score of resamples [R, N], over the last axis.
        resamples: the number of resamples, and of random swaps.
        confidence: in (0, 1).
        seed: equal seeds give equal results.

    Returns:
        score(b) - score(a), its bounds and its p-value: (1 + the swaps whose difference
        is at least as large) / (1 + resamples), or the exact share of all 2^N swaps
        where these are no more than ``resamples``.

    Raises:
        ValueError: as `bootstrap_interval`, and for runs of unequally many arrays.

    Example:
        >>> right = np.array([1.0, 0.0, 1.0, 1.0])
        >>> compare_runs(right, right)
        Comparison(difference=0.0, low=0.0, high=0.0, p_value=1.0)

    Source: Efron and Tibshirani (1993), 13.3 and 15.2.
    """
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

    interval = _percentile_interval(arrays, difference, resamples, confidence, seed)
    p_value = _swap_test(arrays, difference, resamples, seed)
    return Comparison(*interval, p_value)


def _percentile_interval(
    arrays: list[np.ndarray],
    statistic: Statistic,
    resamples: int,
    confidence: float,
    seed: int,
) -> Interval:
    """The statistic and its percentile bootstrap, all arrays resampled alike."""
    _check_confidence(confidence)
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, got {resamples}")
    value, n = _score(statistic, arrays), len(arrays[0])
    if n == 1:  # every resample is the sample, which scipy refuses
        return Interval(value, value, value)
    bounds = stats.bootstrap(
        arrays,
        lambda *resampled, axis: statistic(*resampled),
        paired=True,
        vectorized=True,
        n_resamples=resamples,
        batch=max(1, _BLOCK // n),
        confidence_level=confidence,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(value, float(bounds.low), float(bounds.high))


def _swap_test(
    arrays: list[np.ndarray], difference: Statistic, resamples: int, seed: int
) -> float:
    """The p-value of a difference as large, where the runs exchange random examples."""
    n, k = len(arrays[0]), len(arrays) // 2
    observed = abs(_score(difference, arrays))
    if n == 1 or not observed:
        return 1.0

    def distance(*runs: np.ndarray, axis: int) -> np.ndarray:
        """Of runs given by where they take b's examples: two of bool [R, N] or [N]."""
        samples = [
            np.where(np.atleast_2d(from_b), y, x)
            for from_b in runs
            for x, y in zip(arrays[:k], arrays[k:], strict=True)
        ]
        ratio = np.abs(difference(*samples)) / observed
        with np.errstate(over="ignore"):
            # In float32, scipy counts values that differ by rounding as ties.
            return ratio.astype(np.float32).reshape(runs[0].shape[:-1])

    test = stats.permutation_test(
        (np.zeros(n, np.bool_), np.ones(n, np.bool_)),
        distance,
        permutation_type="samples",
        vectorized=True,
        n_resamples=resamples,
        batch=max(1, _BLOCK // (4 * n)),  # scipy holds two indices per example
        alternative="greater",
        rng=np.random.default_rng([seed, 1]),
    )
    return float(test.pvalue)


def _score(statistic: Statistic, arrays: list[np.ndarray]) -> float:
    return float(statistic(*(x[None] for x in arrays))[0])


def _checked(samples: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    arrays = [np.asarray(x, np.float64) for x in samples]
    shapes = [x.shape for x in arrays]
    if not arrays or len(set(shapes)) > 1 or arrays[0].ndim != 1 or not arrays[0].size:
        raise ValueError(
            f"samples of shapes {shapes}: give arrays with one value per example, "
            "all of one length N >= 1."
        )
    return arrays


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}")

"""Scores of the numbers in generated text, on the host, over a whole dataset."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from scipy import stats

from ntl_jax.metrics.pairs import NumberPairs, read_pairs

Scores = dict[str, float | None]

# Labels that differ by less count as equal: R2 divides by the square of this.
_CLOSEST = 1e-50


def numeric_metrics(
    predictions: Sequence[str],
    references: Sequence[str],
    *,
    paper_compat: bool = False,
    unparsable_as: float | None = None,
) -> Scores:
    """Compares the last number of each prediction with that of its reference.

    The scores of `pair_scores`, and those of the best constant answers on all N: the
    mode in ``constant_accuracy`` (``_se``), the median in ``constant_mae`` (``_se``)
    and the mean in ``constant_rmse``.

    Args:
        predictions: N generated texts.
        references: N answers, each with at least one number.
        paper_compat: reads, clips and compares numbers as the paper's code does.
        unparsable_as: the answer that unreadable predictions count as in the
            ``_penalised`` scores.

    Returns:
        The scores; undefined ones are None, never NaN.

    Raises:
        ValueError: lengths differ, are zero, or a reference contains no number.

    Example:
        >>> scores = numeric_metrics(["It is 3", "4.0", "five"], ["3", "4", "7"])
        >>> round(scores["number_accuracy"], 3), scores["mae"], scores["n"]
        (0.667, 0.0, 3)
        >>> scores["unparsable_rate"] > 0.3, scores["mae_penalised"]
        (True, 1.3333333333333333)

    Source: *Regress, Don't Guess* (ICML 2025), section on evaluation.
    """
    pairs = read_pairs(predictions, references, paper_compat=paper_compat)
    return {
        **pair_scores(pairs, unparsable_as=unparsable_as),
        **_constant_scores(pairs),
    }


def pair_scores(pairs: NumberPairs, *, unparsable_as: float | None = None) -> Scores:
    """Accuracies over all N pairs, errors over the M <= N with a numeric prediction.

    With y the labels and p the predictions:

    * ``number_accuracy``: share of N with p = y, exactly; its standard error
      ``number_accuracy_se``.
    * ``number_accuracy_1e-5``: |p - y| <= 1e-8 + 1e-5 |y|, the paper's accuracy;
      ``number_accuracy_1e-2`` and ``_1e-1``: |p - y| within 1% and 10% of |y|.
    * ``mae``, ``mae_se``, ``rmse``, ``median_ae``: of p - y, in the unit of y.
    * ``r2``: 1 - sum (p - y)^2 / sum (y - mean y)^2, at most 1.
    * ``log_mae``, ``log_rmse``, ``log_median_ae``, ``log_r2``: the same after
      sign(x) log10(|x| + 1), in decades.
    * ``pearson``, ``spearman``: correlations in [-1, 1].
    * ``unparsable_rate``: share of N whose prediction contains no number. These count
      as wrong in the accuracies and are absent from the scores above.
    * The same errors and R2 with ``_penalised``: over all N, where an unreadable
      prediction counts as the label farthest from its own. So a model that gives no
      answer never looks better than one that answers within the range of the labels.
    * ``clipped_rate``: share of N whose error exceeds 1e100 and counts as 1e100 in the
      errors that are not logarithms, which are then lower bounds.
    * ``n``: N.

    Args:
        pairs: N pairs of numbers. With ``paper_compat``, ``number_accuracy`` is that of
            1e-5, and predictions beyond 1e10 are clipped.
        unparsable_as: another answer that unreadable predictions count as, such as 0.

    Returns:
        The scores; undefined ones are None, never NaN: with too few pairs (the paper's
        code gives a correlation of 0), or correlation and R2 of constant numbers.

    Source: *Regress, Don't Guess* (ICML 2025), section on evaluation.
    """
    n = len(pairs)
    close = pairs.within(1e-5, 1e-8)
    right = close if pairs.paper_compat else pairs.exact
    accuracy = float(right.mean())
    parsed = pairs.parsed
    error, log_error = pairs.error, pairs.log_p - pairs.log_y
    scores: Scores = {
        "n": n,
        "number_accuracy": accuracy,
        "number_accuracy_se": _share_error(accuracy, n),
        "number_accuracy_1e-5": float(close.mean()),
        "number_accuracy_1e-2": float(pairs.within(1e-2).mean()),
        "number_accuracy_1e-1": float(pairs.within(1e-1).mean()),
        "unparsable_rate": 1.0 - float(parsed.mean()),
        "clipped_rate": float(pairs.clipped.mean()),
        **_errors("", error[parsed], pairs.y[parsed]),
        **_errors("log_", log_error[parsed], pairs.log_y[parsed]),
        **_correlations(pairs),
    }
    filled, log_filled = penalised_errors(pairs, unparsable_as=unparsable_as)
    penalised = {
        **_errors("", filled, pairs.y),
        **_errors("log_", log_filled, pairs.log_y),
    }
    return scores | {f"{name}_penalised": x for name, x in penalised.items()}


def penalised_errors(
    pairs: NumberPairs, *, unparsable_as: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Errors of all N pairs, including those without an answer.

    Args:
        pairs: N pairs of numbers.
        unparsable_as: what a missing answer counts as; None takes the label farthest
            from its own.

    Returns:
        p - y, f64[N], in the unit of y; and the same after sign(x) log10(|x| + 1), in
        decades. Their means, roots of mean squares and medians are the ``_penalised``
        scores of `pair_scores`.

    Example:
        >>> from ntl_jax.metrics import read_pairs
        >>> error, _ = penalised_errors(read_pairs(["4", "?"], ["3", "9"]))
        >>> error.tolist()
        [1.0, -6.0]
    """
    log_stand_in = None if unparsable_as is None else _signed_log(unparsable_as)
    filled = np.where(pairs.parsed, pairs.error, _penalty(pairs.y, unparsable_as))
    log_penalty = _penalty(pairs.log_y, log_stand_in)
    return filled, np.where(pairs.parsed, pairs.log_p - pairs.log_y, log_penalty)


def rounded_accuracy(
    predictions: Float[np.ndarray, "N"],
    targets: Float[np.ndarray, "N"],
    *,
    decimals: int = 2,
) -> float:
    """The share of predictions that equal their target after rounding both.

    For heads that predict numbers directly, which are never exact.

    Args:
        predictions: N numbers; those that are not finite count as wrong.
        targets: N finite numbers.
        decimals: how many decimals are kept; halves round to even.

    Returns:
        A share in [0, 1].

    Raises:
        ValueError: no pairs, shapes that differ, or a target that is not finite.

    >>> rounded_accuracy(np.array([3.004, 3.006, np.nan]), np.array([3.0, 3.0, 3.0]))
    0.3333333333333333

    Source: *Regress, Don't Guess* (ICML 2025), on the accuracy of xVal.
    """
    predictions = np.asarray(predictions, np.float64)
    targets = np.asarray(targets, np.float64)
    if predictions.shape != targets.shape or targets.ndim != 1 or not len(targets):
        raise ValueError(
            f"predictions {predictions.shape} and targets {targets.shape} must be two "
            "vectors of equal length, at least 1"
        )
    if not np.isfinite(targets).all():
        raise ValueError(f"{(~np.isfinite(targets)).sum()} targets are not finite")
    finite = np.where(np.isfinite(predictions), predictions, np.inf)
    with np.errstate(over="ignore", invalid="ignore"):
        right = np.round(finite, decimals) == np.round(targets, decimals)
    return float(right.mean())


def _errors(prefix: str, error: np.ndarray, y: np.ndarray) -> Scores:
    """Scores of M errors [M] at labels `y` [M], in their unit."""
    names = ("mae", "mae_se", "rmse", "median_ae", "r2")
    values: list[float | None] = [None] * len(names)
    if len(y):
        size = np.abs(error)
        rmse = float(np.sqrt(np.square(error).mean()))
        median = float(np.median(size))
        values = [float(size.mean()), _mean_error(size), rmse, median, _r2(error, y)]
    return {prefix + name: value for name, value in zip(names, values, strict=True)}


def _penalty(y: np.ndarray, stand_in: float | None) -> np.ndarray:
    """f64[N]: the error of a missing answer at each label."""
    if stand_in is not None:
        return stand_in - y
    low, high = y.min() - y, y.max() - y
    return np.where(high > -low, high, low)


def _constant_scores(pairs: NumberPairs) -> Scores:
    """Scores of the best constant answers: mode, median, mean."""
    n, y = len(pairs), pairs.y
    share = max(Counter(pairs.labels).values()) / n
    error = np.abs(y - np.median(y))
    return {
        "constant_accuracy": share,
        "constant_accuracy_se": _share_error(share, n),
        "constant_mae": float(error.mean()),
        "constant_mae_se": _mean_error(error),
        "constant_rmse": float(np.sqrt(np.square(y - y.mean()).mean())),
    }


def _correlations(pairs: NumberPairs) -> Scores:
    parsed = np.flatnonzero(pairs.parsed)
    if len(parsed) < 2:
        return {"pearson": None, "spearman": None}
    # Ranks of the exact numbers: float64 cannot order them by the last of 25 digits.
    ranked = [
        _ranks([numbers[row] for row in parsed])
        for numbers in (pairs.guesses, pairs.labels)
    ]
    return {
        "pearson": _correlation(pairs.p[parsed], pairs.y[parsed]),
        "spearman": _correlation(*ranked),
    }


def _ranks(numbers: Sequence) -> np.ndarray:
    """Ranks from 1 on; equal numbers share the mean of theirs."""
    places = {number: place for place, number in enumerate(sorted(set(numbers)))}
    return stats.rankdata([places[number] for number in numbers])


def _share_error(share: float, n: int) -> float:
    return float(np.sqrt(share * (1.0 - share) / n))


def _mean_error(values: np.ndarray) -> float | None:
    if len(values) < 2:
        return None
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def _signed_log(x: float) -> float:
    return float(np.sign(x) * np.log10(np.abs(x) + 1.0))


def _r2(error: np.ndarray, y: np.ndarray) -> float | None:
    if np.ptp(y) < _CLOSEST:
        return None
    return float(1.0 - np.square(error).sum() / np.square(y - y.mean()).sum())


def _correlation(a: np.ndarray, b: np.ndarray) -> float | None:
    """Pearson's correlation, or None where either side is constant."""
    a, b = _standardised(a), _standardised(b)
    return float(np.clip(a @ b, -1.0, 1.0)) if a.any() and b.any() else None


def _standardised(x: np.ndarray) -> np.ndarray:
    """Mean 0 and norm 1, or all 0 where the numbers are equal up to rounding."""
    largest = np.abs(x).max()
    if np.ptp(x) <= 1e-15 * largest:
        return np.zeros_like(x)
    x = x / largest  # no overflow in the squares
    x = x - x.mean()
    return x / np.linalg.norm(x)

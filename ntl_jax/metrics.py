"""How good are the numbers in generated text? On the host, over a whole dataset."""

from collections.abc import Sequence

import numpy as np
from scipy import stats

from ntl_jax.number_grammar import Mode, last_number

# Farther answers count as this far, so that squares stay finite in float64.
_FARTHEST = 1e100
_PAPER_FARTHEST = 1e10


def numeric_metrics(
    predictions: Sequence[str], references: Sequence[str], *, mode: Mode = "grammar"
) -> dict[str, float | None]:
    """Compares the last number of each prediction with that of its reference.

    With y the N reference numbers and p the predictions, over the M <= N pairs whose
    prediction holds a number:

    * ``number_accuracy``: share of N whose decimals are equal, exactly; with its
      standard error ``number_accuracy_se``.
    * ``number_accuracy_1e-5``: |p - y| <= 1e-8 + 1e-5 |y|, the paper's accuracy.
    * ``mae``, ``mae_se``, ``rmse``, ``median_ae``: of p - y, in the unit of y.
    * ``r2``: 1 - sum (p - y)^2 / sum (y - mean y)^2, at most 1.
    * ``log_mae``, ``log_r2``: the same after sign(x) log10(|x| + 1).
    * ``pearson``, ``spearman``: correlations in [-1, 1].
    * ``unparsable_rate``: share of N whose prediction holds no number. These count as
      wrong in the accuracies and are absent from the rest.
    * ``constant_accuracy`` (``_se``), ``constant_mae`` (``_se``), ``constant_rmse``:
      what the best constant answer scores on all N: their mode, median and mean.
    * ``n``: N.

    Args:
        predictions: N generated texts.
        references: N answers, each with at least one number.
        mode: ``"paper"`` reads numbers as the paper's code does, and clips predictions
            to +-1e10. Otherwise only what lies beyond +-1e100 is clipped.

    Returns:
        The numbers above; None, never NaN, where one is undefined: too few pairs, or
        correlation and R2 of constant numbers.

    Raises:
        ValueError: lengths differ, are zero, or a reference holds no number.

    Example:
        >>> scores = numeric_metrics(["It is 3", "4.0", "five"], ["3", "4", "7"])
        >>> round(scores["number_accuracy"], 3), scores["mae"], scores["n"]
        (0.667, 0.0, 3)

    Source: *Regress, Don't Guess* (ICML 2025), section on evaluation.
    """
    if len(predictions) != len(references) or not references:
        raise ValueError(
            f"{len(predictions)} predictions for {len(references)} references; "
            "give one prediction for each of at least one reference"
        )
    labels = [last_number(text, mode=mode) for text in references]
    for row, label in enumerate(labels):
        if label is None:
            raise ValueError(
                f"reference {row} holds no number: {references[row][:80]!r}; numeric "
                "metrics need one in each reference"
            )
    guesses = [last_number(text, mode=mode) for text in predictions]
    parsed = np.array([guess is not None for guess in guesses])
    exact = np.array([g == y for g, y in zip(guesses, labels, strict=True)])
    y = _floats(labels, _FARTHEST)  # [N]
    limit = _PAPER_FARTHEST if mode == "paper" else _FARTHEST
    p = _floats([0 if guess is None else guess for guess in guesses], limit)  # [N]
    close = parsed & (np.abs(p - y) <= 1e-8 + 1e-5 * np.abs(y))
    n = len(labels)
    accuracy = float(exact.mean())
    return {
        "n": n,
        "number_accuracy": accuracy,
        "number_accuracy_se": _share_error(accuracy, n),
        "number_accuracy_1e-5": float(close.mean()),
        "unparsable_rate": 1.0 - float(parsed.mean()),
        **_regression(p[parsed], y[parsed]),
        **_constant_baselines(labels, y),
    }


def _floats(numbers: Sequence, limit: float) -> np.ndarray:
    """Decimals as float64, clipped to +-limit."""
    return np.clip([float(number) for number in numbers], -limit, limit)


def _share_error(share: float, n: int) -> float:
    return float(np.sqrt(share * (1.0 - share) / n))


def _mean_error(values: np.ndarray) -> float | None:
    if len(values) < 2:
        return None
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def _regression(p: np.ndarray, y: np.ndarray) -> dict[str, float | None]:
    """Errors and correlations of M predictions `p` [M] with labels `y` [M]."""
    if not len(y):
        names = "mae mae_se rmse median_ae r2 log_mae log_r2 pearson spearman"
        return dict.fromkeys(names.split())
    error = np.abs(p - y)
    log_p, log_y = _signed_log(p), _signed_log(y)
    return {
        "mae": float(error.mean()),
        "mae_se": _mean_error(error),
        "rmse": float(np.sqrt(np.square(error).mean())),
        "median_ae": float(np.median(error)),
        "r2": _r2(p, y),
        "log_mae": float(np.abs(log_p - log_y).mean()),
        "log_r2": _r2(log_p, log_y),
        "pearson": _correlation(p, y),
        "spearman": _correlation(stats.rankdata(p), stats.rankdata(y)),
    }


def _constant_baselines(labels: Sequence, y: np.ndarray) -> dict[str, float | None]:
    """Scores of the best constant answers: mode, median, mean."""
    counts: dict = {}
    for label in labels:
        counts[label] = counts.get(label, 0) + 1
    share = max(counts.values()) / len(labels)
    error = np.abs(y - np.median(y))
    return {
        "constant_accuracy": share,
        "constant_accuracy_se": _share_error(share, len(labels)),
        "constant_mae": float(error.mean()),
        "constant_mae_se": _mean_error(error),
        "constant_rmse": float(np.sqrt(np.square(y - y.mean()).mean())),
    }


def _signed_log(x: np.ndarray) -> np.ndarray:
    return np.sign(x) * np.log10(np.abs(x) + 1.0)


def _r2(p: np.ndarray, y: np.ndarray) -> float | None:
    if np.ptp(y) == 0:
        return None
    return float(1.0 - np.square(p - y).sum() / np.square(y - y.mean()).sum())


def _correlation(a: np.ndarray, b: np.ndarray) -> float | None:
    """Pearson's correlation, or None where either side is constant."""
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    a, b = _standardised(a), _standardised(b)
    return float(np.clip(a @ b, -1.0, 1.0))


def _standardised(x: np.ndarray) -> np.ndarray:
    x = x / np.abs(x).max()  # no overflow in the squares
    x = x - x.mean()
    return x / np.linalg.norm(x)

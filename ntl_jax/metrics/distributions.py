"""Confidence and calibration of predicted distributions over number tokens."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy import special


class NumberTokenScores(NamedTuple):
    """Scores of the distributions over K number tokens at N positions.

    Attributes:
        n: the total weight of the positions, or their number.
        accuracy: share whose most likely token is the label, in [0, 1].
        mean_log_q: mean log-probability of the label, nats, at most 0.
        entropy: mean entropy of the distributions, nats, in [0, log K].
        calibration_error: expected calibration error of the most likely token.
        expected_distance: mean of sum_k q_k abs(v_k - y), in the unit of the values;
            None without values.
        counts: f64[K], weight of the positions of each label.
        mean_by_label: f64[K, K], row k the mean distribution where the label is k, 0
            where there is none.
        std_by_label: f64[K, K], the standard deviation of the same.
    """

    n: float
    accuracy: float
    mean_log_q: float
    entropy: float
    calibration_error: float
    expected_distance: float | None
    counts: np.ndarray
    mean_by_label: np.ndarray
    std_by_label: np.ndarray


def number_token_scores(
    log_q: Float[np.ndarray, "N K"],
    labels: Int[np.ndarray, "N"],
    *,
    weights: Float[np.ndarray, "N"] | None = None,
    values: Float[np.ndarray, "K"] | None = None,
    bins: int = 15,
) -> NumberTokenScores:
    """Scores the predicted distributions over number tokens.

    The calibration error sorts positions by the probability of their most likely token
    into bins of equal width and adds up |share correct - mean probability|, weighted by
    the share of positions in the bin.

    Args:
        log_q: [N, K] logits or log-probabilities of the K number tokens, as
            ``NumberStats.number_logits``; normalised over K here, in float64.
        labels: [N], the row of the label's token, 0..K-1.
        weights: [N], 0 for positions that do not count.
        values: [K], the value of each token.
        bins: of the calibration error.

    Returns:
        The scores.

    Raises:
        ValueError: shapes that differ, a label outside 0..K-1, no weight, no bins.

    Example:
        >>> scores = number_token_scores(np.zeros((3, 10)), np.array([4, 4, 0]),
        ...     values=np.arange(10.0))
        >>> round(scores.mean_log_q, 6), round(scores.entropy, 6)
        (-2.302585, 2.302585)
        >>> round(scores.expected_distance, 6)  # 2.5, 2.5 and 4.5
        3.166667

    Source: *Regress, Don't Guess* (ICML 2025), figure of number token distributions;
    Guo et al., *On calibration of modern neural networks* (2017), for the calibration
    error.
    """
    weights = _checked(log_q, labels, weights, values, bins)
    if (weights == 0).any():  # these may be anything, even NaN
        counted = weights > 0
        log_q, labels, weights = log_q[counted], labels[counted], weights[counted]
    q_log = special.log_softmax(np.asarray(log_q, np.float64), axis=-1)  # [N, K]
    q = np.exp(q_log)
    share = weights / weights.sum()
    rows = np.arange(len(labels))
    best = q.argmax(axis=-1)
    distance = None
    if values is not None:
        v = np.asarray(values, np.float64)
        distance = float(share @ (q * np.abs(v - v[labels][:, None])).sum(axis=-1))
    counts, means, deviations = _by_label(q, labels, weights)
    return NumberTokenScores(
        float(weights.sum()),
        float(share @ (best == labels)),
        float(share @ q_log[rows, labels]),
        float(share @ special.entr(q).sum(axis=-1)),
        _calibration_error(q[rows, best], best == labels, share, bins),
        distance,
        counts,
        means,
        deviations,
    )


def _calibration_error(
    confidence: np.ndarray, right: np.ndarray, share: np.ndarray, bins: int
) -> float:
    # Bins are (0, 1/bins], (1/bins, 2/bins], ...
    place = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    gaps = np.bincount(place, weights=share * (right - confidence), minlength=bins)
    return float(np.abs(gaps).sum())


def _by_label(
    q: np.ndarray, labels: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights [K], means and standard deviations [K, K] of q by label."""
    k = q.shape[-1]
    counts = np.bincount(labels, weights=weights, minlength=k)
    divisor = np.maximum(counts, np.finfo(np.float64).tiny)[:, None]
    means, squares = np.zeros((2, k, k))
    np.add.at(means, labels, weights[:, None] * q)
    means /= divisor
    np.add.at(squares, labels, weights[:, None] * np.square(q - means[labels]))
    return counts, means, np.sqrt(squares / divisor)


def _checked(
    log_q: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None,
    values: np.ndarray | None,
    bins: int,
) -> np.ndarray:
    """The weights f64[N], after every check of the arguments."""
    if log_q.ndim != 2 or labels.shape != log_q.shape[:1] or not labels.size:
        raise ValueError(
            f"log_q of shape {log_q.shape} and labels of shape {labels.shape}: give "
            "[N, K] and [N], N at least 1."
        )
    n, k = log_q.shape
    if labels.min() < 0 or labels.max() >= k:
        raise ValueError(
            f"labels from {labels.min()} to {labels.max()} are not rows of {k} "
            "number tokens: give 0 and weight 0 where the label is not a number."
        )
    checked = np.ones(n) if weights is None else np.asarray(weights, np.float64)
    if checked.shape != (n,) or not (checked >= 0).all() or not checked.sum() > 0:
        raise ValueError(
            f"weights of shape {checked.shape} and sum {checked.sum()}: give {n} that "
            "are not negative, at least one positive."
        )
    if values is not None and values.shape != (k,):
        raise ValueError(f"values of shape {values.shape} for {k} number tokens")
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}")
    return checked

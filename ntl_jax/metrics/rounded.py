"""Accuracy of numbers that a head predicts: they are never exact."""

import numpy as np
from jaxtyping import Float


def rounded_accuracy(
    predictions: Float[np.ndarray, "N"],
    targets: Float[np.ndarray, "N"],
    *,
    decimals: int = 2,
) -> float:
    """The share of predictions that equal their target once both are rounded.

    Args:
        predictions: N numbers; one that is not finite is wrong.
        targets: N finite numbers.
        decimals: how many decimals are kept; halves go to the even neighbour.

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
            "vectors of one length, at least 1"
        )
    if not np.isfinite(targets).all():
        raise ValueError(f"{(~np.isfinite(targets)).sum()} targets are not finite")
    finite = np.where(np.isfinite(predictions), predictions, np.inf)
    with np.errstate(over="ignore", invalid="ignore"):
        right = np.round(finite, decimals) == np.round(targets, decimals)
    return float(right.mean())

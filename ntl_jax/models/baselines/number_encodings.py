"""The Regression Transformer's number encodings: fixed vectors that tell sizes apart.

A number token stands for a digit v at a decimal place p, with x = v * 10^p. Its vector
is added to the learned embedding; tokens that are no numbers get the zero vector.
"""

from typing import Literal

import numpy as np
from jaxtyping import Float, Float32

Formula = Literal["paper", "reference"]
Scale = Literal["log", "linear", "none"]
LARGEST = 3e9
"""The number whose first dimension is scaled to 10."""


def number_encodings(
    values: Float[np.ndarray, "K"],
    width: int,
    *,
    formula: Formula = "reference",
    scale: Scale = "log",
    largest: float = LARGEST,
) -> Float32[np.ndarray, "K D"]:
    """Encodes numbers; computed in float64 on the host.

    Dimension j of the number x is (-1)^j x / d(j), where d(j) = j + 1 in the paper and,
    in the released code, 2 * floor(j / 2) + 1: there, two neighbours share a divisor.
    Then each dimension y is scaled:

    * "log": 10 sign(y) log10(|y| + 1) / log10(largest), what the paper's runs used;
    * "linear": 10 y / largest;
    * "none": y, the equation as it is printed. T5's norm squares what it reads: beyond
      10^18 that is no float32.

    Args:
        values: x, finite.
        width: D.
        formula: which divisors.
        scale: which scaling.
        largest: what "log" and "linear" bring to 10.

    Returns:
        f32[K, D].

    Raises:
        ValueError: another formula or scale, a width below 1, a value that is not
            finite.

    >>> number_encodings(np.array([3e9, 1.0]), 3).round(4)
    array([[ 10.    , -10.    ,   9.4966],
           [  0.3176,  -0.3176,   0.1318]], dtype=float32)
    >>> number_encodings(np.array([6.0]), 3, formula="paper", scale="none")
    array([[ 6., -3.,  2.]], dtype=float32)

    Source: Born and Manica (2023); *Regress, Don't Guess* (ICML 2025), appendix on the
    Regression Transformer, and the code released with it.
    """
    if formula not in ("paper", "reference"):
        raise ValueError(f"formula is {formula!r}; choose 'paper' or 'reference'")
    if scale not in ("log", "linear", "none"):
        raise ValueError(f"scale is {scale!r}; choose 'log', 'linear' or 'none'")
    values = np.asarray(values, np.float64)
    if width < 1 or values.ndim != 1 or not np.isfinite(values).all():
        raise ValueError(
            f"number_encodings takes a vector of finite numbers and a width >= 1; got "
            f"values of shape {values.shape} and width {width}"
        )
    place = np.arange(width)
    divisor = place + 1 if formula == "paper" else 2 * (place // 2) + 1
    encoded = values[:, None] * (np.where(place % 2, -1.0, 1.0) / divisor)  # [K, D]
    if scale == "linear":
        encoded = 10 * encoded / largest
    if scale == "log":
        encoded = np.sign(encoded) * np.log10(np.abs(encoded) + 1)
        encoded = 10 * encoded / np.log10(largest)
    return encoded.astype(np.float32)

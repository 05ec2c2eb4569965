"""Scaling of numbers to the range that a number head predicts, and back."""

import dataclasses
from collections.abc import Iterable
from typing import Literal

import numpy as np
from jaxtyping import Float

ScaleKind = Literal["none", "log1p", "minmax5"]
_BOUND = 5.0


@dataclasses.dataclass(frozen=True)
class ValueScale:
    """A transform of numbers with its inverse, in float64 on the host.

    Attributes:
        kind: "none"; "log1p", sign(x) ln(1 + |x|), which the paper's xVal baseline
            uses; or "minmax5", which takes `low` to -5 and `high` to 5, as xVal does.
        low: minmax5's smallest number.
        high: minmax5's largest number.

    >>> scale = ValueScale("log1p")
    >>> scale.apply(np.array([0.0, -99.0])).round(4)
    array([ 0.    , -4.6052])
    >>> scale.invert(scale.apply(np.array([-99.0]))).round(9)
    array([-99.])
    >>> ValueScale.fit("minmax5", [2, 4, 12]).apply(np.array([2.0, 7.0, 12.0]))
    array([-5.,  0.,  5.])

    Source: Golkar et al. (2023), "minmax5"; *Regress, Don't Guess* (ICML 2025), its
    appendix on xVal, "log1p".
    """

    kind: ScaleKind = "log1p"
    low: float = -1.0
    high: float = 1.0

    def __post_init__(self):
        if self.kind not in ("none", "log1p", "minmax5"):
            raise ValueError(
                f"kind is {self.kind!r}; choose 'none', 'log1p' or 'minmax5'"
            )
        if not -np.inf < self.low < self.high < np.inf:
            raise ValueError(
                f"low {self.low} and high {self.high} must be finite, low below high"
            )
        if self.high / 2 - self.low / 2 < np.finfo(np.float64).tiny:
            raise ValueError(
                f"low {self.low} and high {self.high} are too close for float64"
            )

    @classmethod
    def fit(cls, kind: ScaleKind, numbers: Iterable[float]) -> "ValueScale":
        """The scale of a sample of numbers, which must come from the training data.

        Raises:
            ValueError: "minmax5" of fewer than two different numbers.
        """
        if kind != "minmax5":
            return cls(kind)
        sample = np.fromiter(numbers, np.float64)
        if not len(sample) or sample.min() == sample.max():
            raise ValueError(
                f"minmax5 needs two different numbers, got {len(sample)} equal ones; "
                "choose 'log1p'"
            )
        return cls(kind, float(sample.min()), float(sample.max()))

    def apply(self, numbers: Float[np.ndarray, "*B"]) -> Float[np.ndarray, "*B"]:
        """Scales numbers to the range that the model reads and predicts."""
        x = np.asarray(numbers, np.float64)
        if self.kind == "log1p":
            return np.copysign(np.log1p(np.abs(x)), x)
        if self.kind == "minmax5":
            # Halves do not overflow, and differences of numbers nearby are exact.
            above, below = x / 2 - self.low / 2, self.high / 2 - x / 2
            return (above - below) / (self.high / 2 - self.low / 2) * _BOUND
        return x

    def invert(self, scaled: Float[np.ndarray, "*B"]) -> Float[np.ndarray, "*B"]:
        """Scales predictions back to numbers; infinite beyond the range of float64."""
        y = np.asarray(scaled, np.float64)
        if self.kind == "log1p":
            with np.errstate(over="ignore"):
                return np.copysign(np.expm1(np.abs(y)), y)
        if self.kind == "minmax5":
            middle = self.low / 2 + self.high / 2
            return y / _BOUND * (self.high / 2 - self.low / 2) + middle
        return y

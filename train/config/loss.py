"""The fields of a run that define its loss, each a flag `--loss.field`."""

import dataclasses
from typing import Literal

from ntl_jax.losses import Objective
from ntl_jax.losses.terms import TERMS, Coefficients


@dataclasses.dataclass(frozen=True)
class LossConfig(Coefficients):
    """Coefficients of the objective; a term that is None costs nothing."""

    was: float | None = None
    sigma: float = 0.5
    """Width of the Gaussian targets of gce and cdf [number value]."""
    cdf_target: Literal["label", "gaussian"] = "label"
    """What cdf is the distance to."""
    squash: float | None = None
    """was: squash distances into 1..squash (ntloss's squash_factor)."""
    huber_delta: float = 1.0
    """Where Huber's quadratic part ends [number value]."""
    log_space: bool = False
    """number_level: compare logarithms."""
    tau: float = 1.0
    """dist2: temperature [squared number value]."""
    ntil_digits: Literal["straight_through", "expected"] = "straight_through"
    """ntil: numbers from the most likely digits, as released, or the expected."""
    ce_on_score: bool = False
    """raft: cross entropy trains the score too."""
    place_base: float | None = None
    """Weigh each digit by place_base^(digits to its right) in token losses."""
    reweigh: bool = False
    """Charge number losses for mass off the number tokens, as ntloss does."""
    support: Literal["numbers", "full"] = "numbers"
    """Softmax of the number losses: over number tokens, or over all tokens."""
    denominator: Literal["numbers", "all"] = "numbers"
    """What number losses are averaged over: number labels, or all labels."""
    label_smoothing: float = 0.0
    """Share of the cross entropy's target spread over the vocabulary."""
    z_loss: float = 0.0
    """Coefficient of the squared log-normaliser."""

    def objective(self) -> Objective:
        """The objective that these coefficients describe."""
        return Objective(**dataclasses.asdict(self))


_NAMES = [field.name for field in dataclasses.fields(Coefficients)]
# The names of runs list the Gaussian cross entropy last.
_NAMES.sort(key=lambda name: TERMS[name].over == "labels")

NUMBER_TERMS = tuple(name for name in _NAMES if TERMS[name].of_numbers)
PER_ROW_TERMS = tuple(name for name in _NAMES if TERMS[name].over == "rows")
"""Losses with one value per row, and not a sum over its tokens or numbers."""

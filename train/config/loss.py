"""The fields of a run that say what its loss is; `--loss.field` each."""

import dataclasses
from typing import Literal

from ntl_jax.losses import Objective

NUMBER_TERMS = ("was", "cdf", "mse", "mae", "huber", "number_level")
NUMBER_TERMS += ("dist2", "smmd", "digit_entropy", "ntil", "raft", "gce")

PER_ROW_TERMS = ("ntil", "raft")
"""Losses that are one number a row, and not a sum over its tokens or numbers."""


@dataclasses.dataclass(frozen=True)
class LossConfig:
    """Coefficients of the objective; a term that is None costs nothing."""

    ce: float | None = 1.0
    """Cross entropy."""
    gce: float | None = None
    """Cross entropy with Gaussian targets of numbers; in the place of ce."""
    was: float | None = None
    """Number token loss, Wasserstein form (the paper's lambda is 0.3)."""
    cdf: float | None = None
    """Number token loss, Wasserstein form by cumulative sums; see cdf_target."""
    mse: float | None = None
    """Number token loss, squared error of the expected value."""
    mae: float | None = None
    """Number token loss, absolute error of the expected value."""
    huber: float | None = None
    """Number token loss, Huber error of the expected value."""
    number_level: float | None = None
    """Error of whole numbers, signs and decimals included."""
    dist2: float | None = None
    """DIST2Loss (its paper: 0.1)."""
    smmd: float | None = None
    """Smoothed maximum mean discrepancy."""
    digit_entropy: float | None = None
    """DEL, the digit entropy loss."""
    ntil: float | None = None
    """Numerical token integrity loss."""
    raft: float | None = None
    """RAFT: squared error of one score an answer, in the place of its ce."""
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
    """ntil: numbers from the likeliest digits, as released, or the expected."""
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

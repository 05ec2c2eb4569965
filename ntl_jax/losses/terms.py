"""The registry of losses: one field per loss, from which Objective and flags follow."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import jax.numpy as jnp
from jaxtyping import Array, Float32

from ntl_jax.losses import distances
from ntl_jax.losses.baselines import (
    digit_entropy_from_stats,
    dist2_from_stats,
    ntil_from_stats,
    raft_from_stats,
    smmd_from_stats,
)
from ntl_jax.losses.cross_entropy import cross_entropy_from_stats
from ntl_jax.losses.dot_product import (
    ntl_huber_from_stats,
    ntl_mae_from_stats,
    ntl_mse_from_stats,
)
from ntl_jax.losses.gaussian import gaussian_cross_entropy_from_stats, gaussian_targets
from ntl_jax.losses.number_level import number_level_loss_from_stats
from ntl_jax.losses.stats import NumberStats
from ntl_jax.losses.wasserstein import ntl_was_cdf_from_stats, ntl_was_from_stats
from ntl_jax.numbers.vocab import NumberVocab

ValueAndWeight = tuple[Float32[Array, "..."], Float32[Array, "..."]]

Over = Literal["labels", "tokens", "numbers", "rows"]
"""What a loss is averaged over.

``labels``: every label that is not ignored. ``tokens``: labels that are number tokens,
which ``place_base`` may weigh. ``numbers``: whole numbers or their digits, which the
loss finds itself. ``rows``: one value per row, so rows must not be packed.
"""


@dataclasses.dataclass(frozen=True)
class LossTerm:
    """What an Objective knows of a loss.

    Attributes:
        loss: ``loss(stats, labels, vocab, *, weights, ignore_index, **options) ->
            (value, weight)``, both [*B].
        over: what it is averaged over.
        options: the field of the Objective that each option of the loss reads.
        segments: whether it takes ``segment_ids``, as numbers of several tokens do.
        of_numbers: whether it looks at number tokens; all but cross-entropy do.
    """

    loss: Callable[..., ValueAndWeight]
    over: Over
    options: Mapping[str, str]
    segments: bool
    of_numbers: bool

    def __call__(
        self, objective: Any, stats, labels, vocab, *, weights, segment_ids
    ) -> ValueAndWeight:
        """The loss with the options of the objective."""
        options = {key: getattr(objective, name) for key, name in self.options.items()}
        if self.segments:
            options["segment_ids"] = segment_ids
        options["ignore_index"] = objective.ignore_index
        return self.loss(stats, labels, vocab, weights=weights, **options)


def term(
    loss: Callable[..., ValueAndWeight],
    over: Over,
    *options: str,
    default: float | None = None,
    segments: bool = False,
    of_numbers: bool = True,
    **renamed: str,
) -> Any:
    """A dataclass field that holds the coefficient of a loss.

    Args:
        loss, over, segments, of_numbers: as in `LossTerm`.
        options: options of the loss that share their name with a field of Objective.
        default: the coefficient; None leaves the loss out.
        renamed: the field that an option of another name reads.
    """
    fields = {name: name for name in options} | renamed
    entry = LossTerm(loss, over, fields, segments, of_numbers)
    return dataclasses.field(default=default, metadata={"term": entry})


def _was(stats, labels, vocab, *, squash, distance, **options):
    if squash is not None:
        distance = distances.squashed(vocab, squash)
    return ntl_was_from_stats(stats, labels, vocab, distance=distance, **options)


def _cdf(stats, labels, vocab, *, cdf_target, sigma, **options):
    target = None
    if cdf_target == "gaussian":
        ignore_index = options["ignore_index"]
        target = gaussian_targets(labels, vocab, sigma, ignore_index=ignore_index)
    return ntl_was_cdf_from_stats(stats, labels, vocab, target=target, **options)


@dataclasses.dataclass(frozen=True)
class Coefficients:
    """The registry: the coefficient of each loss, and by `term` what the loss is.

    `Objective`, the flags ``--loss.name`` and their checks follow from these fields.
    """

    ce: float | None = term(
        cross_entropy_from_stats,
        "labels",
        "label_smoothing",
        "z_loss",
        default=1.0,
        of_numbers=False,
    )
    """Cross entropy."""
    gce: float | None = term(gaussian_cross_entropy_from_stats, "labels", "sigma")
    """Cross entropy with Gaussian targets of numbers; in the place of ce."""
    was: float | None = term(
        _was, "tokens", "distance", "squash", "reweigh", "support", default=0.3
    )
    """Number token loss, Wasserstein form (the paper's lambda is 0.3)."""
    cdf: float | None = term(
        _cdf, "tokens", "cdf_target", "sigma", "reweigh", "support"
    )
    """Number token loss, Wasserstein form by cumulative sums; see cdf_target."""
    mse: float | None = term(ntl_mse_from_stats, "tokens", "reweigh", "support")
    """Number token loss, squared error of the expected value."""
    mae: float | None = term(ntl_mae_from_stats, "tokens", "reweigh", "support")
    """Number token loss, absolute error of the expected value."""
    huber: float | None = term(
        ntl_huber_from_stats, "tokens", "reweigh", "support", delta="huber_delta"
    )
    """Number token loss, Huber error of the expected value."""
    number_level: float | None = term(
        number_level_loss_from_stats, "numbers", "log_space", segments=True
    )
    """Error of whole numbers, signs and decimals included."""
    dist2: float | None = term(dist2_from_stats, "tokens", "tau", "support")
    """DIST2Loss (its paper: 0.1)."""
    smmd: float | None = term(smmd_from_stats, "tokens", "support")
    """Smoothed maximum mean discrepancy."""
    digit_entropy: float | None = term(
        digit_entropy_from_stats, "numbers", segments=True
    )
    """DEL, the digit entropy loss."""
    ntil: float | None = term(
        ntil_from_stats, "rows", segments=True, digits="ntil_digits"
    )
    """Numerical token integrity loss."""
    raft: float | None = term(raft_from_stats, "rows")
    """RAFT: squared error of one score an answer, in the place of its ce."""


@functools.cache
def terms_of(coefficients: type[Coefficients]) -> dict[str, LossTerm]:
    """{name: LossTerm} of each loss, those that share their weights side by side."""
    terms: dict[str, LossTerm] = {}
    for cls in reversed(coefficients.__mro__):  # a new default keeps its loss
        for name, field in getattr(cls, "__dataclass_fields__", {}).items():
            if "term" in field.metadata:
                terms[name] = field.metadata["term"]
    order = get_args(Over)
    names = sorted(terms, key=lambda name: order.index(terms[name].over))
    return {name: terms[name] for name in names}


TERMS = terms_of(Coefficients)


def zero_stats(labels: Array, vocab: NumberVocab) -> NumberStats:
    """NumberStats of no logits, for the weights of a loss, which read labels alone."""
    zero = jnp.zeros(labels.shape, jnp.float32)
    numbers = jnp.zeros((*labels.shape, len(vocab)), jnp.float32)
    return NumberStats(zero, zero, numbers, zero, zero)

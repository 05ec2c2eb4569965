"""Objective: the weighted sum of losses that a model is trained on."""

import dataclasses
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Int

from ntl_jax.losses.cross_entropy import cross_entropy_from_stats
from ntl_jax.losses.dot_product import (
    ntl_huber_from_stats,
    ntl_mae_from_stats,
    ntl_mse_from_stats,
)
from ntl_jax.losses.number_softmax import Support
from ntl_jax.losses.positions import number_targets, token_weights
from ntl_jax.losses.reduction import Term, weighted_sum_and_count
from ntl_jax.losses.stats import NumberStats
from ntl_jax.losses.wasserstein import ntl_was_from_stats
from ntl_jax.number_vocab import NumberVocab

_NUMBER_LOSSES = {
    "was": ntl_was_from_stats,
    "mse": ntl_mse_from_stats,
    "mae": ntl_mae_from_stats,
    "huber": ntl_huber_from_stats,
}
_TERMS = ("ce", *_NUMBER_LOSSES)


@dataclasses.dataclass(frozen=True)
class Objective:
    """What to minimise: sum_i c_i (sum of loss i) / (count of loss i).

    A coefficient of None leaves its loss out, at no cost. The others are pytree leaves:
    numbers or scalar arrays, so that ``vmap`` runs a sweep over them, where 0 switches
    a loss off. The options are static.

    Cross-entropy is averaged over the labels that are not ignored, the number losses
    over those that are numbers (as ntloss and the paper's algorithm do), all weighted.

    >>> digits = {str(i): i for i in range(10)} | {"a": 10}
    >>> vocab = NumberVocab.from_mapping(digits, vocab_size=11)
    >>> from ntl_jax.losses import stats_from_logits
    >>> labels = jnp.array([[4, 10, -100]])
    >>> stats = stats_from_logits(jnp.zeros((1, 3, 11)), labels, vocab)
    >>> objective = Objective(ce=1.0, was=0.3)
    >>> terms = objective(stats, labels, vocab)
    >>> {name: (round(float(t.sum), 3), float(t.count)) for name, t in terms.items()}
    {'ce': (4.796, 2.0), 'was': (2.5, 1.0)}
    >>> round(float(objective.total(terms)), 3)  # log 11 + 0.3 * 2.5
    3.148

    Source: Regress, Don't Guess (ICML 2025), equation L = L_CE + lambda L_NTL.
    """

    ce: float | None = 1.0
    """Cross-entropy."""
    was: float | None = 0.3
    """NTL-WAS; 0.3 is the paper's lambda."""
    mse: float | None = None
    """NTL-MSE."""
    mae: float | None = None
    """NTL-MAE."""
    huber: float | None = None
    """NTL-Huber."""
    reweigh: bool = False
    """Charge the number losses for probability that is not on numbers."""
    support: Support = "numbers"
    """The softmax of the number losses: over the numbers, or over all tokens."""
    denominator: Literal["numbers", "all"] = "numbers"
    """What a number loss is averaged over: number labels, or all (the paper's 1/N)."""
    label_smoothing: float = 0.0
    """Of the cross-entropy, over the real vocabulary."""
    z_loss: float = 0.0
    """Adds z_loss * lse^2 to the cross-entropy."""
    huber_delta: float = 1.0
    """Where NTL-Huber turns from square to straight."""
    ignore_index: int = -100
    """The label that counts nothing."""

    def __post_init__(self) -> None:
        if self.denominator not in ("numbers", "all"):
            raise ValueError(
                f"denominator must be 'numbers' or 'all', not {self.denominator!r}."
            )
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(
                f"label_smoothing must be in [0, 1), not {self.label_smoothing}."
            )
        if not self.names:
            raise ValueError(
                f"an Objective needs a coefficient for one of {', '.join(_TERMS)}."
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The losses that are present, in a fixed order."""
        return tuple(name for name in _TERMS if getattr(self, name) is not None)

    def __call__(
        self,
        stats: NumberStats,
        labels: Int[Array, "*B"],
        vocab: NumberVocab,
        *,
        weights: Float[Array, "*B"] | Bool[Array, "*B"] | None = None,
    ) -> dict[str, Term]:
        """Every present loss as a sum and a count, without its coefficient.

        Args:
            stats: NumberStats over [*B].
            labels: token ids [*B].
            vocab: the number tokens.
            weights: non-negative weights [*B]; 1 where None.

        Returns:
            {name: Term(sum, count)} of float32 scalars, to be added up over devices
            and micro-batches before `total` divides.
        """
        counts = self.counts(labels, vocab, weights)
        terms = {}
        for name in self.names:
            value, weight = self._token_losses(name, stats, labels, vocab, weights)
            total = weighted_sum_and_count(value, weight).sum
            terms[name] = Term(total, counts[name])
        return terms

    def counts(
        self,
        labels: Int[Array, "*B"],
        vocab: NumberVocab,
        weights: Float[Array, "*B"] | Bool[Array, "*B"] | None = None,
    ) -> dict[str, Float32[Array, ""]]:
        """What each loss is divided by, which labels and weights alone decide.

        Args:
            labels: token ids [*B].
            vocab: the number tokens.
            weights: non-negative weights [*B]; 1 where None.

        Returns:
            {name: f32[]}: summed weights, the ``count`` of the terms of a call.
        """
        ignore_index = self.ignore_index
        every = jnp.sum(token_weights(labels, weights, ignore_index=ignore_index))
        numbers = jnp.sum(
            number_targets(labels, vocab, weights, ignore_index=ignore_index).weight
        )
        of_numbers = numbers if self.denominator == "numbers" else every
        return {name: every if name == "ce" else of_numbers for name in self.names}

    def total(
        self,
        terms: dict[str, Term],
        counts: dict[str, Float32[Array, ""]] | None = None,
    ) -> Float32[Array, ""]:
        """The objective itself: sum_i c_i sum_i / count_i.

        Args:
            terms: what the call returned, possibly of one micro-batch.
            counts: the counts of the whole step, where ``terms`` are of a part of it:
                the totals of the parts then add up to that of the whole.

        Returns:
            A float32 scalar; a loss whose count is 0 adds 0.
        """
        total = jnp.zeros((), jnp.float32)
        for name in self.names:
            term = terms[name]
            if counts is not None:
                term = term._replace(count=counts[name])
            total += jnp.asarray(getattr(self, name), jnp.float32) * term.mean
        return total

    def _token_losses(self, name, stats, labels, vocab, weights):
        common = {"weights": weights, "ignore_index": self.ignore_index}
        if name == "ce":
            return cross_entropy_from_stats(
                stats,
                labels,
                vocab,
                label_smoothing=self.label_smoothing,
                z_loss=self.z_loss,
                **common,
            )
        loss = _NUMBER_LOSSES[name]
        if name == "huber":
            loss = partial(loss, delta=self.huber_delta)
        return loss(
            stats, labels, vocab, reweigh=self.reweigh, support=self.support, **common
        )


_OPTIONS = tuple(f.name for f in dataclasses.fields(Objective) if f.name not in _TERMS)


def _flatten(objective: Objective):
    leaves = tuple(getattr(objective, name) for name in _TERMS)
    return leaves, tuple(getattr(objective, name) for name in _OPTIONS)


def _flatten_with_keys(objective: Objective):
    leaves, options = _flatten(objective)
    keys = (jax.tree_util.GetAttrKey(name) for name in _TERMS)
    return tuple(zip(keys, leaves, strict=True)), options


def _unflatten(options, leaves) -> Objective:
    # Past __init__ and its checks: leaves may be tracers, or JAX's own placeholders.
    objective = object.__new__(Objective)
    pairs = zip(_TERMS + _OPTIONS, (*leaves, *options), strict=True)
    for name, value in pairs:
        object.__setattr__(objective, name, value)
    return objective


jax.tree_util.register_pytree_with_keys(
    Objective, _flatten_with_keys, _unflatten, _flatten
)

"""Objective: the weighted sum of losses that a model is trained on."""

import dataclasses
import functools
import math
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int

from ntl_jax.losses.baselines import raft_cross_entropy_weights
from ntl_jax.losses.checks import check_segments, check_vocab, scalar
from ntl_jax.losses.digit_weights import digit_weights
from ntl_jax.losses.reduction import Term, sum_each
from ntl_jax.losses.softmax import Support
from ntl_jax.losses.stats import NumberStats, check_stats
from ntl_jax.losses.targets import token_weights
from ntl_jax.losses.terms import Coefficients, LossTerm, terms_of, zero_stats
from ntl_jax.numbers.vocab import NumberVocab
from ntl_jax.sharding.auto_axes import on_auto_axes

_NUMBERS = (int, float, np.integer, np.floating)
_LEAF = {"leaf": True}  # marks the parameters that a sweep may map over


@dataclasses.dataclass(frozen=True)
class Objective(Coefficients):
    """What to minimise: sum_i c_i (sum of loss i) / (count of loss i).

    The losses are the fields of `ntl_jax.losses.terms.Coefficients`. A coefficient of
    None leaves its loss out, at no cost. The others are pytree leaves: numbers or
    scalar arrays, so that ``vmap`` runs a sweep over them, where 0 switches a loss off.
    So are the parameters of the losses; the options are static.

    Cross-entropy and its Gaussian form are averaged over the labels that are not
    ignored, the number losses over what they apply to: number labels (as in ntloss and
    the paper's algorithm), whole numbers, scores or rows, all weighted.

    A frozen dataclass that inherits from it may add losses of its own, each a field
    ``name: float | None = term(...)``; see `ntl_jax.losses.terms.term`.

    Raises:
        ValueError: without any loss, for an option out of its range, a coefficient
            that is a number below 0 or not finite, or both a squash and a distance.
            Arrays are not checked: they may be traced.

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

    sigma: float | Float32[Array, ""] = dataclasses.field(default=0.5, metadata=_LEAF)
    """Width of the Gaussian targets of ``gce`` and ``cdf`` [number value]."""
    squash: float | Float32[Array, ""] | None = dataclasses.field(
        default=None, metadata=_LEAF
    )
    """Factor of `distances.squashed`, for ``was``."""
    distance: Float32[Array, "K K"] | None = dataclasses.field(
        default=None, metadata=_LEAF
    )
    """Cost matrix of ``was``, such as those of `ntl_jax.losses.distances`."""
    huber_delta: float | Float32[Array, ""] = dataclasses.field(
        default=1.0, metadata=_LEAF
    )
    """Where NTL-Huber turns from quadratic to linear [number value]."""
    tau: float | Float32[Array, ""] = dataclasses.field(default=1.0, metadata=_LEAF)
    """Temperature of DIST2Loss."""
    place_base: float | Float32[Array, ""] | None = dataclasses.field(
        default=None, metadata=_LEAF
    )
    """Weighs digits by base^(digits to the right), in the losses over tokens."""
    reweigh: bool = False
    """Penalise probability off the number tokens: NTL-WAS, its CDF form and NTL on the
    expected value."""
    support: Support = "numbers"
    """The softmax of the number losses: over the numbers, or over all tokens."""
    denominator: Literal["numbers", "all"] = "numbers"
    """What a number loss is averaged over: what it applies to, or all labels (the
    paper's 1/N)."""
    cdf_target: Literal["label", "gaussian"] = "label"
    """What ``cdf`` is the distance to: the label, or the soft target of ``gce``."""
    log_space: bool = False
    """``number_level``: compare logarithms."""
    ntil_digits: Literal["straight_through", "expected"] = "straight_through"
    """``ntil``: numbers from the most likely digits, as released, or the expected."""
    ce_on_score: bool = False
    """Cross-entropy trains the score of ``raft`` as well."""
    label_smoothing: float = 0.0
    """Of the cross-entropy, over the real vocabulary."""
    z_loss: float = 0.0
    """Adds z_loss * lse^2 to the cross-entropy."""
    ignore_index: int = -100
    """The label of ignored positions."""

    def __post_init__(self) -> None:
        if self.denominator not in ("numbers", "all"):
            raise ValueError(
                f"denominator must be 'numbers' or 'all', not {self.denominator!r}."
            )
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(
                f"label_smoothing must be in [0, 1), not {self.label_smoothing}."
            )
        if self.cdf_target not in ("label", "gaussian"):
            raise ValueError(
                f"cdf_target must be 'label' or 'gaussian', not {self.cdf_target!r}."
            )
        if self.squash is not None and self.distance is not None:
            raise ValueError("give was either squash or distance, not both.")
        for name in self.names:
            value = getattr(self, name)
            if isinstance(value, _NUMBERS) and not 0 <= value < math.inf:
                raise ValueError(
                    f"the coefficient {name} must be at least 0 and finite, "
                    f"not {value}."
                )
        if not self.names:
            terms = ", ".join(terms_of(type(self)))
            raise ValueError(f"an Objective needs a coefficient for one of {terms}.")

    def __init_subclass__(cls) -> None:
        _register(cls)

    @property
    def names(self) -> tuple[str, ...]:
        """The losses that are present, in a fixed order."""
        names = terms_of(type(self))
        return tuple(name for name in names if getattr(self, name) is not None)

    @property
    def _present(self) -> dict[str, LossTerm]:
        terms = terms_of(type(self))
        return {name: terms[name] for name in self.names}

    @on_auto_axes(labels=2)
    def __call__(
        self,
        stats: NumberStats,
        labels: Int[Array, "*B"],
        vocab: NumberVocab,
        *,
        weights: Float[Array, "*B"] | Bool[Array, "*B"] | None = None,
        segment_ids: Int[Array, "*B"] | None = None,
    ) -> dict[str, Term]:
        """Every present loss as a sum and a count, without its coefficient.

        Args:
            stats: NumberStats over [*B].
            labels: token ids [*B].
            vocab: the number tokens.
            weights: non-negative weights [*B]; 1 where None.
            segment_ids: [*B], where rows are packed: numbers end with their segment.

        Returns:
            {name: Term(sum, count)} of float32 scalars, to be added up over devices
            and micro-batches before `total` divides.

        Raises:
            TypeError, ValueError: if stats, vocab or segment_ids are of another type or
                do not fit the labels; and as the present losses do.
        """
        check_stats(stats, jnp.shape(labels))
        check_vocab(vocab)
        check_segments(segment_ids, labels)
        losses = self._losses(stats, labels, vocab, weights, segment_ids)
        kinds = {
            name: self._denominator_of(name, t) for name, t in self._present.items()
        }
        arrays = {name: value * weight for name, (value, weight) in losses.items()}
        arrays |= {kinds[name]: weight for name, (_, weight) in losses.items()}
        if "every label" in arrays and self.denominator == "all":
            ignored = self.ignore_index
            arrays["every label"] = token_weights(labels, weights, ignore_index=ignored)
        sums = sum_each(arrays)
        return {name: Term(sums[name], sums[kind]) for name, kind in kinds.items()}

    def counts(
        self,
        labels: Int[Array, "*B"],
        vocab: NumberVocab,
        weights: Float[Array, "*B"] | Bool[Array, "*B"] | None = None,
        segment_ids: Int[Array, "*B"] | None = None,
    ) -> dict[str, Float32[Array, ""]]:
        """What each loss is divided by, from labels and weights alone.

        Args:
            labels: token ids [*B].
            vocab: the number tokens.
            weights: non-negative weights [*B]; 1 where None.
            segment_ids: [*B], where rows are packed.

        Returns:
            {name: f32[]}: summed weights, the ``count`` of the terms of a call.

        Raises:
            TypeError, ValueError: as a call does.
        """
        check_vocab(vocab)
        stats = zero_stats(labels, vocab)
        terms = self(stats, labels, vocab, weights=weights, segment_ids=segment_ids)
        return {name: term.count for name, term in terms.items()}

    def total(
        self,
        terms: dict[str, Term],
        counts: dict[str, Float32[Array, ""]] | None = None,
    ) -> Float32[Array, ""]:
        """The objective itself: sum_i c_i sum_i / count_i.

        Args:
            terms: the result of a call, possibly for one micro-batch.
            counts: the counts of the whole step if ``terms`` are of a part of it: the
                totals of the parts then add up to that of the whole.

        Returns:
            A float32 scalar; a loss whose count is 0 adds 0.

        Raises:
            ValueError: for a loss without a term or count, and for a coefficient that
                is not a scalar.
        """
        for sums in (terms, terms if counts is None else counts):
            missing = [name for name in self.names if name not in sums]
            if missing:
                raise ValueError(
                    f"{', '.join(missing)} missing among {', '.join(sums) or 'none'}: "
                    "terms and counts must come from this objective, or one with the "
                    "same losses."
                )
        total = jnp.zeros((), jnp.float32)
        for name in self.names:
            term = terms[name]
            if counts is not None:
                term = term._replace(count=counts[name])
            total += scalar(name, getattr(self, name)) * term.mean
        return total

    def _denominator_of(self, name: str, term: LossTerm) -> str:
        """Names the weights that a loss is averaged over; several losses share them."""
        if term.over == "labels":
            return "labels of cross-entropy"
        if self.denominator == "all":
            return "every label"
        return "number tokens" if term.over == "tokens" else f"weight of {name}"

    def _losses(self, stats, labels, vocab, weights, segment_ids):
        """{name: (value, weight)} of the losses that are present."""
        weights_of = {
            "tokens": self._by_place(labels, vocab, weights, segment_ids),
            "labels": self._without_score(labels, vocab, weights),
        }
        return {
            name: term(
                self,
                stats,
                labels,
                vocab,
                weights=weights_of.get(term.over, weights),
                segment_ids=segment_ids,
            )
            for name, term in self._present.items()
        }

    def _any_over(self, over: str) -> bool:
        return any(term.over == over for term in self._present.values())

    def _by_place(self, labels, vocab, weights, segment_ids):
        """The weights of digits, which grow with the number of digits that follow."""
        if self.place_base is None or not self._any_over("tokens"):
            return weights
        by_place = digit_weights(
            labels,
            vocab,
            base=self.place_base,
            segment_ids=segment_ids,
            ignore_index=self.ignore_index,
        )
        if weights is None:
            return by_place
        return by_place * jnp.asarray(weights).astype(jnp.float32)

    def _without_score(self, labels, vocab, weights):
        """RAFT takes the score out of cross-entropy; every other loss leaves it."""
        if self.raft is None or self.ce_on_score or not self._any_over("labels"):
            return weights
        return raft_cross_entropy_weights(
            labels, vocab, weights=weights, ignore_index=self.ignore_index
        )


@functools.cache
def _leaves_and_options(cls: type[Objective]) -> tuple[tuple[str, ...], ...]:
    """The names of the fields that are pytree leaves, and of those that are static."""
    fields = dataclasses.fields(cls)
    parameters = tuple(f.name for f in fields if "leaf" in f.metadata)
    leaves = (*terms_of(cls), *parameters)
    return leaves, tuple(f.name for f in fields if f.name not in leaves)


def _register(cls: type[Objective]) -> None:
    def flatten(objective: Objective):
        leaves, options = _leaves_and_options(cls)
        return (
            tuple(getattr(objective, name) for name in leaves),
            tuple(getattr(objective, name) for name in options),
        )

    def flatten_with_keys(objective: Objective):
        keys = (jax.tree_util.GetAttrKey(name) for name in _leaves_and_options(cls)[0])
        leaves, options = flatten(objective)
        return tuple(zip(keys, leaves, strict=True)), options

    def unflatten(options, leaves) -> Objective:
        # Past __init__ and its checks: leaves may be tracers, or JAX's placeholders.
        objective = object.__new__(cls)
        names = sum(_leaves_and_options(cls), ())
        for name, value in zip(names, (*leaves, *options), strict=True):
            object.__setattr__(objective, name, value)
        return objective

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)


_register(Objective)

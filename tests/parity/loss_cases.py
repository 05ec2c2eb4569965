"""The grid on which the losses are compared with PyTorch, and our side of it."""

import dataclasses
import itertools
from collections.abc import Iterator
from functools import cached_property, partial

import jax
import jax.numpy as jnp
import numpy as np

from ntl_jax import (
    NumberVocab,
    Objective,
    cross_entropy,
    cross_entropy_from_stats,
    ntl_huber,
    ntl_mae,
    ntl_mse,
    ntl_was,
    ntl_was_from_stats,
    stats_from_logits,
)

TOLERANCE = 1e-5  # absolute and relative, in float32
QUICK = {"xla_backend_optimization_level": 0}  # there is more to compile than to run
REDUCTIONS = (None, "mean", "sum")
LAMBDA = 0.3  # of CE + lambda WAS
LOSSES = {"was": ntl_was, "mse": ntl_mse, "mae": ntl_mae, "huber": ntl_huber}


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Tokens, their ids and the policy that both sides read them with."""

    tokens: tuple[tuple[str, int], ...]
    vocab_size: int
    policy: str

    @cached_property
    def numbers(self) -> NumberVocab:
        return NumberVocab.from_mapping(
            dict(self.tokens), vocab_size=self.vocab_size, policy=self.policy
        )


# Digits out of order, one of them at id 0, among text and columns without a token.
DIGITS = Vocabulary(
    tuple({"5": 0, "a": 1, "0": 2, "9": 3, "b": 4, "1": 5, "4": 6, "2": 7}.items())
    + tuple({"8": 8, "3": 9, "7": 10, "6": 12, "c": 13}.items()),
    vocab_size=17,
    policy="digits",
)
# Uneven steps, fractions, a negative number and two tokens of one value.
IRREGULAR = Vocabulary(
    tuple({"a": 0, "2.5": 1, "100": 2, "-3": 3, "b": 4, "1_0": 5}.items())
    + tuple({"10": 6, "0": 7, "c": 8}.items()),
    vocab_size=12,
    policy="ntloss",
)


@dataclasses.dataclass(frozen=True)
class Case:
    """One loss under one set of options."""

    loss: str
    vocabulary: Vocabulary = DIGITS
    reweigh: bool = False
    weighted: bool = True
    ignore_index: int = -100
    label_smoothing: float = 0.0

    def __str__(self) -> str:
        parts = [self.loss, self.vocabulary.policy]
        parts += ["reweigh"] * self.reweigh + ["weighted"] * self.weighted
        parts += [f"smooth{self.label_smoothing}"] * bool(self.label_smoothing)
        return "-".join([*parts, f"ignore{self.ignore_index}"])

    @property
    def title(self) -> str:
        """The name of the loss in a table."""
        names = {"ce": "CE", "was": "NTL-WAS", "mse": "NTL-MSE", "mae": "NTL-MAE"}
        names |= {"huber": "NTL-Huber", "ce+was": f"CE + {LAMBDA} NTL-WAS"}
        return names[self.loss] + ", reweigh" * self.reweigh

    def batch(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Logits [3, 7, V], labels with every token and ignored ones, weights."""
        rng = np.random.default_rng(7)
        columns = self.vocabulary.vocab_size
        logits = rng.normal(size=(3, 7, columns)).astype(np.float32) * 2
        ids = [token_id for _, token_id in self.vocabulary.tokens]
        labels = rng.permutation(np.resize(ids, 21)).reshape(3, 7).astype(np.int32)
        labels[0, 0] = labels[2, -1] = self.ignore_index
        weights = rng.uniform(0.1, 3, size=labels.shape).astype(np.float32)
        weights[1, 1:3] = 0
        return logits, labels, weights if self.weighted else None


def cotangent(shape: tuple[int, ...]) -> np.ndarray:
    """What a loss of this shape is multiplied with before its gradient is taken."""
    return np.linspace(0.5, 1.5, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def number_cases() -> Iterator[Case]:
    """Losses x reweigh x weights x ignore_index, and uneven values for each loss."""
    digit_of_seven = 10
    for loss, reweigh in itertools.product(LOSSES, (False, True)):
        for weighted, ignored in itertools.product(
            (False, True), (-100, 4, digit_of_seven)
        ):
            yield Case(loss, reweigh=reweigh, weighted=weighted, ignore_index=ignored)
        yield Case(loss, vocabulary=IRREGULAR, reweigh=reweigh)


def cross_entropy_cases() -> Iterator[Case]:
    """Weights x ignore_index x label smoothing."""
    for weighted, ignored, smoothing in itertools.product(
        (False, True), (-100, 4), (0.0, 0.1)
    ):
        yield Case(
            "ce", weighted=weighted, ignore_index=ignored, label_smoothing=smoothing
        )


def golden_cases() -> list[Case]:
    """The part of the grid that is kept in a file."""
    numbers = [
        Case(loss, vocabulary=vocabulary, reweigh=reweigh)
        for loss in LOSSES
        for vocabulary in (DIGITS, IRREGULAR)
        for reweigh in (False, True)
    ]
    return [*numbers, Case("ce"), Case("ce", label_smoothing=0.1), Case("ce+was")]


def token_loss(case: Case, logits, labels, weights, reduction, vocab, **options):
    """Our loss of a case; ``vocab`` and ``options`` are where a test can go wrong."""
    common = {"weights": weights, "reduction": reduction}
    common["ignore_index"] = case.ignore_index
    if case.loss in LOSSES:
        loss = LOSSES[case.loss]
        return loss(logits, labels, vocab, reweigh=case.reweigh, **common, **options)
    if case.loss == "ce":
        smoothing = case.label_smoothing
        return cross_entropy(logits, labels, label_smoothing=smoothing, **common)
    return mixture(logits, labels, vocab, **common)


def mixture(logits, labels, vocab, *, weights, reduction, ignore_index):
    """CE + lambda WAS off one set of stats; as an Objective where it is a mean."""
    stats = stats_from_logits(logits, labels, vocab, ignore_index=ignore_index)
    if reduction == "mean":
        objective = Objective(ce=1.0, was=LAMBDA, ignore_index=ignore_index)
        return objective.total(objective(stats, labels, vocab, weights=weights))
    options = {"weights": weights, "ignore_index": ignore_index}
    ce = cross_entropy_from_stats(stats, labels, vocab, **options)
    was = ntl_was_from_stats(stats, labels, vocab, **options)
    tokens = ce[0] * ce[1] + LAMBDA * was[0] * was[1]
    return tokens if reduction is None else tokens.sum()


def ours(case: Case, logits, labels, weights, *, vocab=None, **options) -> dict:
    """{reduction: (value, gradient)}, under jit, the gradient in the logits' dtype."""
    vocab = case.vocabulary.numbers if vocab is None else vocab

    def value_and_gradient(reduction, logits, labels, weights):
        def loss(z):
            return token_loss(case, z, labels, weights, reduction, vocab, **options)

        value, pull = jax.vjp(loss, logits)
        (gradient,) = pull(jnp.asarray(cotangent(value.shape)))
        return value, gradient

    @partial(jax.jit, compiler_options=QUICK)
    def run(*batch):
        return {str(r): value_and_gradient(r, *batch) for r in REDUCTIONS}

    weights = None if weights is None else jnp.asarray(weights)
    return run(jnp.asarray(logits), jnp.asarray(labels), weights)

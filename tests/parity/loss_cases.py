"""The grid on which the losses are compared with ntloss and PyTorch."""

import dataclasses
import itertools
from collections.abc import Iterator
from functools import cached_property

import numpy as np

TOLERANCE = 1e-5  # absolute and relative, in float32
HALF_ULP = 2**-8  # of bfloat16, relative
LAMBDA = 0.3  # of CE + lambda WAS


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Tokens and their ids, as a tokenizer that both sides can read."""

    tokens: tuple[tuple[str, int], ...]
    vocab_size: int
    ignored: tuple[int, int, int]  # the usual index, that of a text, that of a number

    @cached_property
    def ids(self) -> dict[str, int]:
        return dict(self.tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    def get_vocab(self) -> dict[str, int]:
        return dict(self.tokens)

    def convert_tokens_to_ids(self, token: str) -> int:
        return self.ids[token]

    def add_tokens(self, tokens: list[str]) -> int:
        """What ntloss calls for the digits; none may be missing."""
        missing = [token for token in tokens if token not in self.ids]
        if missing:
            raise ValueError(f"the test vocabulary lacks {missing}")
        return 0


# Digits out of order, one of them at id 0, among text and columns without a token.
DIGITS = Vocabulary(
    tuple({"5": 0, "a": 1, "0": 2, "9": 3, "b": 4, "1": 5, "4": 6, "2": 7}.items())
    + tuple({"8": 8, "3": 9, "7": 10, "6": 12, "c": 13, ".": 15}.items()),
    vocab_size=17,
    ignored=(-100, 4, 10),
)
# Uneven steps, fractions, a negative number and two tokens of one value.
IRREGULAR = Vocabulary(
    tuple({"a": 0, "2.5": 1, "100": 2, "-3": 3, "b": 4, "1_0": 5}.items())
    + tuple({"10": 6, "0": 7, "c": 8}.items()),
    vocab_size=12,
    ignored=(-100, 4, 6),
)

NUMBER_LOSSES = ("was", "was-squash2", "was-squash20", "mse", "mae", "huber")
SPAN_LOSSES = ("number", "number-float")  # always of digits
AXES = {
    "loss": (*NUMBER_LOSSES, *SPAN_LOSSES),
    "digit_level": (True, False),
    "reweigh": (False, True),
    "reduction": ("mean", "sum", "none"),
    "weights": ("ones", "floats", "mask"),
    "ignored": ("usual", "text", "number"),
    "dtype": ("float32", "bfloat16"),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One loss under one set of options."""

    loss: str
    digit_level: bool = True
    reweigh: bool = False
    reduction: str = "mean"
    weights: str = "floats"
    ignored: str = "usual"
    dtype: str = "float32"
    label_smoothing: float = 0.0

    def __str__(self) -> str:
        parts = [self.loss, "digits" if self.digit_level else "uneven"]
        parts += ["reweigh"] * self.reweigh
        parts += [self.reduction, self.weights, self.ignored, self.dtype]
        parts += [f"smooth{self.label_smoothing}"] * bool(self.label_smoothing)
        return "-".join(parts)

    @property
    def vocabulary(self) -> Vocabulary:
        return DIGITS if self.digit_level else IRREGULAR

    @property
    def ignore_index(self) -> int:
        return self.vocabulary.ignored[AXES["ignored"].index(self.ignored)]

    @property
    def squash(self) -> float | None:
        _, _, factor = self.loss.partition("squash")
        return float(factor) if factor else None

    @property
    def float_level(self) -> bool:
        return self.loss == "number-float"

    def batch(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Logits [3, 7, V], labels with every number and ignored ones, weights."""
        rng = np.random.default_rng(7)
        columns = self.vocabulary.vocab_size
        logits = rng.normal(size=(3, 7, columns)).astype(np.float32) * 2
        if self.digit_level:
            rows = ("a12.04b", "7.8.905", "6923..1")
            labels = np.array([[DIGITS.ids[c] for c in row] for row in rows], np.int32)
        else:
            ids = np.resize([*IRREGULAR.ids.values()], 21)
            labels = rng.permutation(ids).reshape(3, 7).astype(np.int32)
        labels[0, 0] = labels[1, 5] = labels[2, -1] = self.ignore_index
        weights = rng.uniform(0.1, 3, size=labels.shape).astype(np.float32)
        weights[1, 1:3] = weights[2, 0] = 0
        given = {"ones": None, "floats": weights, "mask": weights > 1}
        return logits, labels, given[self.weights]


def cotangent(shape: tuple[int, ...]) -> np.ndarray:
    """What a loss of this shape is multiplied with before its gradient is taken."""
    return np.linspace(0.5, 1.5, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def grid() -> list[Case]:
    """Every combination of the axes that ntloss has."""
    cases = (
        Case(**dict(zip(AXES, choice, strict=True)))
        for choice in itertools.product(*AXES.values())
    )
    return [case for case in cases if case.digit_level or case.loss not in SPAN_LOSSES]


def pairs(case: Case) -> Iterator[tuple]:
    """What a case covers: every two of its choices."""
    choices = [(axis, getattr(case, axis)) for axis in AXES]
    return itertools.combinations(choices, 2)


def pairwise() -> list[Case]:
    """A few cases of the grid that hold every pair of choices, found greedily."""
    cases = grid()
    missing = {pair for case in cases for pair in pairs(case)}
    chosen = []
    while missing:
        best = max(cases, key=lambda case: len(missing.intersection(pairs(case))))
        chosen.append(best)
        missing.difference_update(pairs(best))
    return chosen


def cross_entropy_cases() -> Iterator[Case]:
    """Weights x ignored labels x label smoothing x reduction."""
    for weights, ignored, smoothing, reduction in itertools.product(
        AXES["weights"], ("usual", "text"), (0.0, 0.1), AXES["reduction"]
    ):
        yield Case(
            "ce",
            weights=weights,
            ignored=ignored,
            label_smoothing=smoothing,
            reduction=reduction,
        )
    yield Case("ce", dtype="bfloat16", label_smoothing=0.1)


def mixture_cases() -> list[Case]:
    """CE + lambda WAS, each over its own count."""
    cases = [Case("ce+was", reduction=reduction) for reduction in AXES["reduction"]]
    return [*cases, Case("ce+was", dtype="bfloat16")]


def quick_cases() -> list[Case]:
    """What every run of the tests compares, with torch or with what it once gave."""
    return [*pairwise(), *cross_entropy_cases(), *mixture_cases()]

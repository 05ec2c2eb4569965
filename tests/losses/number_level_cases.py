"""Rows of numbers, on which the whole-number loss is compared with ntloss."""

import dataclasses
import itertools

import numpy as np

from ntl_jax import NumberVocab
from tests.losses.number_text import COLUMNS, TOKENS, encode
from tests.parity.loss_cases import Vocabulary

VOCAB = NumberVocab.from_mapping(TOKENS, vocab_size=COLUMNS)  # the bare digits
VOCABULARY = Vocabulary(tuple(TOKENS.items()), COLUMNS, (-100, TOKENS["a"], 0))
TEXTS = ("12.34a7a-5a0%1..2", "1.2.3,456.9_8.5_(", "00.7a.5)" + "8" * 9)
LONG = "9" * 25


@dataclasses.dataclass(frozen=True)
class Case:
    """The options of one comparison."""

    float_level: bool = False
    reweigh: bool = False
    weighted: bool = True
    max_number_length: int = 20

    def __str__(self) -> str:
        names = {"float": self.float_level, "reweigh": self.reweigh}
        names["weighted"] = self.weighted
        parts = [name for name, holds in names.items() if holds]
        return "-".join([*parts, f"length{self.max_number_length}"])

    def batch(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Logits [4, T, V], labels [4, T], weights with zeros in numbers."""
        rng = np.random.default_rng(3)
        labels = np.asarray(encode(*TEXTS, LONG))
        logits = rng.normal(size=(*labels.shape, COLUMNS)).astype(np.float32) * 2
        weights = rng.uniform(0.1, 3, size=labels.shape).astype(np.float32)
        weights[0, [1, 6]] = 0  # the second digit of 12.34, and all of 7
        return logits, labels, weights if self.weighted else None


CASES = [
    Case(*options)
    for options in itertools.product((False, True), (False, True), (False, True))
]
CASES += [Case(max_number_length=3), Case(float_level=True, max_number_length=2)]

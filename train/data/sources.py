"""Rows of questions and answers: sums in words, and what reads each kind of file."""

from typing import Literal

import numpy as np

from train.data.files import DataError as DataError
from train.data.files import find_file as find_file
from train.data.gsm8k import read_gsm8k as read_gsm8k
from train.data.jsonl import read_jsonl as read_jsonl
from train.data.mathematics import read_mathematics as read_mathematics
from train.data.multirc import read_multirc as read_multirc
from train.data.rows import Row as Row
from train.data.tsv import read_rjokes as read_rjokes
from train.data.tsv import read_tsv as read_tsv

Split = Literal["train", "interpolation", "extrapolation"]

_TEMPLATES = (
    ("What is {a} plus {b}?", 1),
    ("Add {b} to {a}.", 1),
    ("Calculate {a} + {b}.", 1),
    ("What is the sum of {a} and {b}?", 1),
    ("What is {a} minus {b}?", -1),
    ("Subtract {b} from {a}.", -1),
    ("Calculate {a} - {b}.", -1),
    ("Take {b} away from {a}.", -1),
)
_HELD_OUT = 10  # one pair in so many is kept for evaluation by interpolation
_BLOCK = 1024


def arithmetic_questions(
    n: int, *, seed: int, max_operand: int, split: Split = "train"
) -> list[Row]:
    """Generates additions and subtractions in words, answers in digits.

    The operands are uniform in 0..max_operand. A fixed tenth of their unordered pairs,
    the same for every seed, occurs in the split ``"interpolation"`` and nowhere else.
    In ``"extrapolation"`` both operands are in max_operand + 1..10 max_operand + 9: for
    99, three digits instead of up to two.

    Args:
        n: how many rows.
        seed: equal seeds give equal rows.
        max_operand: largest operand of training, at least 9.
        split: which of the three sets.

    Returns:
        n rows ``{"question": ..., "answer": ...}``, the first n of an endless sequence;
        answers may be negative.

    Raises:
        DataError: max_operand is below 9 (too few pairs to hold any out), or n below 0.

    Example:
        >>> for row in arithmetic_questions(2, seed=0, max_operand=99):
        ...     print(row["question"], row["answer"])
        Calculate 85 - 63. 22
        What is the sum of 51 and 26? 77
    """
    if max_operand < 9:
        raise DataError(f"max_operand must be at least 9, got {max_operand}")
    if n < 0:
        raise DataError(f"the number of questions must not be negative, got {n}")
    salt = ("train", "interpolation", "extrapolation").index(split)
    rng = np.random.Generator(np.random.PCG64([seed, salt]))
    low, high = 0, max_operand
    if split == "extrapolation":
        low, high = max_operand + 1, 10 * max_operand + 9
    # Blocks of one size, so that the first rows do not depend on how many follow.
    pairs, kinds = [], []
    while len(pairs) < n:
        drawn = rng.integers(low, high, (_BLOCK, 2), endpoint=True)  # [block, 2]
        kind = rng.integers(0, len(_TEMPLATES), _BLOCK)  # [block]
        if split != "extrapolation":
            chosen = _is_held_out(drawn) == (split == "interpolation")
            drawn, kind = drawn[chosen], kind[chosen]
        pairs.extend(drawn.tolist())
        kinds.extend(kind.tolist())
    rows = []
    for (a, b), kind in zip(pairs[:n], kinds[:n], strict=True):
        template, sign = _TEMPLATES[kind]
        answer = str(a + sign * b)
        rows.append({"question": template.format(a=a, b=b), "answer": answer})
    return rows


def _is_held_out(pairs: np.ndarray) -> np.ndarray:
    """One bool a pair of operands [n, 2], by a hash that knows no order and no seed."""
    low = pairs.min(axis=1).astype(np.uint64)
    high = pairs.max(axis=1).astype(np.uint64)
    # SplitMix64's finaliser over both operands; unsigned arithmetic wraps around.
    x = low * np.uint64(0x9E3779B97F4A7C15) + high * np.uint64(0xD1B54A32D192ED03)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(31))
    return x % np.uint64(_HELD_OUT) == 0

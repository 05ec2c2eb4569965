"""Generated arithmetic: sums in words, and products of numbers."""

from typing import Literal

import numpy as np

from train.data.files import DataError
from train.data.rows import ComputedRows, Row

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
_HELD_OUT = 10  # one pair in 10 is held out for evaluation by interpolation
_BLOCK = 1024
_TEST_ROWS = 500  # per cell, or a fifth of its pairs
_TEST_SHARE = 5
_MOST_DIGITS = 9  # so that a pair of operands fits into an i64

Cell = tuple[int, int]
_LOW, _HIGH = 100, 999
_WIDTH = _HIGH - _LOW + 1
_PAIRS = _WIDTH**2
HELD_OUT_SIZES = {"validation": 10_000, "test": 20_000}
"""Held-out rows of the 810,000; the other 780,000 are for training."""

_BLOCKS = {"test": 5_000, "validation": 3_000}  # the paper's form: the last pairs


def arithmetic_questions(
    n: int, *, seed: int, max_operand: int, split: Split = "train"
) -> list[Row]:
    """Generates additions and subtractions in words, answers in digits.

    The operands are uniform in 0..max_operand. A fixed tenth of their unordered pairs,
    the same for every seed, occurs only in the split ``"interpolation"``.
    In ``"extrapolation"`` both operands are in max_operand + 1..10 max_operand + 9: for
    99, three digits instead of up to two.

    Args:
        n: how many rows.
        seed: equal seeds give equal rows.
        max_operand: largest operand of training, at least 9.
        split: which of the three sets.

    Returns:
        n rows ``{"question": ..., "answer": ...}``, the first n of an infinite
        sequence; answers may be negative.

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
    # Blocks of one size, so that the first rows do not depend on n.
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
    """One bool per pair of operands [n, 2], by a hash without order and seed."""
    low = pairs.min(axis=1).astype(np.uint64)
    high = pairs.max(axis=1).astype(np.uint64)
    # SplitMix64's finaliser over both operands; unsigned arithmetic wraps around.
    x = low * np.uint64(0x9E3779B97F4A7C15) + high * np.uint64(0xD1B54A32D192ED03)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(31))
    return x % np.uint64(_HELD_OUT) == 0


def cells(digits: int, beyond: int = 0) -> list[Cell]:
    """The cells (k, l) of 1..digits, or those that `beyond` more digits add.

    >>> cells(2)
    [(1, 1), (1, 2), (2, 1), (2, 2)]
    >>> cells(1, beyond=1)
    [(1, 2), (2, 1), (2, 2)]
    """
    sizes = range(1, digits + beyond + 1)
    every = [(first, second) for first in sizes for second in sizes]
    return [cell for cell in every if not beyond or max(cell) > digits]


def multiplication_test(cell: Cell, *, seed: int) -> ComputedRows:
    """The held-out products of one cell, which training never shows.

    Args:
        cell: (k, l), the digits of the two operands.
        seed: chooses the pairs.

    Returns:
        min(500, a fifth of the cell's pairs) different rows
        ``{"question": "12*345=", "answer": "4140"}``.

    Raises:
        DataError: an operand of 0 digits, or of more than 9.

    Source: *Regress, Don't Guess* (ICML 2025), the multiplication of decoder-only
    models.
    """
    return _products(_test_pairs(cell, seed), "{}*{}=")


def multiplication_train(n: int, *, digits: int, seed: int) -> ComputedRows:
    """Products for training, all cells of 1..digits equally often.

    Args:
        n: how many rows.
        digits: the most digits of an operand.
        seed: equal seeds give equal rows; no row is in `multiplication_test` of the
            same seed, in either order (12*345 and 345*12).

    Returns:
        n rows in random order, drawn with replacement.

    Raises:
        DataError: digits are outside 1..9, or n is negative.
    """
    if n < 0:
        raise DataError(f"the number of questions must not be negative, got {n}")
    all_cells = cells(digits)
    if not all_cells:
        raise DataError(f"the digits of an operand must be in 1..9, got {digits}")
    rng = np.random.Generator(np.random.PCG64([seed, digits]))
    pairs = np.empty((n, 2), np.int64)
    which = rng.integers(0, len(all_cells), n)
    for number, cell in enumerate(all_cells):
        here = np.flatnonzero(which == number)
        pairs[here] = _train_pairs(cell, len(here), seed, rng)
    return _products(pairs, "{}*{}=")


def _train_pairs(cell: Cell, n: int, seed: int, rng) -> np.ndarray:
    held_out = _keys(_test_pairs(cell, seed))
    other_order = _keys(_test_pairs((cell[1], cell[0]), seed)[:, ::-1])
    held_out = np.unique(np.concatenate([held_out, other_order]))
    chosen = np.empty((0, 2), np.int64)
    while len(chosen) < n:
        drawn = _draw(cell, n - len(chosen), rng)
        known = np.isin(_keys(drawn), held_out)
        chosen = np.concatenate([chosen, drawn[~known]])
    return chosen


def _test_pairs(cell: Cell, seed: int) -> np.ndarray:
    """i64[n, 2], different pairs of one cell."""
    (low_a, high_a), (low_b, high_b) = (_range(k) for k in cell)
    exist = (high_a - low_a + 1) * (high_b - low_b + 1)
    n = min(_TEST_ROWS, exist // _TEST_SHARE)
    rng = np.random.Generator(np.random.PCG64([seed, *cell]))
    if exist <= 10 * _TEST_ROWS:  # few enough to shuffle
        place = rng.permutation(exist)[:n]
        width = high_b - low_b + 1
        return np.stack([low_a + place // width, low_b + place % width], axis=1)
    seen: dict[int, None] = {}
    while len(seen) < n:
        seen |= dict.fromkeys(_keys(_draw(cell, n, rng)).tolist())
    keys = np.array(list(seen)[:n], np.int64)
    return np.stack(np.divmod(keys, 10**_MOST_DIGITS), axis=1)


def _draw(cell: Cell, n: int, rng) -> np.ndarray:
    columns = [rng.integers(*_range(k), n, endpoint=True) for k in cell]
    return np.stack(columns, axis=1)


def _range(digits: int) -> tuple[int, int]:
    """The smallest and the largest number with this many digits; 1..9 for one."""
    if not 1 <= digits <= _MOST_DIGITS:
        raise DataError(f"the digits of an operand must be in 1..9, got {digits}")
    return 10 ** (digits - 1), 10**digits - 1


def _keys(pairs: np.ndarray) -> np.ndarray:
    """One number per pair."""
    return pairs[:, 0] * 10**_MOST_DIGITS + pairs[:, 1]


def three_digit_products(
    *, seed: int, paper_form: bool = False
) -> dict[str, ComputedRows]:
    """The products of `three_digit_pairs` as questions.

    Returns:
        Rows ``{"question": "What is 123 times 456?", "answer": "56088"}`` of ``train``,
        ``validation`` and ``test``, in random order.

    Source: *Regress, Don't Guess* (ICML 2025), its comparison with xVal (Golkar et al.,
    2023).
    """
    pairs = three_digit_pairs(seed=seed, paper_form=paper_form)
    return {
        name: _products(part, "What is {} times {}?") for name, part in pairs.items()
    }


def three_digit_pairs(*, seed: int, paper_form: bool = False) -> dict[str, np.ndarray]:
    """Splits all pairs of numbers of three digits.

    A pair and its reverse, (123, 456) and (456, 123), are in the same set. In the
    paper's form they need not be: the largest first operands fill a part of the test
    and validation sets, and the rest is drawn pair by pair, so that training shows
    nearly all of them in reverse.

    Args:
        seed: chooses the pairs.
        paper_form: as the paper's code splits them.

    Returns:
        i64[N, 2], each pair once: 780,000 of ``train``, 10,000 of ``validation``,
        20,000 of ``test``.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    held_out = _paper_places(rng) if paper_form else _places_by_product(rng)
    is_free = np.ones(_PAIRS, bool)
    for part in held_out.values():
        is_free[part] = False
    places = {"train": np.flatnonzero(is_free)} | {
        name: held_out[name] for name in HELD_OUT_SIZES
    }
    return {
        name: np.stack(np.divmod(rng.permutation(part), _WIDTH), axis=1) + _LOW
        for name, part in places.items()
    }


def _places_by_product(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Indices of pairs: one for each square, two for every other product."""
    squares = np.arange(_WIDTH)[rng.permutation(_WIDTH)]
    pairs = np.stack(np.triu_indices(_WIDTH, k=1), axis=1)  # [404550, 2]
    pairs = pairs[rng.permutation(len(pairs))]
    places = {}
    for name, size in HELD_OUT_SIZES.items():
        # The same fraction of squares in each set, an even number as of other pairs.
        n_squares = 2 * round(size / _WIDTH / 2)
        n_pairs = (size - n_squares) // 2
        roots, squares = squares[:n_squares], squares[n_squares:]
        (a, b), pairs = pairs[:n_pairs].T, pairs[n_pairs:]
        places[name] = np.concatenate(
            [roots * _WIDTH + roots, a * _WIDTH + b, b * _WIDTH + a]
        )
    return places


def _paper_places(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Indices of pairs: the last ones, in order of their operands, and random ones."""
    left = np.arange(_PAIRS)
    blocks = {}
    for name, size in _BLOCKS.items():
        left, blocks[name] = left[:-size], left[-size:]
    left = rng.permutation(left)
    places = {}
    for name, block in blocks.items():
        size = HELD_OUT_SIZES[name] - len(block)
        drawn, left = left[:size], left[size:]
        places[name] = np.concatenate([block, drawn])
    return places


def _products(pairs: np.ndarray, question: str) -> ComputedRows:
    def row(number: int) -> Row:
        a, b = pairs[number].tolist()
        return {"question": question.format(a, b), "answer": str(a * b)}

    return ComputedRows(len(pairs), row)

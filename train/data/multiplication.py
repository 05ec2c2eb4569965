"""Products of a k-digit and an l-digit number, cell by cell."""

import numpy as np

from train.data.rows import ComputedRows, Row
from train.data.sources import DataError

_TEST_ROWS = 500  # a cell, or a fifth of the pairs that exist
_TEST_SHARE = 5
_MOST_DIGITS = 9  # so that a pair of operands fits into an i64

Cell = tuple[int, int]


def cells(digits: int, beyond: int = 0) -> list[Cell]:
    """The cells (k, l) of 1..digits, or those that the next sizes add to them.

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
        min(500, a fifth of the pairs that exist) different rows
        ``{"question": "12*345=", "answer": "4140"}``.

    Raises:
        DataError: an operand of no digit, or of more than 9.

    Source: *Regress, Don't Guess* (ICML 2025), the multiplication of decoder-only
    models.
    """
    return _rows(_test_pairs(cell, seed))


def multiplication_train(n: int, *, digits: int, seed: int) -> ComputedRows:
    """Products for training, every cell of 1..digits equally often.

    Args:
        n: how many rows.
        digits: the most digits of an operand.
        seed: equal seeds give equal rows; no row is in `multiplication_test` of the
            same seed, nor is its other order (12*345 and 345*12).

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
    return _rows(pairs)


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
    if exist <= 10 * _TEST_ROWS:  # few enough to shuffle them all
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
    """The least and the largest number of so many digits; 1..9 for one."""
    if not 1 <= digits <= _MOST_DIGITS:
        raise DataError(f"the digits of an operand must be in 1..9, got {digits}")
    return 10 ** (digits - 1), 10**digits - 1


def _keys(pairs: np.ndarray) -> np.ndarray:
    """One number a pair."""
    return pairs[:, 0] * 10**_MOST_DIGITS + pairs[:, 1]


def _rows(pairs: np.ndarray) -> ComputedRows:
    def row(number: int) -> Row:
        a, b = pairs[number].tolist()
        return {"question": f"{a}*{b}=", "answer": str(a * b)}

    return ComputedRows(len(pairs), row)

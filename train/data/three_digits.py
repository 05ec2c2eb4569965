"""All products of two numbers of three digits, as the comparison with xVal takes."""

import numpy as np

from train.data.rows import ComputedRows, Row

_LOW, _HIGH = 100, 999
_WIDTH = _HIGH - _LOW + 1
_PAIRS = _WIDTH**2
SIZES = {"validation": 10_000, "test": 20_000}
"""Rows held out of the 810,000; the other 780,000 are for training."""

_BLOCKS = {"test": 5_000, "validation": 3_000}  # the paper's form: the last pairs


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
    return {name: _rows(part) for name, part in pairs.items()}


def three_digit_pairs(*, seed: int, paper_form: bool = False) -> dict[str, np.ndarray]:
    """Splits all pairs of numbers of three digits.

    A pair and its other order, (123, 456) and (456, 123), are in the same set. In the
    paper's form they need not be: there, the largest first operands fill a part of the
    test and validation sets, and the rest is drawn pair by pair, so that training shows
    the other order of nearly all.

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
        name: held_out[name] for name in SIZES
    }
    return {
        name: np.stack(np.divmod(rng.permutation(part), _WIDTH), axis=1) + _LOW
        for name, part in places.items()
    }


def _places_by_product(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Places of pairs: one of each square, both of every other product."""
    squares = np.arange(_WIDTH)[rng.permutation(_WIDTH)]
    pairs = np.stack(np.triu_indices(_WIDTH, k=1), axis=1)  # [404550, 2]
    pairs = pairs[rng.permutation(len(pairs))]
    places = {}
    for name, size in SIZES.items():
        # The share of squares as everywhere, but in twos, as the other pairs come.
        n_squares = 2 * round(size / _WIDTH / 2)
        n_pairs = (size - n_squares) // 2
        roots, squares = squares[:n_squares], squares[n_squares:]
        (a, b), pairs = pairs[:n_pairs].T, pairs[n_pairs:]
        places[name] = np.concatenate(
            [roots * _WIDTH + roots, a * _WIDTH + b, b * _WIDTH + a]
        )
    return places


def _paper_places(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Places of pairs: the last ones, in order of their operands, and random others."""
    left = np.arange(_PAIRS)
    blocks = {}
    for name, size in _BLOCKS.items():
        left, blocks[name] = left[:-size], left[-size:]
    left = rng.permutation(left)
    places = {}
    for name, block in blocks.items():
        size = SIZES[name] - len(block)
        drawn, left = left[:size], left[size:]
        places[name] = np.concatenate([block, drawn])
    return places


def _rows(pairs: np.ndarray) -> ComputedRows:
    def row(number: int) -> Row:
        a, b = pairs[number].tolist()
        return {"question": f"What is {a} times {b}?", "answer": str(a * b)}

    return ComputedRows(len(pairs), row)

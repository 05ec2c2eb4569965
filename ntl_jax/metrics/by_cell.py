"""Scores by cell of a grid of tasks, such as products of k by l digits."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import NamedTuple

import numpy as np

from ntl_jax.metrics.pairs import NumberPairs
from ntl_jax.numbers.grammar import find_numbers


class CellScores(NamedTuple):
    """Scores of the rows of one cell.

    Attributes:
        n: rows.
        number_accuracy: share whose number is exact.
        unparsable_rate: share whose prediction holds no number.
        mape: mean of 100 abs((p - y) / y) in percent, over readable predictions and
            labels other than 0; None if there are none.
        mape_median: the median of the same.
        mape_penalised: the mean with unreadable predictions counted as 0, an error of
            100%.
    """

    n: int
    number_accuracy: float
    unparsable_rate: float
    mape: float | None
    mape_median: float | None
    mape_penalised: float | None


def scores_by_cell(
    pairs: NumberPairs, cells: Sequence[Hashable]
) -> dict[Hashable, CellScores]:
    """Accuracy and mean absolute percentage error of each cell.

    The few answers of a wrong length dominate the mean, but not the median.

    Args:
        pairs: N pairs of numbers.
        cells: the cell of each, such as the (k, l) that `operand_digits` reads.

    Returns:
        Scores by cell, in the order of their first rows.

    Raises:
        ValueError: a number of cells other than N.

    Example:
        >>> from ntl_jax.metrics import read_pairs
        >>> cells = [operand_digits(q) for q in ("12*5=", "30*2=", "7*7=")]
        >>> scores = scores_by_cell(read_pairs(["60", "66", "49"], ["60"] * 2 + ["49"]),
        ...     cells)
        >>> scores[2, 1].mape, scores[1, 1].number_accuracy
        (5.0, 1.0)

    Source: *Regress, Don't Guess* (ICML 2025), multiplication with decoder-only models.
    """
    if len(cells) != len(pairs):
        raise ValueError(
            f"{len(cells)} cells for {len(pairs)} pairs: give one per pair."
        )
    rows: dict[Hashable, list[int]] = {}
    for row, cell in enumerate(cells):
        rows.setdefault(cell, []).append(row)
    return {cell: _scores(pairs, np.array(chosen)) for cell, chosen in rows.items()}


def mean_over_cells(
    scores: Mapping[Hashable, CellScores],
    cells: Iterable[Hashable] | None = None,
    *,
    name: str = "mape",
) -> float | None:
    """The unweighted mean of one score over cells, as the paper's tables give it.

    Args:
        scores: of `scores_by_cell`.
        cells: which cells, such as those of interpolation; all by default.
        name: the score, a field of `CellScores`.

    Returns:
        The mean; None if a cell has no such score, rather than the mean of the others.

    Raises:
        ValueError: no cells, or one that is not in `scores`.

    Example:
        >>> small, large = (CellScores(9, 1.0, 0.0, m, m, m) for m in (0.5, 1.5))
        >>> mean_over_cells({(1, 1): small, (2, 2): large})
        1.0

    Source: *Regress, Don't Guess* (ICML 2025), table of decoder-only models.
    """
    chosen = list(scores if cells is None else cells)
    missing = [cell for cell in chosen if cell not in scores]
    if missing or not chosen:
        raise ValueError(f"cells {missing or chosen} are not among {list(scores)}")
    values = [getattr(scores[cell], name) for cell in chosen]
    return None if None in values else float(np.mean(values))


def operand_digits(question: str) -> tuple[int, ...]:
    """The number of digits of each whole number in a question, without leading zeros.

    >>> operand_digits("What is 123 times 45?")
    (3, 2)
    """
    numbers = (number.value for number in find_numbers(question))
    return tuple(
        number.adjusted() + 1 if number else 1
        for number in numbers
        if isinstance(number, Decimal) and number == number.to_integral_value()
    )


def _scores(pairs: NumberPairs, rows: np.ndarray) -> CellScores:
    parsed, nonzero = pairs.parsed[rows], pairs.y[rows] != 0
    percentage = pairs.percentage[rows]
    read = percentage[parsed & nonzero]
    filled = np.where(parsed, percentage, 100.0)[nonzero]
    return CellScores(
        len(rows),
        float(pairs.exact[rows].mean()),
        1.0 - float(parsed.mean()),
        float(read.mean()) if read.size else None,
        float(np.median(read)) if read.size else None,
        float(filled.mean()) if filled.size else None,
    )

"""A few lengths to pad batches to, so that short rows are not padded to the longest."""

import dataclasses

import numpy as np

from train.data.transforms import round_up

_CUTS = 128  # places at which one bucket may end and the next begin


@dataclasses.dataclass(frozen=True, eq=False)
class Buckets:
    """Lengths of batches, and the order in which rows go into them.

    Args:
        lengths: K >= 1 buckets, ascending [K, C]; C is 2, question and answer, or 1 for
            both in one row. The last holds every row.
        ranks: of each row [N]; rows of a rank and below fit where the longest does.
    """

    lengths: np.ndarray
    ranks: np.ndarray

    def fitting(self, row_lengths: np.ndarray) -> tuple[int, ...]:
        """The shortest bucket that holds all rows of these lengths [B, C]."""
        fits = (self.lengths >= row_lengths.max(axis=0)).all(axis=1)
        return tuple(self.lengths[np.argmax(fits)].tolist())


def make_buckets(lengths: np.ndarray, count: int) -> Buckets:
    """The at most `count` buckets that leave the least padding.

    Rows are ranked by the length of their question or answer, whichever is longer
    among its like: so every bucket is a quantile of both. Lengths that are padded to
    the same are equal, and answers that nearly all rows share rank lowest: jokes, whose
    scores are all of one length, are ranked by their questions.

    Args:
        lengths: tokens of each of N rows [N, C]; C is 2, question and answer, or 1 for
            both in one row.
        count: how many shapes a training step may be compiled for.

    >>> lengths = np.array([[8, 3], [7, 8], [60, 9], [8, 2]])
    >>> make_buckets(lengths, 2).lengths.tolist()
    [[8, 8], [64, 16]]
    """
    rounded = round_up(lengths)
    ranks = np.stack(
        [np.searchsorted(np.sort(column), column, side="left") for column in rounded.T]
    ).max(axis=0)
    longest = np.maximum.accumulate(lengths[np.argsort(ranks, kind="stable")])
    rows = len(lengths)
    cuts = np.unique(np.linspace(0, rows, min(rows, _CUTS) + 1).astype(np.int64))
    shapes = np.array([[round_up(int(most)) for most in longest[c - 1]] for c in cuts])
    # cost[i, j]: tokens, padding included, of the rows between two cuts in one bucket.
    cost = (cuts[None] - cuts[:, None]) * shapes.sum(axis=1)[None]
    cost = np.where(cuts[None] > cuts[:, None], cost, np.inf)
    best = np.where(cuts == 0, 0.0, np.inf)
    back = []
    for _ in range(count):
        through = best[:, None] + cost  # [cut before, cut]
        back.append(np.argmin(through, axis=0))
        best = np.minimum(np.min(through, axis=0), np.where(cuts == 0, 0.0, np.inf))
    ends, cut = [], len(cuts) - 1
    for came_from in reversed(back):
        if cut == 0:
            break
        ends.append(cut)
        cut = int(came_from[cut])
    return Buckets(np.unique(shapes[ends], axis=0), ranks)

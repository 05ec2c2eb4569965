"""Batches for training and evaluation, through grain, each a function of the step."""

import dataclasses
import functools
from collections.abc import Callable, Generator

import grain
import numpy as np

from train.data.files import DataError
from train.data.masked import MaskedDataset
from train.data.packing import PackedDataset
from train.data.transforms import Batch, TokenizedDataset, round_up

_ENDLESS = 2**48  # steps
_CUTS = 128  # possible borders between buckets
GROUPED_STEPS = 64
"""Number of steps whose rows are sorted by length together."""


# Grain permutes 2**16 places or more, and iterates until it meets one of n rows, which
# takes a third of 2**16 / n microseconds per row (2 ms for n = 10).
_FEW = 4096


@dataclasses.dataclass(frozen=True, eq=False)
class Buckets:
    """Lengths of batches, and the order in which rows go into them.

    Args:
        lengths: K >= 1 buckets, ascending [K, C]; C is 2, question and answer, or 1 for
            both in one row. The last holds every row.
        ranks: of each row [N]; rows up to a rank fit into the bucket of the longest.
    """

    lengths: np.ndarray
    ranks: np.ndarray

    def fitting(self, row_lengths: np.ndarray) -> tuple[int, ...]:
        """The shortest bucket that holds all rows of these lengths [B, C]."""
        fits = (self.lengths >= row_lengths.max(axis=0)).all(axis=1)
        return tuple(self.lengths[np.argmax(fits)].tolist())


def make_buckets(lengths: np.ndarray, count: int) -> Buckets:
    """The at most `count` buckets with the least padding.

    Rows are ranked by the larger of the ranks of their question and their answer, so
    every bucket is a quantile of both. Lengths with equal padded lengths tie, and the
    shortest rank lowest: jokes, whose scores all have one length, are ranked by their
    questions.

    Args:
        lengths: tokens of each of N rows [N, C]; C is 2, question and answer, or 1 for
            both in one row.
        count: number of shapes that the training step may be compiled for.

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


def train_batches(
    dataset: TokenizedDataset | PackedDataset,
    *,
    batch_size: int,
    seed: int,
    start_step: int = 0,
    buckets: Buckets | None = None,
    rows: np.ndarray | None = None,
) -> Generator[Batch]:
    """Infinite shuffled batches, each a pure function of (seed, step).

    Epochs follow each other without a gap: the row at place g = step * batch_size + i
    of the stream is the (g mod N)-th of a permutation that (seed, g div N) names. So a
    resumed run passes ``start_step`` and needs no state of the iterator, for any number
    of processes.

    Args:
        dataset: N rows, or packed rows.
        batch_size: rows per step, over all processes.
        seed: of the permutations, any non-negative integer.
        start_step: the first step.
        buckets: lengths to pad batches to, instead of that of the longest row; the rows
            of 64 steps are then rebatched by length.
        rows: i64 [B], the rows of each batch that this process reads, if several share
            a batch; None reads all.

    Returns:
        Batches as the dataset's `batch` makes them, of B rows. Threads read ahead;
        closing the iterator ends them.

    Raises:
        DataError: batch_size is not positive, a row is outside the batch, or buckets
            are given for packed rows.
    """
    local = _checked(rows, batch_size)
    if start_step < 0 or seed < 0:
        raise DataError(
            f"start_step and seed must not be negative, got {start_step} and {seed}"
        )

    def batch_at(step: int) -> Batch:
        places = step * batch_size + local
        rows = shuffled_rows(places, len(dataset), seed)
        return _batch(dataset, rows, places, seed)

    if buckets is None:
        make_batch: Callable[[int], Batch] = batch_at
    else:
        make_batch = _batches_in_buckets(dataset, batch_size, seed, local, buckets)
    steps = grain.MapDataset.range(start_step, _ENDLESS)
    options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=8)
    return _closing(steps.map(make_batch).to_iter_dataset(options))


def eval_batches(
    dataset: TokenizedDataset,
    *,
    batch_size: int,
) -> Generator[Batch]:
    """Every row once, in order; the last batch is padded with rows of weight 0.

    Args:
        dataset: N rows.
        batch_size: rows per batch.

    Returns:
        ceil(N / batch_size) batches, all of one shape, with ``weights`` f32[B]: 1
        for a row, 0 for padding (a copy of the last row).

    Raises:
        DataError: batch_size is not positive.
    """
    places = _checked(None, batch_size)
    last = len(dataset) - 1

    def batch_at(step: int) -> Batch:
        rows = step * batch_size + places
        batch = dataset.eval_batch(np.minimum(rows, last))
        return batch | {"weights": (rows <= last).astype(np.float32)}

    steps = grain.MapDataset.range(0, -(-len(dataset) // batch_size))
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
    return _closing(steps.map(batch_at).to_iter_dataset(options))


def _batches_in_buckets(
    dataset: TokenizedDataset | PackedDataset,
    batch_size: int,
    seed: int,
    local: np.ndarray,
    buckets: Buckets,
) -> Callable[[int], Batch]:
    """A function from a step to a batch, which has one length on all processes."""
    if isinstance(dataset, PackedDataset):
        raise DataError("packed rows have one length already: leave the buckets out")
    lengths = dataset.lengths()

    @functools.lru_cache(maxsize=2)  # two threads may read different groups
    def rows_of(group: int) -> np.ndarray:
        return grouped_rows(
            group, batch_size=batch_size, ranks=buckets.ranks, seed=seed
        )

    def batch_at(step: int) -> Batch:
        group, within = divmod(step, GROUPED_STEPS)
        rows, places = rows_of(group)[within], step * batch_size + local
        fitting = buckets.fitting(lengths[rows])
        return _batch(dataset, rows[local], places, seed, fitting)

    return batch_at


def _batch(
    dataset: TokenizedDataset | PackedDataset,
    rows: np.ndarray,
    places: np.ndarray,
    seed: int,
    lengths: tuple[int, ...] | None = None,
) -> Batch:
    """The rows [B] at these places of the stream; only masks depend on the places."""
    if isinstance(dataset, MaskedDataset):
        return dataset.train_batch(rows, places, seed=seed, lengths=lengths)
    if isinstance(dataset, PackedDataset):
        return dataset.batch(rows)
    return dataset.batch(rows, lengths)


def _checked(rows: np.ndarray | None, batch_size: int) -> np.ndarray:
    """The rows of a batch that this process reads."""
    if batch_size < 1:
        raise DataError(f"batch_size must be positive, got {batch_size}")
    if rows is None:
        return np.arange(batch_size)
    outside = rows[(rows < 0) | (rows >= batch_size)]
    if outside.size or not rows.size:
        raise DataError(
            f"the rows of a process must be in 0..{batch_size - 1}, got "
            f"{outside.tolist() or 'none'}"
        )
    return rows


def _closing(batches: grain.IterDataset) -> Generator[Batch]:
    """Iterates, and stops the threads when the iterator is closed."""
    iterator = iter(batches)
    try:
        yield from iterator
    finally:
        iterator.close()


def shuffled_rows(places: np.ndarray, n: int, seed: int) -> np.ndarray:
    """The rows, of n, at these places [B] of the infinite shuffled stream.

    For large n, a keyed bijection of 0..n-1 computes them without storing the
    permutation.
    """
    epochs, within = np.divmod(places, n)
    rows = np.empty_like(places)
    for epoch in np.unique(epochs):
        here = np.flatnonzero(epochs == epoch)
        if n <= _FEW:
            rows[here] = _permutation(n, seed, int(epoch))[within[here]]
            continue
        key = int(np.random.SeedSequence([seed, int(epoch)]).generate_state(1)[0])
        rows[here] = [
            grain.experimental.index_shuffle(
                int(index), max_index=n - 1, seed=key, rounds=4
            )
            for index in within[here]
        ]
    return rows


@functools.lru_cache(maxsize=16)
def _permutation(n: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(n)


def grouped_rows(
    group: int, *, batch_size: int, ranks: np.ndarray, seed: int
) -> np.ndarray:
    """The rows of a group of steps, those of each step of similar length.

    The shuffled stream's rows of `GROUPED_STEPS` steps are sorted by rank, split into
    batches, and the batches shuffled: each row is seen as often as without groups.

    Args:
        group: its index; it has the steps from `group * GROUPED_STEPS` on.
        batch_size: B, rows per step.
        ranks: the sort key, [N].
        seed: of the stream.

    Returns:
        Rows [GROUPED_STEPS, B].
    """
    size = GROUPED_STEPS * batch_size
    rows = shuffled_rows(group * size + np.arange(size), len(ranks), seed)
    rows = rows[np.argsort(ranks[rows], kind="stable")]
    rng = np.random.Generator(np.random.PCG64([seed, group, size]))
    return rows.reshape(GROUPED_STEPS, batch_size)[rng.permutation(GROUPED_STEPS)]

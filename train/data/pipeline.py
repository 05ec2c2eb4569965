"""Batches for training and evaluation, through grain, as a function of the step."""

import functools
from collections.abc import Callable, Generator

import grain
import numpy as np

from train.data.buckets import Buckets
from train.data.masked import MaskedDataset
from train.data.order import GROUPED_STEPS, grouped_rows, shuffled_rows
from train.data.packing import PackedDataset
from train.data.sources import DataError
from train.data.transforms import Batch, TokenizedDataset

_ENDLESS = 2**48  # steps


def train_batches(
    dataset: TokenizedDataset | PackedDataset,
    *,
    batch_size: int,
    seed: int,
    start_step: int = 0,
    buckets: Buckets | None = None,
    rows: np.ndarray | None = None,
) -> Generator[Batch]:
    """Shuffled batches without end; each a pure function of (seed, step).

    Epochs follow each other without a gap: the row at place g = step * batch_size + i
    of the stream is the (g mod N)-th of a permutation that (seed, g div N) names. So a
    resumed run passes ``start_step`` and needs no state of the iterator, whatever the
    number of processes was.

    Args:
        dataset: N rows, or packed rows.
        batch_size: rows a step, over all processes.
        seed: of the permutations, any non-negative integer.
        start_step: the first step to deliver.
        buckets: lengths to pad batches to, in the place of the longest row's; the rows
            of 64 steps are then dealt out anew, so that those of a batch are alike.
        rows: i64 [B], the places in each batch of the rows that this process reads,
            where several share one; None reads all.

    Returns:
        Batches as the dataset's `batch` makes them, of B rows. Threads read ahead;
        closing the iterator ends them.

    Raises:
        DataError: batch_size is not positive, a row is none of the batch, or packed
            rows are to be put into buckets.
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
    """Every row once, in order; the last batch is filled up with rows of weight 0.

    Args:
        dataset: N rows.
        batch_size: rows a batch.

    Returns:
        ceil(N / batch_size) batches, all of one shape, with ``weights`` f32[B] besides:
        1 for a row, 0 for filling (a copy of the last row).

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
    """A function from a step to a batch, whose length all its processes share."""
    if isinstance(dataset, PackedDataset):
        raise DataError("packed rows have one length already: leave the buckets out")
    lengths = dataset.lengths()

    @functools.lru_cache(maxsize=2)  # two threads may be on either side of a border
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
    """The rows [B] at these places of the stream; only masks depend on the latter."""
    if isinstance(dataset, MaskedDataset):
        return dataset.train_batch(rows, places, seed=seed, lengths=lengths)
    if isinstance(dataset, PackedDataset):
        return dataset.batch(rows)
    return dataset.batch(rows, lengths)


def _checked(rows: np.ndarray | None, batch_size: int) -> np.ndarray:
    """The places in a batch that this process reads."""
    if batch_size < 1:
        raise DataError(f"batch_size must be positive, got {batch_size}")
    if rows is None:
        return np.arange(batch_size)
    outside = rows[(rows < 0) | (rows >= batch_size)]
    if outside.size or not rows.size:
        raise DataError(
            f"the rows of a process must lie in 0..{batch_size - 1}, got "
            f"{outside.tolist() or 'none'}"
        )
    return rows


def _closing(batches: grain.IterDataset) -> Generator[Batch]:
    """Iterates, and stops the threads when the caller does."""
    iterator = iter(batches)
    try:
        yield from iterator
    finally:
        iterator.close()

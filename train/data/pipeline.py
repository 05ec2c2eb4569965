"""Batches for training and evaluation, through grain, as a function of the step."""

from collections.abc import Generator

import grain
import numpy as np

from train.data.sources import DataError
from train.data.transforms import Batch, TokenizedDataset

_ENDLESS = 2**48  # steps


def train_batches(
    dataset: TokenizedDataset,
    *,
    batch_size: int,
    seed: int,
    start_step: int = 0,
    process_index: int = 0,
    process_count: int = 1,
) -> Generator[Batch]:
    """Shuffled batches without end; each a pure function of (seed, step).

    Epochs follow each other without a gap: the row at place g = step * batch_size + i
    of the stream is the (g mod N)-th of a permutation that (seed, g div N) names. So a
    resumed run passes ``start_step`` and needs no state of the iterator, whatever the
    number of processes was.

    Args:
        dataset: N rows.
        batch_size: rows a step, over all processes.
        seed: of the permutations, any non-negative integer.
        start_step: the first step to deliver.
        process_index: this process; it gets the process_index-th part of each batch.
        process_count: how many processes share a batch.

    Returns:
        Batches as `TokenizedDataset.batch` makes them, B = batch_size / process_count.
        Threads read ahead; closing the iterator ends them.

    Raises:
        DataError: batch_size is not a positive multiple of process_count, or an index
            is out of range.
    """
    local = _local_slice(batch_size, process_index, process_count)
    if start_step < 0 or seed < 0:
        raise DataError(
            f"start_step and seed must not be negative, got {start_step} and {seed}"
        )

    def batch_at(step: int) -> Batch:
        places = step * batch_size + np.arange(local.start, local.stop)
        return dataset.batch(shuffled_rows(places, len(dataset), seed))

    steps = grain.MapDataset.range(start_step, _ENDLESS)
    options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=8)
    return _closing(steps.map(batch_at).to_iter_dataset(options))


def eval_batches(
    dataset: TokenizedDataset,
    *,
    batch_size: int,
    process_index: int = 0,
    process_count: int = 1,
) -> Generator[Batch]:
    """Every row once, in order; the last batch is filled up with rows of weight 0.

    Args:
        dataset: N rows.
        batch_size: rows a batch, over all processes.
        process_index: this process; it gets the process_index-th part of each batch.
        process_count: how many processes share a batch.

    Returns:
        ceil(N / batch_size) batches, all of one shape, with ``weights`` f32[B] besides:
        1 for a row, 0 for filling (a copy of the last row).

    Raises:
        DataError: as `train_batches`.
    """
    local = _local_slice(batch_size, process_index, process_count)
    last = len(dataset) - 1

    def batch_at(step: int) -> Batch:
        rows = step * batch_size + np.arange(local.start, local.stop)
        batch = dataset.eval_batch(np.minimum(rows, last))
        return batch | {"weights": (rows <= last).astype(np.float32)}

    steps = grain.MapDataset.range(0, -(-len(dataset) // batch_size))
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
    return _closing(steps.map(batch_at).to_iter_dataset(options))


def shuffled_rows(places: np.ndarray, n: int, seed: int) -> np.ndarray:
    """Which of n rows stand at these places [B] of the endless shuffled stream.

    A keyed bijection of 0..n-1 gives each row without storing the permutation.
    """
    epochs, within = np.divmod(places, n)
    rows = np.empty_like(places)
    for epoch in np.unique(epochs):
        key = int(np.random.SeedSequence([seed, int(epoch)]).generate_state(1)[0])
        here = np.flatnonzero(epochs == epoch)
        rows[here] = [
            grain.experimental.index_shuffle(
                int(index), max_index=n - 1, seed=key, rounds=4
            )
            for index in within[here]
        ]
    return rows


def _local_slice(batch_size: int, process_index: int, process_count: int) -> slice:
    """The part of a global batch that belongs to this process."""
    if not 0 <= process_index < process_count:
        raise DataError(
            f"process_index must be in 0..{process_count - 1}, got {process_index}"
        )
    if batch_size < 1 or batch_size % process_count:
        raise DataError(
            f"batch_size {batch_size} must be a positive multiple of the "
            f"{process_count} processes"
        )
    size = batch_size // process_count
    return slice(process_index * size, (process_index + 1) * size)


def _closing(batches: grain.IterDataset) -> Generator[Batch]:
    """Iterates, and stops the threads when the caller does."""
    iterator = iter(batches)
    try:
        yield from iterator
    finally:
        iterator.close()

"""Several short rows in one row of the batch, by a precomputed plan."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from train.data.files import DataError
from train.data.transforms import (
    IGNORE_INDEX,
    Batch,
    CausalDataset,
    Ragged,
    TokenizedDataset,
    round_up,
)

_WINDOW = 1024  # rows that are packed among each other
_WINDOWS_AT_ONCE = 64  # bounds the memory of planning


@dataclasses.dataclass(frozen=True, eq=False)
class PackedDataset:
    """Packed rows of a dataset: none is split, and each occurs once.

    Args:
        rows: the dataset that is packed.
        plan: the rows in each of the M packed rows, in order.
        shape: S and T, the lengths of packed questions and answers; or only S, of both
            together, for decoder-only models [tokens].
    """

    rows: TokenizedDataset
    plan: Ragged
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.plan)

    def count_tokens(self, batch: Batch) -> int:
        """The number of tokens in a batch without padding."""
        return self.rows.count_tokens(batch)

    def batch(self, rows: np.ndarray) -> Batch:
        """The packed rows [B] as a batch.

        Returns:
            What `rows.batch` returns, and the number of each token's text in its row,
            from 1, with 0 for padding: ``segment_ids`` i32[B, S], and for
            encoder-decoders ``target_segment_ids`` i32[B, T].
        """
        members, counts = self.plan.gather(rows), self.plan.sizes(rows)
        causal = isinstance(self.rows, CausalDataset)
        sources, targets = self.rows.sources, self.rows.targets
        asked, answered = sources.sizes(members), targets.sizes(members)
        shape = (len(rows), self.shape[0])
        sizes = asked + answered if causal else asked
        starts, segment_ids = _positions(sizes, counts, shape)
        input_ids = np.full(shape, self.rows.pad_token_id, np.int32)
        _write(input_ids, sources, members, starts)
        batch = {
            "input_ids": input_ids,
            "attention_mask": segment_ids > 0,
            "segment_ids": segment_ids,
        }
        if causal:
            labels = np.full(shape, IGNORE_INDEX, np.int32)
            _write(input_ids, targets, members, starts + asked)
            _write(labels, targets, members, starts + asked)
            return batch | {"labels": labels}
        shape = (len(rows), self.shape[1])
        starts, target_segment_ids = _positions(answered, counts, shape)
        labels = np.full(shape, IGNORE_INDEX, np.int32)
        _write(labels, targets, members, starts)
        return batch | {"labels": labels, "target_segment_ids": target_segment_ids}


def _positions(
    sizes: np.ndarray, counts: np.ndarray, shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Where concatenated texts [n] start when `counts` [B] of them share a row.

    Returns:
        Their positions in the flattened batch [n], and the number of each position's
        text, from 1, with 0 for padding, i32[B, S].
    """
    ends = np.cumsum(sizes)
    last = np.cumsum(counts)
    used = np.diff(ends[last - 1], prepend=0)  # [B]
    number = np.arange(1, len(sizes) + 1) - np.repeat(last - counts, counts)
    segment_ids = np.zeros(shape, np.int32)
    segment_ids[np.arange(shape[1]) < used[:, None]] = np.repeat(number, sizes)
    gaps = shape[1] * np.arange(len(counts)) - (np.cumsum(used) - used)
    return ends - sizes + np.repeat(gaps, counts), segment_ids


def _write(
    batch: np.ndarray, texts: Ragged, members: np.ndarray, starts: np.ndarray
) -> None:
    """Writes the ids of texts [n] at their positions in the flattened batch."""
    sizes = texts.sizes(members)
    within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    batch.reshape(-1)[np.repeat(starts, sizes) + within] = texts.gather(members)


def pack(
    dataset: TokenizedDataset, *, seed: int, length: int | None = None
) -> PackedDataset:
    """Packs a dataset's N rows into M <= N; see `plan_rows`."""
    return PackedDataset(
        dataset, *plan_rows(dataset.lengths(), seed=seed, length=length)
    )


def plan_rows(
    lengths: np.ndarray, *, seed: int, length: int | None = None
) -> tuple[Ragged, tuple[int, ...]]:
    """Plans which rows share a packed row, from lengths and seed alone.

    Args:
        lengths: tokens of each of N rows [N, C]; C is 2, question and answer, or 1 for
            both in one row.
        seed: of the order in which rows are considered.
        length: tokens per packed row, question and answer together; None: the length of
            the longest row. Two columns divide it in the ratio of all questions to all
            answers, each at least as long as its longest. If that takes more tokens
            than padding, each is as long as its longest.

    Returns:
        The members of each packed row, and the length of each column: in total at most
        the tokens of all rows padded.

    Raises:
        DataError: the length is below that of the longest row.
    """
    longest = [round_up(int(most)) for most in lengths.max(axis=0)]
    total = sum(longest) if length is None else round_up(length)
    if total < sum(longest):
        raise DataError(
            f"--data.packed-length {length}, rounded up to {total}, is too short for "
            f"the longest row: give at least {sum(longest)}, or lower "
            "--data.max-source-length or --data.max-target-length"
        )
    share = lengths.mean(axis=0) / lengths.mean(axis=0).sum()
    capacity = tuple(
        max(most, round_up(int(np.ceil(total * part))))
        for most, part in zip(longest, share, strict=True)
    )
    rng = np.random.Generator(np.random.PCG64([seed, len(lengths)]))
    order = rng.permutation(len(lengths))
    plan = first_fit_decreasing(lengths, capacity, order)
    if len(plan) * sum(capacity) > len(lengths) * sum(longest):
        capacity = tuple(longest)
        plan = first_fit_decreasing(lengths, capacity, order)
    return plan, capacity


def first_fit_decreasing(
    lengths: np.ndarray,
    capacity: Sequence[int],
    order: np.ndarray,
    window: int = _WINDOW,
) -> Ragged:
    """Packs rows, the longest first, each into the first that has room in every column.

    Rows are packed within windows of the given order, so that packed rows stay random
    and planning takes linear time.

    Args:
        lengths: of each of N rows, [N, C].
        capacity: of a packed row in each column, [C].
        order: the N rows in the order of the windows.
        window: rows per window.

    Returns:
        The members of each packed row.

    >>> lengths = np.array([[3], [5], [2], [4]])
    >>> plan = first_fit_decreasing(lengths, [7], np.arange(4))
    >>> [plan[row].tolist() for row in range(len(plan))]
    [[1, 2], [3, 0]]

    Source: Johnson, *Near-optimal bin packing algorithms* (1973). Grain's packers are
    stateful iterators, which have no access by step.
    """
    rows, capacity_ = len(order), np.asarray(capacity)
    window = min(window, rows)
    padded = np.full(-(-rows // window) * window, -1)
    padded[:rows] = order
    parts, counts = [], []
    for some in np.array_split(
        padded.reshape(-1, window), -(-len(padded) // (window * _WINDOWS_AT_ONCE))
    ):
        members, bins = _fit(some, lengths, capacity_)
        real = members >= 0
        numbered = bins + window * np.arange(len(some))[:, None]
        by_bin = np.argsort(numbered[real], kind="stable")
        parts.append(members[real][by_bin])
        count = np.bincount(numbered[real])
        counts.append(count[count > 0])
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
    return Ragged(np.concatenate(parts).astype(np.int64), offsets.astype(np.int64))


def _fit(
    windows: np.ndarray, lengths: np.ndarray, capacity: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The rows of windows [W, R], longest first, and the bin of each [W, R].

    All windows advance together: a row of -1 has no length.
    """
    sizes = np.where(windows[..., None] >= 0, lengths[windows], 0)  # [W, R, C]
    fullest = (sizes / capacity).max(axis=-1)
    longest_first = np.argsort(-fullest, axis=1, kind="stable")
    windows = np.take_along_axis(windows, longest_first, axis=1)
    sizes = np.take_along_axis(sizes, longest_first[..., None], axis=1)
    count, size, columns = sizes.shape
    free = np.broadcast_to(capacity[:, None, None], (columns, count, size)).copy()
    bins, each, opened = np.zeros((count, size), np.int64), np.arange(count), 0
    for place in range(size):
        candidates = free[:, :, : opened + 1]
        needed = sizes[:, place].T[:, :, None]  # [C, W, 1]
        chosen = np.argmax((candidates >= needed).all(axis=0), axis=1)  # [W]
        free[:, each, chosen] -= sizes[:, place].T
        bins[:, place] = chosen
        opened = min(max(opened, int(chosen.max()) + 1), size - 1)
    return windows, bins

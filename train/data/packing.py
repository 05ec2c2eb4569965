"""Several short rows in one row of the batch, by a plan made once."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from train.data.sources import DataError
from train.data.transforms import (
    IGNORE_INDEX,
    Batch,
    CausalDataset,
    Ragged,
    TokenizedDataset,
    round_up,
)

_WINDOW = 1024  # rows among which partners are sought
_WINDOWS_AT_ONCE = 64  # bounds the memory of making a plan


@dataclasses.dataclass(frozen=True, eq=False)
class PackedDataset:
    """Rows of a dataset side by side: none is split, and each stands in one place.

    Args:
        rows: the dataset that is packed.
        plan: which of its rows stand in each of the M packed rows, in this order.
        shape: S and T, the lengths of packed questions and answers; or S alone, of
            both together, where the model is decoder-only [tokens].
    """

    rows: TokenizedDataset
    plan: Ragged
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.plan)

    def count_tokens(self, batch: Batch) -> int:
        """How many tokens of a batch are no padding."""
        return self.rows.count_tokens(batch)

    def batch(self, rows: np.ndarray) -> Batch:
        """The packed rows [B] as a batch.

        Returns:
            What `rows.batch` gives, and in each row the number of the text that a token
            is of, from 1, with 0 for padding: ``segment_ids`` i32[B, S], and beside an
            encoder ``target_segment_ids`` i32[B, T].
        """
        members, counts = self.plan.gather(rows), self.plan.sizes(rows)
        causal = isinstance(self.rows, CausalDataset)
        sources, targets = self.rows.sources, self.rows.targets
        asked, answered = sources.sizes(members), targets.sizes(members)
        shape = (len(rows), self.shape[0])
        sizes = asked + answered if causal else asked
        starts, segment_ids = _lay_out(sizes, counts, shape)
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
        starts, target_segment_ids = _lay_out(answered, counts, shape)
        labels = np.full(shape, IGNORE_INDEX, np.int32)
        _write(labels, targets, members, starts)
        return batch | {"labels": labels, "target_segment_ids": target_segment_ids}


def _lay_out(
    sizes: np.ndarray, counts: np.ndarray, shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Where texts [n] start, end to end, when `counts` [B] of them share a row.

    Returns:
        Their places in the flattened batch [n], and the number of each place's text,
        from 1, with 0 for padding, i32[B, S].
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
    """Writes the ids of texts [n] from their places in the flattened batch on."""
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
    """Plans which rows stand side by side; the plan depends on lengths and seed alone.

    Args:
        lengths: tokens of each of N rows [N, C]; C is 2, question and answer, or 1 for
            both in one row.
        seed: which rows are considered together.
        length: how many tokens a packed row has, question and answer together; the
            length of the longest row where None. Two columns share it as the questions
            and answers of all rows do, and are then made as long as the longest. Where
            that takes more room than padding would, both are as long as the longest.

    Returns:
        The members of each packed row, and the length of each column: together no more
        tokens than all rows padded.

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
    """Fills rows, the longest first, each where it first fits in every column.

    Partners are sought within windows of the given order, so that chance still says
    who stands with whom, and a plan takes linear time.

    Args:
        lengths: what each of N rows takes, [N, C].
        capacity: what a packed row holds of each column, [C].
        order: the N rows in the order of the windows.
        window: rows in a window.

    Returns:
        The members of each packed row.

    >>> lengths = np.array([[3], [5], [2], [4]])
    >>> plan = first_fit_decreasing(lengths, [7], np.arange(4))
    >>> [plan[row].tolist() for row in range(len(plan))]
    [[1, 2], [3, 0]]

    Source: Johnson, *Near-optimal bin packing algorithms* (1973). Grain's packers are
    iterators with a state, which cannot be asked for a step.
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

    All windows take a step together: a row of -1 takes no room.
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

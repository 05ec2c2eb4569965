"""Sequences of rows that cost little more memory than their text."""

import bisect
import itertools
from collections.abc import Sequence
from typing import overload

import numpy as np

Row = dict[str, str]


class LineRows(Sequence[Row]):
    """Alternating question and answer lines, kept as one block of bytes.

    DeepMind's training files hold millions of pairs: as dictionaries they would take
    five times the memory of the text.

    Args:
        block: UTF-8 text.
        starts: i64[N, 2], where question and answer of each row start.
        ends: i64[N, 2], where they end.
    """

    def __init__(self, block: bytes, starts: np.ndarray, ends: np.ndarray) -> None:
        self._block, self._starts, self._ends = block, starts, ends

    @classmethod
    def from_block(cls, block: bytes) -> "LineRows":
        """Rows of a text with an even number of lines."""
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
        if not block.endswith(b"\n"):
            ends = np.append(ends, len(block))
        starts = np.concatenate([[0], ends[:-1] + 1])
        return cls(block, starts.reshape(-1, 2), ends.reshape(-1, 2))

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, row: int) -> Row: ...
    @overload
    def __getitem__(self, row: slice) -> "LineRows": ...

    def __getitem__(self, row):
        starts, ends = self._starts[row], self._ends[row]
        if isinstance(row, slice):
            return LineRows(self._block, starts, ends)
        question, answer = (
            self._block[start:end].decode().strip()
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        )
        return {"question": question, "answer": answer}


class JoinedRows(Sequence[Row]):
    """Several sequences of rows, one after the other, without a copy."""

    def __init__(self, parts: Sequence[Sequence[Row]]) -> None:
        self._parts = parts
        self._stops = list(itertools.accumulate(len(part) for part in parts))

    def __len__(self) -> int:
        return self._stops[-1] if self._stops else 0

    @overload
    def __getitem__(self, row: int) -> Row: ...
    @overload
    def __getitem__(self, row: slice) -> list[Row]: ...

    def __getitem__(self, row):
        if isinstance(row, slice):
            return self._slice(range(*row.indices(len(self))))
        row = range(len(self))[row]  # negative indices and IndexError, as in a list
        part = bisect.bisect_right(self._stops, row)
        return self._parts[part][row - self._stops[part]]

    def _slice(self, rows: range) -> list[Row]:
        if rows.step != 1:
            return [self[row] for row in rows]
        # Part by part: a file reads many rows at once faster than one by one.
        found, start = [], 0
        for part, stop in zip(self._parts, self._stops, strict=True):
            low, high = max(rows.start, start), min(rows.stop, stop)
            if low < high:
                found.extend(part[low - start : high - start])
            start = stop
        return found


def spread(parts: Sequence[Sequence[Row]], n: int) -> JoinedRows:
    """The first rows of each part, n in all, as evenly as the parts' sizes allow.

    >>> one, many = ([{"question": "", "answer": answer}] for answer in ("1", "2"))
    >>> parts = [one, many * 9]
    >>> [row["answer"] for row in spread(parts, 4)]
    ['1', '2', '2', '2']
    """
    shares = [0] * len(parts)
    ascending = sorted(range(len(parts)), key=lambda part: len(parts[part]))
    left = n
    for place, part in enumerate(ascending):
        shares[part] = min(len(parts[part]), left // (len(parts) - place))
        left -= shares[part]
    if left:
        raise ValueError(f"{n} rows were asked for, there are only {n - left}")
    # A whole part is not sliced, so that what lies on disk may stay there.
    return JoinedRows(
        [
            part if share == len(part) else part[:share]
            for part, share in zip(parts, shares, strict=True)
        ]
    )

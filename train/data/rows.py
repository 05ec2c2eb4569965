"""Sequences of rows that need little more memory than their text."""

import bisect
import itertools
import reprlib
from collections.abc import Callable, Iterator, Sequence
from typing import overload

import numpy as np

Row = dict[str, str]

_ROWS_AT_ONCE = 8192


def named_answer(rows: Sequence[Row], number: int) -> str:
    """An answer by its row's number, from 1, and its text, shortened in the middle.

    >>> named_answer([{"question": "What is 3 plus 4?", "answer": "seven"}], 1)
    "the answer of row 1, 'seven',"
    """
    return f"the answer of row {number}, {reprlib.repr(rows[number - 1]['answer'])},"


class LineRows(Sequence[Row]):
    """Alternating question and answer lines, stored as one block of bytes.

    DeepMind's training files hold millions of pairs: as dictionaries they would need
    five times the memory of the text.

    Args:
        block: UTF-8 text.
        starts: i32 or i64[N, 2], where question and answer of each row start.
        ends: the same, where they end.
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
        small = np.int32 if len(block) < 2**31 else np.int64
        return cls(
            block,
            starts.astype(small).reshape(-1, 2),
            ends.astype(small).reshape(-1, 2),
        )

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

    def take(self, places: np.ndarray) -> "LineRows":
        """The rows at these indices, without a copy of their text."""
        return LineRows(self._block, self._starts[places], self._ends[places])

    def line(self, row: int, column: int) -> bytes:
        """A row's question (column 0) or answer (1), unstripped."""
        return self._block[self._starts[row, column] : self._ends[row, column]]

    def line_lengths(self) -> np.ndarray:
        """[N, 2], bytes of each question and answer, unstripped."""
        return self._ends - self._starts

    def first_bytes(self) -> np.ndarray:
        """u8[N, 2], the first byte of each question and answer; a newline if it is
        empty."""
        return np.frombuffer(self._block, np.uint8)[self._starts]

    def invalid_lines(self) -> Iterator[int]:
        """Lines that may not be text, as 2 * row + column: those with a non-ASCII byte
        or a zero byte."""
        if self._block.isascii() and b"\0" not in self._block:
            return
        for line in range(2 * len(self)):
            text = self.line(*divmod(line, 2))
            if not text.isascii() or b"\0" in text:
                yield line


class PickedRows(Sequence[Row]):
    """Some rows of a sequence, in any order, without a copy.

    Args:
        rows: N rows.
        places: i64[M], which of them.
    """

    def __init__(self, rows: Sequence[Row], places: np.ndarray) -> None:
        self._rows, self._places = rows, places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, row: int) -> Row: ...
    @overload
    def __getitem__(self, row: slice) -> "PickedRows": ...

    def __getitem__(self, row):
        if isinstance(row, slice):
            return PickedRows(self._rows, self._places[row])
        return self._rows[int(self._places[row])]

    def __iter__(self) -> Iterator[Row]:
        # Files are faster to read many rows at once.
        many = getattr(self._rows, "__getitems__", None)
        for start in range(0, len(self), _ROWS_AT_ONCE):
            places = self._places[start : start + _ROWS_AT_ONCE].tolist()
            yield from many(places) if many else map(self._rows.__getitem__, places)


class ComputedRows(Sequence[Row]):
    """Rows that are computed when they are read, each from its number.

    >>> rows = ComputedRows(9, lambda n: {"question": f"{n}+1=", "answer": f"{n + 1}"})
    >>> rows[3], len(rows[2:7])
    ({'question': '3+1=', 'answer': '4'}, 5)

    Args:
        n: how many.
        row: a pure function of a row's number in 0..n-1.
    """

    def __init__(self, n: int, row: Callable[[int], Row]) -> None:
        self._numbers, self._row = range(n), row

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, row: int) -> Row: ...
    @overload
    def __getitem__(self, row: slice) -> "ComputedRows": ...

    def __getitem__(self, row):
        if isinstance(row, slice):
            part = ComputedRows(0, self._row)
            part._numbers = self._numbers[row]
            return part
        return self._row(self._numbers[row])


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
        # Part by part: files are faster to read many rows at once.
        found, start = [], 0
        for part, stop in zip(self._parts, self._stops, strict=True):
            low, high = max(rows.start, start), min(rows.stop, stop)
            if low < high:
                found.extend(part[low - start : high - start])
            start = stop
        return found


def spread(parts: Sequence[Sequence[Row]], n: int) -> JoinedRows:
    """The first rows of each part, n in total, as evenly as the parts' sizes allow.

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
    # A whole part is not sliced, so that rows on disk stay there.
    return JoinedRows(
        [
            part if share == len(part) else part[:share]
            for part, share in zip(parts, shares, strict=True)
        ]
    )

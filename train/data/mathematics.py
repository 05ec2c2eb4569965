"""DeepMind's mathematics dataset: its files, and the parts that the paper takes."""

import dataclasses
import os
import re

import numpy as np

from train.data.files import (
    BadRows,
    DataError,
    FileError,
    decoded,
    read_bytes,
    report_skipped,
)
from train.data.rows import LineRows

TRAIN_FOLDERS = ("train-easy", "train-medium", "train-hard")
FOLDERS = (*TRAIN_FOLDERS, "interpolate", "extrapolate")
MODULES = (
    "algebra__linear_1d",
    "algebra__linear_1d_composed",
    "algebra__linear_2d",
    "algebra__linear_2d_composed",
    "algebra__sequence_next_term",
    "arithmetic__add_or_sub",
    "arithmetic__add_sub_multiple",
    "arithmetic__mul",
    "numbers__div_remainder",
    "numbers__div_remainder_composed",
    "numbers__place_value",
    "numbers__round_number",
    "numbers__round_number_composed",
)
EXTRAPOLATION_MODULES = (
    "arithmetic__add_or_sub_big",
    "arithmetic__add_sub_multiple_longer",
    "arithmetic__mixed_longer",
    "arithmetic__mul_big",
    "arithmetic__mul_div_multiple_longer",
    "numbers__place_value_big",
    "numbers__round_number_big",
)
TRAIN_FILE_ROWS = 666_666  # of release v1.0
TEST_FILE_ROWS = 10_000

_LONGEST_ANSWER = 30  # characters, by the dataset's definition
_NUMBER = re.compile(r"-?\d+(\.\d+)?(/\d+)?")


@dataclasses.dataclass(frozen=True)
class Subset:
    """A part of the dataset, as an experiment takes it.

    Args:
        modules: to train on, and to evaluate by interpolation.
        extrapolation_modules: to evaluate by extrapolation.
        train_rows: of each training file, after a shuffle; None takes all others.
        validation_rows: held out of each file, or None.
        validation_fraction: instead, the share of each file that is held out.
    """

    modules: tuple[str, ...]
    extrapolation_modules: tuple[str, ...]
    train_rows: int | None = None
    validation_rows: int | None = None
    validation_fraction: float = 0.0

    def held_out(self, rows: int) -> int:
        """How many of a file's rows are for validation: all but the first 1 - f."""
        if self.validation_rows is not None:
            return self.validation_rows
        return rows - int((1.0 - self.validation_fraction) * rows)


SUBSETS = {
    "paper": Subset(MODULES, EXTRAPOLATION_MODULES, validation_fraction=0.0005),
    "arithmetic": Subset(
        ("arithmetic__add_sub_multiple",),
        ("arithmetic__add_sub_multiple_longer",),
        train_rows=33_333,
        validation_rows=1_000,
    ),
}
"""The paper's two: 13 modules, and sums of several terms for its ablations."""


def read_mathematics(
    path: str | os.PathLike, *, bad_rows: BadRows = "error"
) -> LineRows:
    """Reads a module of DeepMind's mathematics dataset: question and answer lines.

    A line too many or too few would shift all that follow, so what betrays one is never
    skipped: an odd number of lines, a blank one, a bare number for a question, and an
    answer longer than the dataset's longest.

    Args:
        path: a ``.txt`` or ``.txt.gz`` file whose lines alternate.
        bad_rows: ``"skip"`` leaves out the pairs that are no UTF-8, and warns.

    Raises:
        DataError: the file is missing, empty or not UTF-8, or its lines do not
            alternate.

    Source: Saxton et al., *Analysing Mathematical Reasoning Abilities of Neural
    Models* (2019), release v1.0.
    """
    block = read_bytes(path).rstrip()
    lines = block.count(b"\n") + 1
    if lines % 2:
        raise FileError(
            f"{path}: {lines} lines, an odd number: a question has no answer line, the "
            f"one in line {lines} or one before; complete the file"
        )
    rows = LineRows.from_block(block)
    _check_alternation(path, rows)
    return _valid_pairs(path, rows, bad_rows)


def _check_alternation(path: str | os.PathLike, rows: LineRows) -> None:
    first = rows.first_bytes()  # [N, 2]
    suspects = first <= ord(" ")
    suspects[:, 0] |= np.isin(first[:, 0], list(b"-0123456789"))
    suspects[:, 1] |= rows.line_lengths()[:, 1] > _LONGEST_ANSWER
    for pair, column in np.argwhere(suspects).tolist():
        text = rows.line(pair, column).decode(errors="replace").strip()
        fault = _fault_of_answer(text) if column else _fault_of_question(text)
        if fault:
            raise FileError(
                f"{path}, line {2 * pair + column + 1}: {fault}; a line is missing or "
                "too many: fetch the file again"
            )


def _fault_of_question(text: str) -> str | None:
    """What shows that a line is no question: answers are mostly bare numbers."""
    if not text:
        return "blank"
    return "a question that is a bare number" if _NUMBER.fullmatch(text) else None


def _fault_of_answer(text: str) -> str | None:
    if not text:
        return "blank"
    if len(text) > _LONGEST_ANSWER:
        return (
            f"an answer of {len(text)} characters, where the dataset's have at most "
            f"{_LONGEST_ANSWER}"
        )
    return None


def _valid_pairs(
    path: str | os.PathLike, rows: LineRows, bad_rows: BadRows
) -> LineRows:
    """The rows, without those that are no UTF-8 where they are to be skipped."""
    bad: dict[int, str] = {}
    for line in rows.invalid_lines():
        try:
            decoded(rows.line(line // 2, line % 2))
        except DataError as error:
            problem = f"line {line + 1}: {error}"
            if bad_rows == "error":
                raise DataError(f"{path}, {problem}") from error
            bad.setdefault(line // 2, problem)
    if not bad:
        return rows
    kept = np.setdiff1d(np.arange(len(rows)), list(bad))
    report_skipped(path, len(kept), list(bad.values()))
    if not len(kept):
        raise DataError(f"{path}: no row in it; it needs at least one")
    return rows.take(kept)

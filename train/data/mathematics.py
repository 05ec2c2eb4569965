"""DeepMind's mathematics dataset: its files, and the rows that a config selects."""

import dataclasses
import os
import pathlib
import re
import zlib
from collections.abc import Callable, Sequence

import numpy as np

from train.config import DataConfig
from train.data.files import (
    BadRows,
    DataError,
    FileError,
    decoded,
    find_file,
    read_bytes,
    report_skipped,
)
from train.data.mathematics_questions import generated_rows
from train.data.rows import LineRows, PickedRows, Row

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
Reader = Callable[[str, str], Sequence[Row]]
"""Rows by folder and module."""

_SUBSET_FIELDS = ("modules", "extrapolation_modules", "difficulties")

_LONGEST_ANSWER = 30  # characters, by the dataset's definition
_NUMBER = re.compile(r"-?\d+(\.\d+)?(/\d+)?")


@dataclasses.dataclass(frozen=True)
class Subset:
    """A part of the dataset, as used by an experiment.

    Args:
        modules: to train on, and to evaluate by interpolation.
        extrapolation_modules: to evaluate by extrapolation.
        train_rows: of each training file, after a shuffle; None takes all that remain.
        validation_rows: held out of each file, or None.
        validation_fraction: instead, the held-out fraction of each file.
    """

    modules: tuple[str, ...]
    extrapolation_modules: tuple[str, ...]
    train_rows: int | None = None
    validation_rows: int | None = None
    validation_fraction: float = 0.0

    def held_out(self, rows: int) -> int:
        """Validation rows of a file: all but the first 1 - f."""
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
"""The paper's: 13 modules, and sums of several terms for its ablations."""


def read_mathematics(
    path: str | os.PathLike, *, bad_rows: BadRows = "error"
) -> LineRows:
    """Reads a module of DeepMind's mathematics dataset: question and answer lines.

    A missing or additional line would shift all that follow, so signs of one are never
    skipped: an odd number of lines, a blank line, a bare number as a question, and an
    answer longer than the dataset's longest.

    Args:
        path: a ``.txt`` or ``.txt.gz`` file whose lines alternate.
        bad_rows: ``"skip"`` skips the pairs that are not UTF-8, and warns.

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
                "additional: download the file once more"
            )


def _fault_of_question(text: str) -> str | None:
    """Why a line cannot be a question: answers are mostly bare numbers."""
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
    """The rows, without those that are not UTF-8 if these are to be skipped."""
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
        raise DataError(f"{path}: no valid row; it needs at least one")
    return rows.take(kept)


@dataclasses.dataclass(frozen=True)
class Parts:
    """Rows by file; evaluation sets without a file are left out."""

    train: list[Sequence[Row]]
    evaluation: dict[str, list[Sequence[Row]]]


def mathematics_parts(data: DataConfig, raw: pathlib.Path | None) -> Parts:
    """The files of a config, read, downloaded or generated.

    Args:
        data: of the dataset mathematics.
        raw: folder of ``SPLIT/MODULE.txt[.gz]``; None downloads release v1.0.

    Raises:
        DataError: a file is missing or broken, or has too few rows for the subset; no
            module or difficulty; a module that cannot be generated; or both a subset
            and modules or difficulties.
    """
    if not data.modules or not data.difficulties:
        raise DataError("mathematics needs at least one module and one difficulty")
    subset = _subset(data)
    read = _reader(data, raw)
    train, validation = [], []
    for module in subset.modules:
        for folder in data.difficulties:
            key = [data.seed, zlib.crc32(f"{folder}/{module}".encode())]
            parts = _divide(
                read(folder, module), subset, key, all_rows=data.train_size is None
            )
            train.append(parts[0])
            validation.append(parts[1])
    evaluation = {
        "validation": [rows for rows in validation if len(rows)],
        "interpolation": [read("interpolate", module) for module in subset.modules],
        "extrapolation": [
            read("extrapolate", module) for module in subset.extrapolation_modules
        ],
    }
    return Parts(train, {name: parts for name, parts in evaluation.items() if parts})


def _subset(data: DataConfig) -> Subset:
    if data.subset is None:
        return Subset(data.modules, data.extrapolation_modules)
    defaults = DataConfig()
    for name in _SUBSET_FIELDS:
        if getattr(data, name) != getattr(defaults, name):
            raise DataError(
                f"--data.subset {data.subset} names its own {name}: leave out "
                f"--data.{name.replace('_', '-')}, or it"
            )
    return SUBSETS[data.subset]


def _reader(data: DataConfig, raw: pathlib.Path | None) -> Reader:
    if data.generate:
        return lambda folder, module: generated_rows(folder, module, seed=data.seed)
    if raw is not None:
        return lambda folder, module: read_mathematics(
            find_file(raw / folder, f"{module}.txt"), bad_rows=data.bad_rows
        )
    from train.data import builders  # TensorFlow Datasets takes seconds to import

    def read(folder: str, module: str) -> Sequence[Row]:
        config = builders.mathematics_config(module)
        builder = builders.prepare(builders.Mathematics(config=config))
        return builders.ArrayRecordRows(builder, builders.split_name(folder))

    return read


def _divide(
    rows: Sequence[Row], subset: Subset, key: list[int], all_rows: bool
) -> tuple[Sequence[Row], Sequence[Row]]:
    """Shuffles a file by a key; the first rows are for training, the last for
    validation."""
    n = len(rows)
    held_out = subset.held_out(n)
    left = n - held_out
    n_train = subset.train_rows if all_rows and subset.train_rows else left
    if n_train > left or left < 1:
        raise DataError(
            f"a training file has {n} rows, {n_train + held_out} are needed: the files "
            "are not release v1.0's; give --data.train-size, or --data.generate"
        )
    if n_train == n:
        return rows, []
    order = np.random.Generator(np.random.PCG64(key)).permutation(n).astype(np.int32)
    return PickedRows(rows, order[:n_train]), PickedRows(rows, order[left:])

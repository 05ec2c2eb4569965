"""The rows that a config trains and evaluates on."""

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from train.config import DataConfig
from train.data.arithmetic import (
    arithmetic_questions,
    cells,
    multiplication_test,
    multiplication_train,
    three_digit_products,
)
from train.data.files import DataError, read_jsonl, read_tsv
from train.data.mathematics import mathematics_parts
from train.data.official import official_rows
from train.data.rows import JoinedRows, PickedRows, Row, spread

_ARITHMETIC_TRAIN = 100_000
_ARITHMETIC_EVAL = 1_000
OWN_FILES = ("jsonl", "tsv")
"""Datasets in the user's own files."""
_ONLY_FOR = {
    "subset": ("mathematics",),
    "generate": ("mathematics",),
    "digits": ("multiplication",),
    "train_split": ("rjokes",),
    "train_file": OWN_FILES,
    "eval_file": OWN_FILES,
    "paper_form": ("gsm8k", "multirc", "three_digits"),
    "validation_fraction": ("gsm8k", *OWN_FILES),
}
"""Fields that other datasets refuse, as they would have no effect there."""


@dataclasses.dataclass(frozen=True)
class Splits:
    """The training rows, and the evaluation sets by name."""

    train: Sequence[Row]
    evaluation: dict[str, Sequence[Row]]


def load_splits(data: DataConfig) -> Splits:
    """Reads, downloads or generates the rows that a config names.

    | dataset | evaluation sets |
    |---|---|
    | arithmetic, multiplication | interpolation, extrapolation |
    | three_digits | validation, test |
    | mathematics | interpolation, extrapolation; with a subset also validation |
    | gsm8k | test |
    | rjokes | dev (if not trained on), test |
    | multirc | validation |
    | jsonl, tsv | eval, if there is an eval_file |

    gsm8k, jsonl and tsv have ``validation`` too if validation_fraction is not 0.

    Raw files are looked for in ``data.raw_dir``, else in ``$NTL_DATA_DIR``: in
    ``gsm8k/{train,test}.jsonl``, ``rjokes/{train,dev,test}.tsv``,
    ``multirc/{train,val}.jsonl`` and ``mathematics_dataset/SPLIT/MODULE.txt``, each
    gzipped or not, with or without that first folder. If neither is set they are
    downloaded.

    Args:
        data: train_size rows are spread evenly over the files of mathematics, eval_size
            rows over its modules; elsewhere both take the first rows.

    Returns:
        Rows ``{"question": str, "answer": str}``, in sequences with random access.

    Raises:
        DataError: a file is missing or broken, or holds fewer rows than train_size or
            too few for validation_fraction; or fields contradict each other.
    """
    loaders = {
        "arithmetic": _arithmetic,
        "multiplication": _multiplication,
        "three_digits": _three_digits,
        "mathematics": _mathematics,
        "gsm8k": _official,
        "rjokes": _official,
        "multirc": _official,
        "jsonl": _own_files,
        "tsv": _own_files,
    }
    if data.name not in loaders:
        raise DataError(f"no dataset {data.name!r}; take one of {', '.join(loaders)}")
    for name in ("train_size", "eval_size"):
        size = getattr(data, name)
        if size is not None and size < 1:
            raise DataError(f"{name} must be at least 1 or None, got {size}")
    defaults = DataConfig()
    for field, names in _ONLY_FOR.items():
        if getattr(data, field) != getattr(defaults, field) and data.name not in names:
            flag = f"--data.{field.replace('_', '-')}"
            raise DataError(f"{flag} is for {', '.join(names)}, not {data.name}")
    return loaders[data.name](data)


def _arithmetic(data: DataConfig) -> Splits:
    n_train = _ARITHMETIC_TRAIN if data.train_size is None else data.train_size
    n_eval = _ARITHMETIC_EVAL if data.eval_size is None else data.eval_size
    options = {"seed": data.seed, "max_operand": data.max_operand}
    return Splits(
        arithmetic_questions(n_train, split="train", **options),
        {
            "interpolation": arithmetic_questions(
                n_eval, split="interpolation", **options
            ),
            "extrapolation": arithmetic_questions(
                n_eval, split="extrapolation", **options
            ),
        },
    )


def _multiplication(data: DataConfig) -> Splits:
    n_train = _ARITHMETIC_TRAIN if data.train_size is None else data.train_size
    evaluation = {
        "interpolation": cells(data.digits),
        "extrapolation": cells(data.digits, beyond=1),
    }
    return Splits(
        multiplication_train(n_train, digits=data.digits, seed=data.seed),
        {
            name: _head(
                [multiplication_test(cell, seed=data.seed) for cell in of_set], data
            )
            for name, of_set in evaluation.items()
        },
    )


def _three_digits(data: DataConfig) -> Splits:
    rows = three_digit_products(seed=data.seed, paper_form=data.paper_form)
    return _sized(data, rows.pop("train"), rows)


def _mathematics(data: DataConfig) -> Splits:
    parts = mathematics_parts(data, _raw_folder(data, "mathematics_dataset"))
    total = sum(map(len, parts.train))
    size = total if data.train_size is None else data.train_size
    if size > total:
        raise _too_few(data, total)
    return Splits(
        spread(parts.train, size),
        {name: _head(rows, data) for name, rows in parts.evaluation.items()},
    )


def _official(data: DataConfig) -> Splits:
    rows = official_rows(data, _raw_folder(data, data.name))
    train = rows.pop(data.train_split)
    if data.name == "multirc":
        rows = {"validation": rows["val"]}
    return _with_validation(data, train, rows)


def _own_files(data: DataConfig) -> Splits:
    read = read_jsonl if data.name == "jsonl" else read_tsv
    if data.train_file is None:
        raise DataError(
            f"--data.name {data.name} needs --data.train-file, the path of a "
            f".{data.name} file"
        )
    evaluation = {}
    if data.eval_file is not None:
        evaluation["eval"] = read(data.eval_file, bad_rows=data.bad_rows)
    train = read(data.train_file, bad_rows=data.bad_rows)
    return _with_validation(data, train, evaluation)


def _with_validation(
    data: DataConfig, train: Sequence[Row], evaluation: dict[str, Sequence[Row]]
) -> Splits:
    """Holds out a fraction of the training rows, then takes the requested sizes."""
    if not 0.0 <= data.validation_fraction < 1.0:
        raise DataError(
            f"validation_fraction must be in [0, 1), got {data.validation_fraction}"
        )
    held_out = int(data.validation_fraction * len(train))
    if data.validation_fraction and not held_out:
        raise DataError(
            f"--data.validation-fraction {data.validation_fraction} of {len(train)} "
            f"rows is less than one: give at least {1 / len(train):g}, or 0"
        )
    if held_out:
        order = np.random.Generator(np.random.PCG64(data.seed)).permutation(len(train))
        evaluation = {
            "validation": PickedRows(train, np.sort(order[:held_out])),
            **evaluation,
        }
        train = PickedRows(train, np.sort(order[held_out:]))
    return _sized(data, train, evaluation)


def _sized(
    data: DataConfig, train: Sequence[Row], evaluation: Mapping[str, Sequence[Row]]
) -> Splits:
    """The first rows, in the requested sizes."""
    size = len(train) if data.train_size is None else data.train_size
    if size > len(train):
        raise _too_few(data, len(train))
    return Splits(
        train if size == len(train) else train[:size],
        {name: _head([rows], data) for name, rows in evaluation.items()},
    )


def _too_few(data: DataConfig, rows: int) -> DataError:
    return DataError(
        f"--data.train-size is {data.train_size}, but {data.name} has {rows} rows: "
        "lower it, or give None, which takes all"
    )


def _head(parts: Sequence[Sequence[Row]], data: DataConfig) -> Sequence[Row]:
    """The first eval_size rows, spread over the parts; all if there are fewer."""
    total = sum(map(len, parts))
    size = total if data.eval_size is None else min(total, data.eval_size)
    return JoinedRows(parts) if size == total else spread(parts, size)


def _raw_folder(data: DataConfig, name: str) -> pathlib.Path | None:
    """The folder of a dataset's raw files, or None if they are to be downloaded."""
    root = data.raw_dir or os.environ.get("NTL_DATA_DIR")
    if not root:
        return None
    folder = pathlib.Path(root).expanduser()
    if not folder.is_dir():
        raise DataError(
            f"no raw data folder {root!r}; correct --data.raw-dir or $NTL_DATA_DIR, or "
            "set neither to download"
        )
    return folder / name if (folder / name).is_dir() else folder

"""Which rows a config trains on, and which it evaluates on."""

import dataclasses
import os
import pathlib
from collections.abc import Sequence

import numpy as np

from train.config import DataConfig
from train.data.multiplication import cells, multiplication_test, multiplication_train
from train.data.rows import JoinedRows, Row, spread
from train.data.sources import (
    DataError,
    arithmetic_questions,
    find_file,
    read_gsm8k,
    read_jsonl,
    read_mathematics,
)

_ARITHMETIC_TRAIN = 100_000
_ARITHMETIC_EVAL = 1_000


@dataclasses.dataclass(frozen=True)
class Splits:
    """What to train on, and what to evaluate on by name."""

    train: Sequence[Row]
    evaluation: dict[str, Sequence[Row]]


def load_splits(data: DataConfig) -> Splits:
    """Reads, downloads or generates the rows that a config names.

    Evaluation sets by dataset: arithmetic, multiplication and mathematics have
    ``interpolation`` and ``extrapolation``; gsm8k has ``test``; jsonl has ``eval`` if
    there is an eval_file; the last two also ``validation`` if validation_fraction is
    not 0.

    Raw files are looked for in ``data.raw_dir``, else in ``$NTL_DATA_DIR``: in
    ``gsm8k/{train,test}.jsonl`` and ``mathematics_dataset/SPLIT/MODULE.txt``, each
    gzipped or not, and with or without that first folder. Without either variable they
    are downloaded.

    Args:
        data: train_size rows are spread evenly over mathematics' files; eval_size rows
            over its modules; elsewhere both take the first ones.

    Returns:
        Rows ``{"question": str, "answer": str}``, in random-access sequences.

    Raises:
        DataError: a file is missing or broken, or holds fewer rows than train_size.
    """
    loaders = {
        "arithmetic": _arithmetic,
        "multiplication": _multiplication,
        "mathematics": _mathematics,
        "gsm8k": _gsm8k,
        "jsonl": _jsonl,
    }
    if data.name not in loaders:
        raise DataError(f"no dataset {data.name!r}; take one of {', '.join(loaders)}")
    for name in ("train_size", "eval_size"):
        size = getattr(data, name)
        if size is not None and size < 1:
            raise DataError(f"{name} must be at least 1 or None, got {size}")
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


def _mathematics(data: DataConfig) -> Splits:
    if not data.modules or not data.difficulties:
        raise DataError("mathematics needs at least one module and one difficulty")
    read = _mathematics_reader(data)
    train = [
        read(difficulty, module)
        for module in data.modules
        for difficulty in data.difficulties
    ]
    evaluation = {
        "interpolation": [read("interpolate", module) for module in data.modules],
        "extrapolation": [
            read("extrapolate", module) for module in data.extrapolation_modules
        ],
    }
    total = sum(map(len, train))
    size = total if data.train_size is None else data.train_size
    if size > total:
        raise DataError(f"train_size is {size}, but {data.name} has {total} rows")
    return Splits(
        spread(train, size),
        {name: _head(parts, data) for name, parts in evaluation.items() if parts},
    )


def _mathematics_reader(data: DataConfig):
    """A function from a folder and a module to rows, from raw files or downloaded."""
    raw = _raw_folder(data, "mathematics_dataset")
    if raw is not None:
        return lambda folder, module: read_mathematics(
            find_file(raw / folder, f"{module}.txt")
        )
    from train.data import builders  # TensorFlow Datasets takes seconds to import

    def read(folder: str, module: str) -> Sequence[Row]:
        config = builders.mathematics_config(module)
        builder = builders.prepare(builders.Mathematics(config=config))
        return builders.ArrayRecordRows(builder, builders.split_name(folder))

    return read


def _gsm8k(data: DataConfig) -> Splits:
    raw = _raw_folder(data, "gsm8k")
    if raw is not None:
        train, test = (
            read_gsm8k(find_file(raw, f"{split}.jsonl")) for split in ("train", "test")
        )
    else:
        from train.data import builders  # as above

        builder = builders.prepare(builders.Gsm8k())
        train, test = (
            builders.ArrayRecordRows(builder, split) for split in ("train", "test")
        )
    return _with_validation(data, train, {"test": test})


def _jsonl(data: DataConfig) -> Splits:
    if data.train_file is None:
        raise DataError("the dataset jsonl needs train_file, the path of a .jsonl file")
    evaluation = {}
    if data.eval_file is not None:
        evaluation["eval"] = read_jsonl(data.eval_file)
    return _with_validation(data, read_jsonl(data.train_file), evaluation)


def _with_validation(
    data: DataConfig, train: Sequence[Row], evaluation: dict[str, Sequence[Row]]
) -> Splits:
    """Holds a share of the training rows out, and takes the sizes asked for."""
    if not 0.0 <= data.validation_fraction < 1.0:
        raise DataError(
            f"validation_fraction must be in [0, 1), got {data.validation_fraction}"
        )
    held_out = int(data.validation_fraction * len(train))
    if held_out:
        order = np.random.Generator(np.random.PCG64(data.seed)).permutation(len(train))
        evaluation = {
            "validation": [train[row] for row in sorted(order[:held_out].tolist())],
            **evaluation,
        }
        train = [train[row] for row in sorted(order[held_out:].tolist())]
    size = len(train) if data.train_size is None else data.train_size
    if size > len(train):
        raise DataError(f"train_size is {size}, but {data.name} has {len(train)} rows")
    return Splits(
        train[:size], {name: _head([rows], data) for name, rows in evaluation.items()}
    )


def _head(parts: Sequence[Sequence[Row]], data: DataConfig) -> Sequence[Row]:
    """The first eval_size rows, spread over the parts; all where that is fewer."""
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
            f"no raw data folder {root!r}; correct raw_dir or $NTL_DATA_DIR, or set "
            "neither to download"
        )
    return folder / name if (folder / name).is_dir() else folder

"""Which of the mathematics dataset's files, and which of their rows, a config takes."""

import dataclasses
import pathlib
import zlib
from collections.abc import Callable, Sequence

import numpy as np

from train.config import DataConfig
from train.data.files import DataError, find_file
from train.data.mathematics import SUBSETS, Subset, read_mathematics
from train.data.mathematics_questions import generated_rows
from train.data.rows import PickedRows, Row

Reader = Callable[[str, str], Sequence[Row]]
"""Rows by folder and module."""

_OWN_FIELDS = ("modules", "extrapolation_modules", "difficulties")


@dataclasses.dataclass(frozen=True)
class Parts:
    """Rows file by file; evaluation sets without a file are left out."""

    train: list[Sequence[Row]]
    evaluation: dict[str, list[Sequence[Row]]]


def mathematics_parts(data: DataConfig, raw: pathlib.Path | None) -> Parts:
    """The files of a config, read, downloaded or generated.

    Args:
        data: of the dataset mathematics.
        raw: folder of ``SPLIT/MODULE.txt[.gz]``; None downloads release v1.0.

    Raises:
        DataError: a file is missing or broken, or has too few rows for the subset; no
            module or difficulty; a module that cannot be generated; or a subset beside
            modules or difficulties.
    """
    if not data.modules or not data.difficulties:
        raise DataError("mathematics needs at least one module and one difficulty")
    subset = _subset(data)
    read = _reader(data, raw)
    train, validation = [], []
    for module in subset.modules:
        for folder in data.difficulties:
            key = [data.seed, zlib.crc32(f"{folder}/{module}".encode())]
            of_file = _divided(
                read(folder, module), subset, key, all_rows=data.train_size is None
            )
            train.append(of_file[0])
            validation.append(of_file[1])
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
    for name in _OWN_FIELDS:
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


def _divided(
    rows: Sequence[Row], subset: Subset, key: list[int], all_rows: bool
) -> tuple[Sequence[Row], Sequence[Row]]:
    """Shuffles a file by a key, and takes training rows from its front, validation rows
    from its end."""
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

"""Released datasets of one file a split: from raw files, or downloaded."""

import pathlib
from collections.abc import Callable, Sequence

from train.config import DataConfig
from train.data.files import find_file
from train.data.rows import Row
from train.data.sources import read_gsm8k, read_multirc, read_rjokes

RowsBySplit = dict[str, Sequence[Row]]


def gsm8k(data: DataConfig, raw: pathlib.Path | None) -> RowsBySplit:
    """GSM8K's ``train`` and ``test``; raw is a folder of their files, or None."""
    splits = ("train", "test")
    if raw is None:
        return _downloaded("Gsm8k", splits, data.paper_form)
    return _read(
        raw,
        {split: f"{split}.jsonl" for split in splits},
        lambda path: read_gsm8k(
            path, paper_form=data.paper_form, bad_rows=data.bad_rows
        ),
    )


def rjokes(data: DataConfig, raw: pathlib.Path | None) -> RowsBySplit:
    """rJokes' splits from the one to train on: ``train``, ``dev``, ``test``."""
    splits = ("train", "dev", "test")
    splits = splits[splits.index(data.train_split) :]
    if raw is None:
        return _downloaded("RJokes", splits)
    return _read(
        raw,
        {split: f"{split}.tsv" for split in splits},
        lambda path: read_rjokes(path, bad_rows=data.bad_rows),
    )


def multirc(data: DataConfig, raw: pathlib.Path | None) -> RowsBySplit:
    """MultiRC's ``train`` and ``val``; the labels of its test split are not public."""
    splits = ("train", "val")
    if raw is None:
        return _downloaded("MultiRC", splits, data.paper_form)
    return _read(
        raw,
        {split: f"{split}.jsonl" for split in splits},
        lambda path: read_multirc(
            path, paper_form=data.paper_form, bad_rows=data.bad_rows
        ),
    )


def _read(
    folder: pathlib.Path,
    files: dict[str, str],
    read: Callable[[pathlib.Path], Sequence[Row]],
) -> RowsBySplit:
    return {split: read(find_file(folder, name)) for split, name in files.items()}


def _downloaded(
    name: str, splits: Sequence[str], paper_form: bool | None = None
) -> RowsBySplit:
    """From a builder's ArrayRecord files, which it writes once."""
    from train.data import builders  # TensorFlow Datasets takes seconds to import

    form = {} if paper_form is None else {"config": builders.form_config(paper_form)}
    builder = builders.prepare(getattr(builders, name)(**form))
    return {split: builders.ArrayRecordRows(builder, split) for split in splits}

"""TensorFlow Datasets builders that neither need nor import TensorFlow.

Both write ArrayRecord files, and read them by random access (`as_data_source`).
"""

import os
import pathlib
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from typing import overload

import tensorflow_datasets as tfds

from train.data.sources import (
    DataError,
    Row,
    find_file,
    read_gsm8k,
    read_mathematics,
)

MATHEMATICS_SPLITS = (
    "train-easy",
    "train-medium",
    "train-hard",
    "interpolate",
    "extrapolate",
)


class _QuestionsBuilder(tfds.core.GeneratorBasedBuilder):
    """What the two builders share: features, ArrayRecord, and local raw files."""

    VERSION = tfds.core.Version("1.0.0")  # raise it when the rows change: they stay
    SKIP_REGISTERING = True
    homepage = ""

    def __init__(self, *, raw_dir: str | None = None, **kwargs) -> None:
        self._raw_dir = raw_dir
        # The variable that TFDS itself reads, but only once, when it is imported.
        kwargs.setdefault("data_dir", os.environ.get("TFDS_DATA_DIR"))
        super().__init__(file_format="array_record", **kwargs)

    def _info(self) -> tfds.core.DatasetInfo:
        text = tfds.features.Text()
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict({"question": text, "answer": text}),
            homepage=self.homepage,
            disable_shuffling=True,  # rows keep the order of their file
        )

    def _generate_examples(self, rows: Sequence[Row]) -> Iterator[tuple[int, Row]]:
        yield from enumerate(rows)


class Gsm8k(_QuestionsBuilder):
    """GSM8K, cleaned as `read_gsm8k` does; splits ``train`` and ``test``.

    Args:
        raw_dir: folder of ``{train,test}.jsonl[.gz]``; None downloads them from GitHub.
        data_dir: where the ArrayRecord files go; by default ``$TFDS_DATA_DIR``, else
            ``~/tensorflow_datasets``.
    """

    name = "ntl_gsm8k"
    homepage = "https://github.com/openai/grade-school-math"
    url = (
        "https://raw.githubusercontent.com/openai/grade-school-math/master/"
        "grade_school_math/data/{split}.jsonl"
    )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager):
        splits = ("train", "test")
        if self._raw_dir is None:
            files = dl_manager.download(
                {split: self.url.format(split=split) for split in splits}
            )
        else:
            files = {
                split: find_file(self._raw_dir, f"{split}.jsonl") for split in splits
            }
        return {
            split: self._generate_examples(read_gsm8k(files[split])) for split in splits
        }


class Mathematics(_QuestionsBuilder):
    """A module of DeepMind's mathematics dataset; a split for each of its folders.

    The builder that comes with TensorFlow Datasets imports TensorFlow, joins the
    difficulties and leaves extrapolation out.

    Args:
        config: `mathematics_config(module)`.
        raw_dir: folder of ``SPLIT/MODULE.txt[.gz]``; None downloads release v1.0.
        data_dir: where the ArrayRecord files go; by default ``$TFDS_DATA_DIR``, else
            ``~/tensorflow_datasets``.
    """

    name = "ntl_mathematics"
    homepage = "https://github.com/google-deepmind/mathematics_dataset"
    url = (
        "https://storage.googleapis.com/mathematics-dataset/"
        "mathematics_dataset-v1.0.tar.gz"
    )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager):
        if self._raw_dir is None:
            archive = pathlib.Path(dl_manager.download(self.url))
            folder = _extracted(archive) / "mathematics_dataset-v1.0"
        else:
            folder = pathlib.Path(self._raw_dir)
        if self.builder_config is None:
            raise DataError("Mathematics needs config=mathematics_config(module)")
        module = self.builder_config.name
        files = {}
        for split in MATHEMATICS_SPLITS:
            if any((folder / split).glob(f"{module}.txt*")):
                files[split] = find_file(folder / split, f"{module}.txt")
        if not files:
            raise DataError(
                f"{folder}: no folder holds {module}.txt; check the module's name"
            )
        return {
            split_name(split): self._generate_examples(read_mathematics(path))
            for split, path in files.items()
        }


def _extracted(archive: pathlib.Path) -> pathlib.Path:
    """A tar archive's content in a folder beside it, where every module finds it.

    The download manager's own extraction imports TensorFlow.
    """
    folder = archive.with_name(archive.name + ".content")
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=archive.parent) as unfinished:
            content = pathlib.Path(unfinished, "content")
            with tarfile.open(archive) as tar:
                tar.extractall(content, filter="data")
            content.rename(folder)  # whole or not at all
    return folder


def mathematics_config(module: str) -> tfds.core.BuilderConfig:
    """The configuration of `Mathematics` that names a module."""
    return tfds.core.BuilderConfig(name=module, version="1.0.0")


def split_name(folder: str) -> str:
    """The name of a folder's split; a hyphen divides parts of a shard's file name."""
    return folder.replace("-", "_")


def prepare(builder: tfds.core.DatasetBuilder) -> tfds.core.DatasetBuilder:
    """Downloads what is missing and writes the ArrayRecord files, unless they exist.

    Raises:
        DataError: the download failed.
    """
    try:
        builder.download_and_prepare(
            download_config=tfds.download.DownloadConfig(try_download_gcs=False)
        )
    except (OSError, tfds.download.DownloadError) as error:
        raise DataError(
            f"cannot download {builder.name} ({type(error).__name__}: "
            f"{' '.join(str(error).split())[:200]}); put the raw files into a folder "
            "and name it as raw_dir or in $NTL_DATA_DIR"
        ) from error
    return builder


class ArrayRecordRows(Sequence[Row]):
    """Rows of a prepared builder's split, read from disk when asked for."""

    def __init__(self, builder: tfds.core.DatasetBuilder, split: str) -> None:
        if split not in builder.info.splits:
            raise DataError(
                f"{builder.info.full_name} has no split {split!r}, only "
                f"{', '.join(builder.info.splits)}"
            )
        # Its decorator hides the parameters from type checkers.
        self._source = builder.as_data_source(split)  # pyright: ignore[reportCallIssue]

    def __len__(self) -> int:
        return len(self._source)

    @overload
    def __getitem__(self, row: int) -> Row: ...
    @overload
    def __getitem__(self, row: slice) -> list[Row]: ...

    def __getitem__(self, row):
        if isinstance(row, slice):
            rows = range(*row.indices(len(self)))
            return [_decoded(record) for record in self._source.__getitems__(rows)]
        return _decoded(self._source[range(len(self))[row]])


def _decoded(record) -> Row:
    return {key: record[key].decode() for key in ("question", "answer")}

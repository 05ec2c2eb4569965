"""TensorFlow Datasets builders that neither need nor import TensorFlow.

They write ArrayRecord files, and read them by random access (`as_data_source`).
"""

import gzip
import os
import pathlib
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import overload

import tensorflow_datasets as tfds
from google.protobuf import json_format

from train.data.files import BROKEN_GZIP, DataError, find_file
from train.data.mathematics import read_mathematics
from train.data.mathematics_questions import FOLDERS
from train.data.official import read_gsm8k, read_multirc, read_rjokes
from train.data.rows import Row

_VERSION = "2.0.0"  # raise it when the rows change: prepared files stay


class _QuestionsBuilder(tfds.core.GeneratorBasedBuilder):
    """Common to the builders: features, ArrayRecord, and local raw files."""

    VERSION = tfds.core.Version(_VERSION)
    SKIP_REGISTERING = True
    homepage = ""
    url = ""

    def __init__(self, *, raw_dir: str | None = None, **kwargs) -> None:
        self._raw_dir = raw_dir
        # TFDS itself reads this variable only when it is imported.
        kwargs.setdefault("data_dir", os.environ.get("TFDS_DATA_DIR"))
        try:
            super().__init__(file_format="array_record", **kwargs)
        except json_format.ParseError as error:
            raise DataError(
                f"{self.data_dir}: its dataset_info.json is damaged ({error}); delete "
                "the folder and restart"
            ) from error

    def _info(self) -> tfds.core.DatasetInfo:
        text = tfds.features.Text()
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict({"question": text, "answer": text}),
            homepage=self.homepage,
            disable_shuffling=True,  # rows keep the order of their file
        )

    def _files(
        self, dl_manager: tfds.download.DownloadManager, names: dict[str, str]
    ) -> Mapping[str, str | os.PathLike]:
        """The file of each split: in the raw folder, or downloaded from `url`."""
        if self._raw_dir is not None:
            return {
                split: find_file(self._raw_dir, name) for split, name in names.items()
            }
        return dl_manager.download(
            {split: self.url.format(split=split) for split in names}
        )

    def _folder(
        self, dl_manager: tfds.download.DownloadManager, name: str
    ) -> pathlib.Path:
        """The raw folder, or that of this name in the archive at `url`."""
        if self._raw_dir is not None:
            return pathlib.Path(self._raw_dir)
        return _extracted(pathlib.Path(dl_manager.download(self.url))) / name

    def _generate_examples(self, rows: Sequence[Row]) -> Iterator[tuple[int, Row]]:
        yield from enumerate(rows)


class _FormedBuilder(_QuestionsBuilder):
    """A dataset with a second form of the rows, that of the paper's code."""

    def __init__(self, **kwargs) -> None:
        kwargs.setdefault("config", form_config(paper_form=False))
        super().__init__(**kwargs)

    @property
    def paper_form(self) -> bool:
        config = self.builder_config
        return config is not None and config.name == form_config(paper_form=True).name


class Gsm8k(_FormedBuilder):
    """GSM8K, cleaned as `read_gsm8k` does; splits ``train`` and ``test``.

    Args:
        config: `form_config(paper_form)`; by default not the paper's form.
        raw_dir: folder of ``{train,test}.jsonl[.gz]``; None downloads them from GitHub.
        data_dir: where the ArrayRecord files go; by default ``$TFDS_DATA_DIR``, else
            ``~/tensorflow_datasets``.
    """

    name = "ntl_gsm8k"
    homepage = "https://github.com/openai/grade-school-math"
    url = (
        "https://raw.githubusercontent.com/openai/grade-school-math/"
        "3101c7d5072418e28b9008a6636bde82a006892c/grade_school_math/data/{split}.jsonl"
    )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager):
        files = self._files(dl_manager, {s: f"{s}.jsonl" for s in ("train", "test")})
        return {
            split: self._generate_examples(read_gsm8k(file, paper_form=self.paper_form))
            for split, file in files.items()
        }


class RJokes(_QuestionsBuilder):
    """rJokes, read as `read_rjokes` does; splits ``train``, ``dev`` and ``test``.

    Its texts are by Reddit users; the release asks to honour requests for removal.

    Args:
        raw_dir: folder of ``{train,dev,test}.tsv[.gz]``; None downloads them from
            GitHub.
        data_dir: as for `Gsm8k`.
    """

    name = "ntl_rjokes"
    homepage = "https://github.com/orionw/rJokesData"
    url = (
        "https://raw.githubusercontent.com/orionw/rJokesData/"
        "d48bedd71bdacc7557b84ad697bf556e7aad7c21/data/{split}.tsv.gz"
    )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager):
        splits = ("train", "dev", "test")
        files = self._files(dl_manager, {split: f"{split}.tsv" for split in splits})
        return {
            split: self._generate_examples(read_rjokes(file))
            for split, file in files.items()
        }


class MultiRC(_FormedBuilder):
    """MultiRC, read as `read_multirc` does; splits ``train``, ``val`` and ``test``.

    The answers of ``test`` are empty: its labels are not public.

    Args:
        config: `form_config(paper_form)`; by default not the paper's form.
        raw_dir: folder of ``{train,val,test}.jsonl[.gz]``; None downloads SuperGLUE's
            archive.
        data_dir: as for `Gsm8k`.
    """

    name = "ntl_multirc"
    homepage = "https://super.gluebenchmark.com"
    url = "https://dl.fbaipublicfiles.com/glue/superglue/data/v2/MultiRC.zip"

    def _split_generators(self, dl_manager: tfds.download.DownloadManager):
        folder = self._folder(dl_manager, "MultiRC")
        return {
            split: self._generate_examples(
                read_multirc(
                    find_file(folder, f"{split}.jsonl"),
                    labelled=split != "test",
                    paper_form=self.paper_form,
                )
            )
            for split in ("train", "val", "test")
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
        folder = self._folder(dl_manager, "mathematics_dataset-v1.0")
        if self.builder_config is None:
            raise DataError("Mathematics needs config=mathematics_config(module)")
        module = self.builder_config.name
        files = {}
        for split in FOLDERS:
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
    """Extracts a zip or gzipped tar archive to a folder beside it.

    The download manager's own extraction imports TensorFlow.

    Raises:
        DataError: the archive is incomplete.
    """
    folder = archive.with_name(archive.name + ".content")
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=archive.parent) as unfinished:
            content = pathlib.Path(unfinished, "content")
            try:
                _extract(archive, content)
            except (*BROKEN_GZIP, tarfile.TarError, zipfile.BadZipFile) as error:
                # The download is kept, so a restart would read the same file.
                problem = " ".join(str(error).split())[:200]
                raise DataError(
                    f"{archive}: incomplete archive ({problem}); delete it and restart"
                ) from error
            content.rename(folder)  # atomic
    return folder


def _extract(archive: pathlib.Path, folder: pathlib.Path) -> None:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(folder)
    else:
        with gzip.open(archive) as stream, tarfile.open(fileobj=stream) as packed:
            packed.extractall(folder, filter="data")
            # The checksum follows after all that tarfile reads.
            while stream.read(2**20):
                pass


def mathematics_config(module: str) -> tfds.core.BuilderConfig:
    """The configuration of `Mathematics` that names a module."""
    return tfds.core.BuilderConfig(name=module, version=_VERSION)


def form_config(paper_form: bool) -> tfds.core.BuilderConfig:
    """The configuration of `Gsm8k` and `MultiRC` that names the form of the rows."""
    name = "paper" if paper_form else "plain"
    return tfds.core.BuilderConfig(name=name, version=_VERSION)


def split_name(folder: str) -> str:
    """The name of a folder's split; hyphens separate parts of a shard's file name."""
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
    """Rows of a prepared builder's split, read from disk on access.

    Raises:
        DataError: the builder has no such split; or, on access, its files are missing
            or damaged.
    """

    def __init__(self, builder: tfds.core.DatasetBuilder, split: str) -> None:
        self._name = f"{builder.info.full_name}, split {split}"
        self._folder = builder.data_dir
        if not builder.info.splits:  # prepared data always have some
            raise self._damage("no dataset_info.json that names its splits")
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
            return self.__getitems__(range(*row.indices(len(self))))
        return self.__getitems__([range(len(self))[row]])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[Row]:
        """The rows at these indices, in one pass over the files."""
        if not len(rows):
            return []
        try:
            records = self._source.__getitems__(rows)
        except RuntimeError as error:  # the C++ reader's only error
            raise self._damage(" ".join(str(error).split())[:200]) from error
        for row, record in zip(rows, records, strict=True):
            # As read from a file that ends at a block's border.
            if record["question"] is None or record["answer"] is None:
                raise self._damage(f"row {row} is missing")
        return [
            {key: record[key].decode() for key in ("question", "answer")}
            for record in records
        ]

    def _damage(self, problem: str) -> DataError:
        return DataError(
            f"{self._name}: its ArrayRecord files are missing or damaged ({problem}); "
            f"delete {self._folder} and restart"
        )

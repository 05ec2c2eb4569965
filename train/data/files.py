"""Raw files: found, unpacked, and read line by line without a wrong row in silence."""

import codecs
import gzip
import logging
import os
import pathlib
import zlib
from collections.abc import Callable, Iterable
from typing import Literal

from train.data.rows import Row

BadRows = Literal["error", "skip"]
"""What a malformed row does: end the run, or be left out, counted and reported."""

BROKEN_GZIP = (gzip.BadGzipFile, EOFError, zlib.error)
"""What reading a damaged gzip file raises."""

logger = logging.getLogger("train")


class DataError(ValueError):
    """Data that cannot be read; the message names the file, the line and the remedy."""


class RowError(DataError):
    """A row that the model cannot take; the message counts it in its set, from 1."""


class FileError(DataError):
    """A fault of a whole file, which leaving lines out does not mend."""


def find_file(folder: str | os.PathLike, name: str) -> pathlib.Path:
    """The file of that name in a folder, or its gzipped twin.

    Raises:
        DataError: neither is there.
    """
    path = pathlib.Path(folder) / name
    for candidate in (path, path.with_name(name + ".gz")):
        if candidate.is_file():
            return candidate
    raise DataError(f"{path}: no such file, nor {name}.gz; check the raw data folder")


def read_bytes(path: str | os.PathLike) -> bytes:
    """A file's content without byte order mark, gunzipped where it is compressed.

    Compression is told by the first bytes, not by the name: a downloaded file has none.

    Raises:
        DataError: the file is missing, empty or no complete gzip file.
    """
    path = pathlib.Path(path)
    if path.is_dir():
        raise DataError(f"{path}: a folder; name a file in it")
    if not path.is_file():
        raise DataError(f"{path}: no such file; check the path")
    data = path.read_bytes()
    if path.suffix == ".gz" or data.startswith(b"\x1f\x8b"):
        try:
            data = gzip.decompress(data)
        except BROKEN_GZIP as error:
            raise DataError(
                f"{path}: no complete gzip file ({error}); fetch it again"
            ) from error
    data = data.removeprefix(codecs.BOM_UTF8)
    if not data.strip():
        raise DataError(f"{path}: the file is empty; it needs at least one row")
    return data


def decoded(line: bytes) -> str:
    """A line's text. Raises DataError, without the place, where it is no UTF-8."""
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"byte {line[error.start]:#04x} is no UTF-8; save the file as UTF-8"
        ) from error
    if "\0" in text:  # ASCII in UTF-16 is valid UTF-8, full of these
        raise DataError("a byte of 0, as in UTF-16; save the file as UTF-8")
    return text


def read_rows(
    path: str | os.PathLike,
    parse: Callable[[str], Iterable[Row]],
    *,
    bad_rows: BadRows = "error",
) -> list[Row]:
    """The rows of a file that holds some a line; blank lines are left out.

    Args:
        path: a text file, gzipped or not.
        parse: a line's rows; it raises DataError, without the place, where the line is
            malformed.
        bad_rows: ``"skip"`` leaves malformed lines out whole, and warns of their number
            and of the first.

    Raises:
        DataError: the file is missing, empty, no complete gzip file or without any row;
            or a line is malformed and bad_rows is ``"error"``.
    """
    rows: list[Row] = []
    bad: list[str] = []
    for number, line in enumerate(read_bytes(path).split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            rows.extend(parse(decoded(line)))
        except DataError as error:
            problem = f"line {number}: {error}"
            if bad_rows == "error" or isinstance(error, FileError):
                raise DataError(f"{path}, {problem}") from error
            bad.append(problem)
    report_skipped(path, len(rows), bad)
    if not rows:
        raise DataError(f"{path}: no row in it; it needs at least one")
    return rows


def report_skipped(path: str | os.PathLike, kept: int, bad: list[str]) -> None:
    """Warns of malformed lines that were left out, if any were."""
    if bad:
        logger.warning(
            "%s: skipped %d malformed lines and kept %d rows; the first, %s",
            path,
            len(bad),
            kept,
            bad[0],
        )

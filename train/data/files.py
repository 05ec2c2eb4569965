"""Raw files: found, decompressed and parsed, JSON lines and TSV among them.

No malformed row is read silently.
"""

import codecs
import gzip
import json
import logging
import os
import pathlib
import zlib
from collections.abc import Callable, Iterable
from typing import Any, Literal

from train.data.rows import Row

BadRows = Literal["error", "skip"]
"""A malformed row ends the run, or is skipped, counted and reported."""

BROKEN_GZIP = (gzip.BadGzipFile, EOFError, zlib.error)
"""What reading a damaged gzip file raises."""

_JSON_FORM = 'write {"question": "...", "answer": "..."}'
_TSV_FORM = "write question, tab, answer"
_COLUMNS = ("question", "answer")

logger = logging.getLogger("train")


class DataError(ValueError):
    """Data that cannot be read; the message names the file, the line and the remedy."""


class RowError(DataError):
    """A row that the model cannot take; the message has its number, from 1."""


class FileError(DataError):
    """A fault of a whole file, which skipping lines does not repair."""


def find_file(folder: str | os.PathLike, name: str) -> pathlib.Path:
    """The file of that name in a folder, or the same with .gz.

    Raises:
        DataError: neither exists.
    """
    path = pathlib.Path(folder) / name
    for candidate in (path, path.with_name(name + ".gz")):
        if candidate.is_file():
            return candidate
    raise DataError(f"{path}: no such file, nor {name}.gz; check the raw data folder")


def read_bytes(path: str | os.PathLike) -> bytes:
    """A file's content without byte order mark, decompressed if it is gzipped.

    Compression is recognised by the first bytes too: downloads have no suffix.

    Raises:
        DataError: the file is missing, empty or an incomplete gzip file.
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
                f"{path}: incomplete gzip file ({error}); download it once more"
            ) from error
    data = data.removeprefix(codecs.BOM_UTF8)
    if not data.strip():
        raise DataError(f"{path}: the file is empty; it needs at least one row")
    return data


def decoded(line: bytes) -> str:
    """A line's text. Raises DataError, without a line number, if it is not UTF-8."""
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"byte {line[error.start]:#04x} is not UTF-8; save the file as UTF-8"
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
    """The rows of a file, parsed line by line; blank lines are skipped.

    Args:
        path: a text file, gzipped or not.
        parse: returns a line's rows, or raises DataError, without the line's number,
            if it is malformed.
        bad_rows: ``"skip"`` skips malformed lines, and warns with their number and the
            first one.

    Raises:
        DataError: the file is missing, empty, an incomplete gzip file or without rows;
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
        raise DataError(f"{path}: no valid row; it needs at least one")
    return rows


def report_skipped(path: str | os.PathLike, kept: int, bad: list[str]) -> None:
    """Warns of malformed lines that were skipped, if any."""
    if bad:
        logger.warning(
            "%s: skipped %d malformed lines and kept %d rows; the first, %s",
            path,
            len(bad),
            kept,
            bad[0],
        )


def read_jsonl(path: str | os.PathLike, *, bad_rows: BadRows = "error") -> list[Row]:
    """Reads ``{"question": ..., "answer": ...}`` objects, one per line.

    An answer may be empty, a question may not.

    Args:
        path: a ``.jsonl`` or ``.jsonl.gz`` file. Other keys are ignored, blank lines
            skipped.
        bad_rows: see `read_rows`.

    Raises:
        DataError: as `read_rows`; a line is malformed if it is not a JSON object with
            both keys as strings, repeats a key, or has an empty question.
    """
    return read_rows(path, _question_and_answer, bad_rows=bad_rows)


def _question_and_answer(line: str) -> list[Row]:
    record = json_object(line, form=_JSON_FORM)
    for key in ("question", "answer"):
        if not isinstance(record.get(key), str):
            problem = "is not a string" if key in record else "is missing"
            raise DataError(f'"{key}" {problem}; {_JSON_FORM}')
        check_text(record[key], f'"{key}"')
    if not record["question"].strip():
        raise DataError(f'"question" is empty; {_JSON_FORM}')
    return [{"question": record["question"], "answer": record["answer"]}]


def json_object(line: str, *, form: str) -> dict[str, Any]:
    """The JSON object of a line.

    Args:
        line: the text.
        form: what a good line looks like, for the message.

    Raises:
        DataError: not JSON, another type, or a repeated key.
    """
    try:
        record = json.loads(line, object_pairs_hook=_unique_keys)
    except DataError:
        raise
    # Besides its own error: a number of thousands of digits, and brackets without end.
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"not valid JSON ({error}); write one object per line"
        ) from error
    if not isinstance(record, dict):
        raise DataError(f"a JSON {type(record).__name__}, not an object; {form}")
    return record


def check_text(text: str, name: str) -> None:
    r"""Raises DataError for a string that is not text, as JSON's ``"\ud800"``."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{name} holds half of a surrogate pair, which is not a character; "
            "write it in UTF-8"
        ) from error


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise DataError(f"the key {json.dumps(repeated)} is repeated; keep one of them")
    return record


def read_tsv(path: str | os.PathLike, *, bad_rows: BadRows = "error") -> list[Row]:
    """Reads one question and answer per line, with a tab between them.

    A first line that names the columns, ``question`` and ``answer`` among them, allows
    other columns and any order. Quotation marks are text: a column cannot contain tabs
    or line ends.

    Args:
        path: a ``.tsv`` or ``.tsv.gz`` file.
        bad_rows: see `read_rows`.

    Raises:
        DataError: as `read_rows`; a line is malformed if it has too many or too few
            columns, or an empty question or answer. A header in which one of the two
            columns is missing or repeated is never skipped.
    """
    return read_rows(path, _Columns(), bad_rows=bad_rows)


class _Columns:
    """Parses lines by the columns named in the first one, or as two columns."""

    def __init__(self) -> None:
        self._names: list[str] | None = None

    def __call__(self, line: str) -> list[Row]:
        cells = [cell.strip() for cell in line.rstrip("\r").split("\t")]
        if self._names is None:
            named = [cell.lower() for cell in cells]
            if set(_COLUMNS) & set(named):
                self._names = _checked_header(named)
                return []
            self._names = list(_COLUMNS)
        _check_no_header(cells, self._names)
        if len(cells) != len(self._names):
            raise DataError(
                f"{len(cells)} columns instead of {len(self._names)}; {_TSV_FORM}, and "
                "no tab within either"
            )
        row = {name: cells[self._names.index(name)] for name in _COLUMNS}
        for name, text in row.items():
            if not text:
                raise DataError(f"the {name} is empty; {_TSV_FORM}")
        return [row]


def _check_no_header(cells: list[str], names: list[str]) -> None:
    """Raises if the line is a header, as in files joined with their headers."""
    named = [cell.lower() for cell in cells]
    if not set(_COLUMNS) <= set(named):
        return
    if named != names:  # rows below it would be read by the first header
        raise FileError(
            f"another header, {', '.join(named)}, after {', '.join(names)}; give each "
            "file its own path, or the same columns"
        )
    raise DataError("a second header; leave it out where files are joined")


def _checked_header(named: list[str]) -> list[str]:
    for name in _COLUMNS:
        if named.count(name) != 1:
            raise FileError(
                f"the header has {named.count(name)} columns {name!r} instead of one; "
                "name a column question and a column answer, or leave the header out"
            )
    return named

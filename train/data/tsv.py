"""Rows from tab-separated values, and rJokes, which are such rows."""

import os

from train.data.files import BadRows, DataError, FileError, read_rows
from train.data.rows import Row

_COLUMNS = ("question", "answer")
_FORM = "write question, tab, answer"
MOST_FUNNY = 11


def read_tsv(path: str | os.PathLike, *, bad_rows: BadRows = "error") -> list[Row]:
    """Reads a question and an answer a line, a tab between them.

    A first line that names the columns, ``question`` and ``answer`` among them, allows
    others beside them and any order. Quotation marks are text: tabs and line ends
    cannot stand inside a column.

    Args:
        path: a ``.tsv`` or ``.tsv.gz`` file.
        bad_rows: see `read_rows`.

    Raises:
        DataError: as `read_rows`; a line is malformed where it has more or fewer
            columns than it should, or an empty question or answer. A header that lacks
            one of the two columns, or has it twice, is never skipped.
    """
    return read_rows(path, _Columns(), bad_rows=bad_rows)


class _Columns:
    """Parses lines by the columns that the first one names, or as two."""

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
                f"{len(cells)} columns instead of {len(self._names)}; {_FORM}, and no "
                "tab within either"
            )
        row = {name: cells[self._names.index(name)] for name in _COLUMNS}
        for name, text in row.items():
            if not text:
                raise DataError(f"the {name} is empty; {_FORM}")
        return [row]


def _check_no_header(cells: list[str], names: list[str]) -> None:
    """Raises where files were joined with their headers."""
    named = [cell.lower() for cell in cells]
    if not set(_COLUMNS) <= set(named):
        return
    if named != names:  # whose rows would be read by the columns of the first
        raise FileError(
            f"another header, {', '.join(named)}, after {', '.join(names)}; give each "
            "file its own path, or the same columns"
        )
    raise DataError("the header again; leave it out where files are joined")


def _checked_header(named: list[str]) -> list[str]:
    for name in _COLUMNS:
        if named.count(name) != 1:
            raise FileError(
                f"the header has {named.count(name)} columns {name!r} instead of one; "
                "name a column question and a column answer, or leave the header out"
            )
    return named


def read_rjokes(path: str | os.PathLike, *, bad_rows: BadRows = "error") -> list[Row]:
    """Reads a split of rJokes: how funny is it, from 0 to 11?

    Args:
        path: ``{train,dev,test}.tsv`` of the release, or gzipped: score, tab, joke.
            Further tabs belong to the joke.
        bad_rows: see `read_rows`.

    Returns:
        Rows whose question is the joke, and whose answer is its score.

    Raises:
        DataError: as `read_rows`; a line is malformed where it lacks the tab or the
            joke, or where the score is no whole number from 0 to 11.

    Source: Weller and Seppi, *The rJokes Dataset* (LREC 2020); question and answer as
    in *Regress, Don't Guess* (ICML 2025).
    """
    return read_rows(path, _scored_joke, bad_rows=bad_rows)


def _scored_joke(line: str) -> list[Row]:
    score, tab, joke = line.partition("\t")
    if not tab:
        raise DataError("no tab; write score, tab, joke")
    is_whole = score.isascii() and score.isdigit() and len(score) <= 2
    if not is_whole or int(score) > MOST_FUNNY:
        # A long one is a joke's text, which must not go into logs.
        shown = repr(score) if len(score) <= 4 else f"of {len(score)} characters"
        raise DataError(
            f"the score {shown} is no whole number from 0 to {MOST_FUNNY}; "
            "write score, tab, joke"
        )
    if not joke.strip():
        raise DataError("no joke after the tab; write score, tab, joke")
    return [{"question": joke.strip(), "answer": str(int(score))}]

"""Rows from JSON: an object a line."""

import json
import os
from typing import Any

from train.data.files import BadRows, DataError, read_rows
from train.data.rows import Row

_FORM = 'write {"question": "...", "answer": "..."}'


def read_jsonl(path: str | os.PathLike, *, bad_rows: BadRows = "error") -> list[Row]:
    """Reads ``{"question": ..., "answer": ...}`` objects, one a line.

    An answer may be empty, where there is nothing to say; a question may not.

    Args:
        path: a ``.jsonl`` or ``.jsonl.gz`` file. Further keys are left out, blank lines
            skipped.
        bad_rows: see `read_rows`.

    Raises:
        DataError: as `read_rows`; a line is malformed where it is no JSON object with
            both keys as strings, names a key twice, or asks nothing.
    """
    return read_rows(path, _question_and_answer, bad_rows=bad_rows)


def _question_and_answer(line: str) -> list[Row]:
    record = json_object(line, form=_FORM)
    for key in ("question", "answer"):
        if not isinstance(record.get(key), str):
            problem = "is no string" if key in record else "is missing"
            raise DataError(f'"{key}" {problem}; {_FORM}')
        check_text(record[key], f'"{key}"')
    if not record["question"].strip():
        raise DataError(f'"question" is empty; {_FORM}')
    return [{"question": record["question"], "answer": record["answer"]}]


def json_object(line: str, *, form: str) -> dict[str, Any]:
    """The JSON object of a line.

    Args:
        line: the text.
        form: what a good line looks like, for the message.

    Raises:
        DataError: no JSON, another type, or a key that stands twice in an object.
    """
    try:
        record = json.loads(line, object_pairs_hook=_without_doubles)
    except DataError:
        raise
    # Besides its own error: a number of thousands of digits, and brackets without end.
    except (ValueError, RecursionError) as error:
        raise DataError(f"not valid JSON ({error}); write one object a line") from error
    if not isinstance(record, dict):
        raise DataError(f"a JSON {type(record).__name__}, not an object; {form}")
    return record


def check_text(text: str, name: str) -> None:
    r"""Raises DataError where a string is no text, as JSON's ``"\ud800"`` alone."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{name} holds half of a surrogate pair, which is no character; write it "
            "out in UTF-8"
        ) from error


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        keys = [key for key, _ in pairs]
        double = next(key for key in keys if keys.count(key) > 1)
        raise DataError(f"the key {json.dumps(double)} stands twice; keep one of them")
    return record

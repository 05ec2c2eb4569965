"""MultiRC as generation: a passage, a question, and all of its right answers."""

import os
from typing import Any

from train.data.files import BadRows, DataError, read_rows
from train.data.jsonl import check_text, json_object
from train.data.rows import Row

_FORM = 'write {"passage": {"text": "...", "questions": [...]}}, as SuperGLUE does'
_BETWEEN = " | "


def read_multirc(
    path: str | os.PathLike,
    *,
    labelled: bool = True,
    paper_form: bool = False,
    bad_rows: BadRows = "error",
) -> list[Row]:
    """Reads a split of MultiRC, a row a question.

    What is too long loses its end, so the question stands before the passage. In the
    paper's form it stands behind: of long passages, the model was never asked anything.

    Args:
        path: ``{train,val,test}.jsonl`` of SuperGLUE's release, or gzipped.
        labelled: False for the test split, whose labels are not public.
        paper_form: the question behind the passage.
        bad_rows: see `read_rows`; a malformed line is a passage with its questions.

    Returns:
        Rows whose answer is the right options, divided by `` | ``; empty where none is
        right, and in the test split.

    Raises:
        DataError: as `read_rows`; a line is malformed where a field is missing or of
            another type, or a question or a right answer is empty.

    Source: Khashabi et al., *Looking Beyond the Surface* (NAACL 2018); SuperGLUE v2;
    question and answer as in *Regress, Don't Guess* (ICML 2025).
    """

    def parse(line: str) -> list[Row]:
        passage = _field(json_object(line, form=_FORM), "passage", dict)
        text = _text(passage, "text")
        return [
            {
                "question": _question(text, _written(record, "question"), paper_form),
                "answer": _answer(record) if labelled else "",
            }
            for record in _objects(passage, "questions")
        ]

    return read_rows(path, parse, bad_rows=bad_rows)


def _question(passage: str, question: str, paper_form: bool) -> str:
    question = "Question: " + question
    return "\n\n".join((passage, question) if paper_form else (question, passage))


def _answer(record: dict[str, Any]) -> str:
    right = []
    for option in _objects(record, "answers"):
        if _field(option, "label", int) not in (0, 1):
            raise DataError(f'"label" is {option["label"]}, neither 0 nor 1; {_FORM}')
        if option["label"]:
            right.append(_written(option, "text"))
    return _BETWEEN.join(right)


def _objects(record: dict[str, Any], key: str) -> list[dict[str, Any]]:
    objects = _field(record, key, list)
    for number, entry in enumerate(objects, start=1):
        if not isinstance(entry, dict):
            raise DataError(
                f'number {number} of "{key}" is no object but a '
                f"{type(entry).__name__}; {_FORM}"
            )
    return objects


def _text(record: dict[str, Any], key: str) -> str:
    text = _field(record, key, str)
    check_text(text, f'"{key}"')
    return text.strip()


def _written(record: dict[str, Any], key: str) -> str:
    text = _text(record, key)
    if not text:
        raise DataError(f'"{key}" of a question or of a right answer is empty; {_FORM}')
    return text


def _field(record: dict[str, Any], key: str, kind: type) -> Any:
    if not isinstance(record.get(key), kind):
        problem = f"is no {kind.__name__}" if key in record else "is missing"
        raise DataError(f'"{key}" {problem}; {_FORM}')
    return record[key]

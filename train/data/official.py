"""GSM8K, rJokes and MultiRC: from their released files, or downloaded."""

import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from ntl_jax.numbers.grammar import clean_numbers
from train.config import DataConfig
from train.data.files import (
    BadRows,
    DataError,
    check_text,
    find_file,
    json_object,
    read_jsonl,
    read_rows,
)
from train.data.rows import Row

MOST_FUNNY = 11
_MULTIRC_FORM = (
    'write {"passage": {"text": "...", "questions": [...]}}, as SuperGLUE does'
)
_BETWEEN = " | "
_CALCULATOR = re.compile(r"<<.*?>>")
# The research code's patterns, applied to a whole text in this order.
_PAPER_SPACES = re.compile(r"(?:^|\s)(\d{1,3})((?: \d{3})+)(\.\d+)?")
_PAPER_COMMAS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_PAPER_POINTS = re.compile(r"\D(\.\d+)")


def read_gsm8k(
    path: str | os.PathLike, *, paper_form: bool = False, bad_rows: BadRows = "error"
) -> list[Row]:
    """Reads a split of GSM8K.

    Args:
        path: ``train.jsonl`` or ``test.jsonl`` of the official release, or gzipped.
        paper_form: clean numbers as the paper's code did, faults included; see
            `paper_clean_up`.
        bad_rows: see `read_rows`.

    Raises:
        DataError: as `read_jsonl`.

    Source: Cobbe et al., *Training Verifiers to Solve Math Word Problems* (2021); the
    clean-up of *Regress, Don't Guess* (ICML 2025).
    """
    rows = read_jsonl(path, bad_rows=bad_rows)
    return [clean_gsm8k(row, paper_form=paper_form) for row in rows]


def clean_gsm8k(row: Row, *, paper_form: bool = False) -> Row:
    """Drops ``<<48/2=24>>`` marks and writes numbers in plain digits.

    >>> clean_gsm8k({"question": "Is it $1,000?", "answer": "2*.5=<<2*.5=1>>1"})
    {'question': 'Is it $1000?', 'answer': '2*0.5=1'}

    Digits separated by a space are one number (2 132 is 2132), unless the row computes
    with each of them: then they are separate numbers.

    >>> row = {"question": "He has 2 132 letters.", "answer": "2*132=<<2*132=264>>264"}
    >>> clean_gsm8k(row)["question"]
    'He has 2 132 letters.'
    """
    texts = {key: _CALCULATOR.sub("", row[key]) for key in ("question", "answer")}
    if paper_form:
        return {key: paper_clean_up(text) for key, text in texts.items()}
    context = row["question"] + "\n" + row["answer"]
    return {key: clean_numbers(text, context=context) for key, text in texts.items()}


def paper_clean_up(text: str) -> str:
    """The clean-up of numbers behind the paper's figures on GSM8K.

    Each rule replaces all copies of its match, inside other numbers too, and removes a
    space only before the last group:

    >>> paper_clean_up("12.5 and .5, 1 500 000 and 500 000")
    '120.5 and 0.5, 1 500000 and 500000'

    Source: *Regress, Don't Guess* (ICML 2025), its preparation of GSM8K.
    """
    for match in list(_PAPER_SPACES.finditer(text)):
        found = match[1] + match[2][-4:] + (match[3] or "")
        text = text.replace(found, found.replace(" ", ""))
    for match in list(_PAPER_COMMAS.finditer(text)):
        text = text.replace(match[0], match[0].replace(",", ""))
    for match in list(_PAPER_POINTS.finditer(text)):
        text = text.replace(match[1], "0" + match[1])
    return text


def read_rjokes(path: str | os.PathLike, *, bad_rows: BadRows = "error") -> list[Row]:
    """Reads a split of rJokes: how funny is it, from 0 to 11?

    Args:
        path: ``{train,dev,test}.tsv`` of the release, or gzipped: score, tab, joke.
            Further tabs belong to the joke.
        bad_rows: see `read_rows`.

    Returns:
        Rows whose question is the joke, and whose answer is its score.

    Raises:
        DataError: as `read_rows`; a line is malformed if it lacks the tab or the joke,
            or if the score is not a whole number from 0 to 11.

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
        # A long one is a joke's text, which must not be logged.
        shown = repr(score) if len(score) <= 4 else f"of {len(score)} characters"
        raise DataError(
            f"the score {shown} is not a whole number from 0 to {MOST_FUNNY}; "
            "write score, tab, joke"
        )
    if not joke.strip():
        raise DataError("no joke after the tab; write score, tab, joke")
    return [{"question": joke.strip(), "answer": str(int(score))}]


def read_multirc(
    path: str | os.PathLike,
    *,
    labelled: bool = True,
    paper_form: bool = False,
    bad_rows: BadRows = "error",
) -> list[Row]:
    """Reads a split of MultiRC, one row per question.

    Long rows are truncated at the end, so the question precedes the passage. In the
    paper's form it follows the passage, and truncation removes it from long ones.

    Args:
        path: ``{train,val,test}.jsonl`` of SuperGLUE's release, or gzipped.
        labelled: False for the test split, whose labels are not public.
        paper_form: the question after the passage.
        bad_rows: see `read_rows`; a malformed line is a passage with its questions.

    Returns:
        Rows whose answer is the right options, joined by `` | ``; empty if none is
        right, and in the test split.

    Raises:
        DataError: as `read_rows`; a line is malformed if a field is missing or of
            another type, or a question or a right answer is empty.

    Source: Khashabi et al., *Looking Beyond the Surface* (NAACL 2018); SuperGLUE v2;
    question and answer as in *Regress, Don't Guess* (ICML 2025).
    """

    def parse(line: str) -> list[Row]:
        passage = _field(json_object(line, form=_MULTIRC_FORM), "passage", dict)
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
            raise DataError(
                f'"label" is {option["label"]}, neither 0 nor 1; {_MULTIRC_FORM}'
            )
        if option["label"]:
            right.append(_written(option, "text"))
    return _BETWEEN.join(right)


def _objects(record: dict[str, Any], key: str) -> list[dict[str, Any]]:
    objects = _field(record, key, list)
    for number, entry in enumerate(objects, start=1):
        if not isinstance(entry, dict):
            raise DataError(
                f'number {number} of "{key}" is not an object but a '
                f"{type(entry).__name__}; {_MULTIRC_FORM}"
            )
    return objects


def _text(record: dict[str, Any], key: str) -> str:
    text = _field(record, key, str)
    check_text(text, f'"{key}"')
    return text.strip()


def _written(record: dict[str, Any], key: str) -> str:
    text = _text(record, key)
    if not text:
        raise DataError(
            f'"{key}" of a question or of a right answer is empty; {_MULTIRC_FORM}'
        )
    return text


def _field(record: dict[str, Any], key: str, kind: type) -> Any:
    if not isinstance(record.get(key), kind):
        problem = f"is not a {kind.__name__}" if key in record else "is missing"
        raise DataError(f'"{key}" {problem}; {_MULTIRC_FORM}')
    return record[key]


_RELEASES = {
    "gsm8k": ("Gsm8k", "jsonl", ("train", "test"), read_gsm8k),
    "rjokes": ("RJokes", "tsv", ("train", "dev", "test"), read_rjokes),
    # The labels of MultiRC's test split are not public.
    "multirc": ("MultiRC", "jsonl", ("train", "val"), read_multirc),
}
"""By name: the builder, the suffix of the files, the splits, and what reads a file."""


def official_rows(
    data: DataConfig, raw: pathlib.Path | None
) -> dict[str, Sequence[Row]]:
    """The splits of a released dataset, from the one to train on.

    Args:
        data: of gsm8k, rjokes or multirc.
        raw: folder of ``SPLIT.jsonl`` or ``SPLIT.tsv``, gzipped or not; None downloads
            them.

    Raises:
        DataError: a file is missing or malformed, or cannot be downloaded.
    """
    builder, suffix, splits, read = _RELEASES[data.name]
    splits = splits[splits.index(data.train_split) :]
    options = {} if data.name == "rjokes" else {"paper_form": data.paper_form}
    if raw is not None:
        return {
            split: read(
                find_file(raw, f"{split}.{suffix}"), bad_rows=data.bad_rows, **options
            )
            for split in splits
        }
    from train.data import builders  # TensorFlow Datasets takes seconds to import

    form = {"config": builders.form_config(data.paper_form)} if options else {}
    prepared = builders.prepare(getattr(builders, builder)(**form))
    return {split: builders.ArrayRecordRows(prepared, split) for split in splits}

"""GSM8K: word problems, cleaned of calculator marks, numbers in plain digits."""

import os
import re

from ntl_jax.numbers.grammar import clean_numbers
from train.data.files import BadRows
from train.data.jsonl import read_jsonl
from train.data.rows import Row

_CALCULATOR = re.compile(r"<<.*?>>")
# The research code's patterns, applied to a whole text one after the other.
_PAPER_SPACES = re.compile(r"(?:^|\s)(\d{1,3})((?: \d{3})+)(\.\d+)?")
_PAPER_COMMAS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_PAPER_POINTS = re.compile(r"\D(\.\d+)")


def read_gsm8k(
    path: str | os.PathLike, *, paper_form: bool = False, bad_rows: BadRows = "error"
) -> list[Row]:
    """Reads a split of GSM8K.

    Args:
        path: ``train.jsonl`` or ``test.jsonl`` of the official release, or gzipped.
        paper_form: clean numbers as the paper's code did, its faults included; see
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

    Digits that only a space divides are one number (2 132 is 2132), unless the row
    counts with each of them: then they are as many numbers.

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
    """The paper's clean-up of numbers, which its numbers on GSM8K were made with.

    Each rule replaces all copies of what it matched, inside other numbers too, and a
    space goes with the last group alone:

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

"""Rows of questions and answers: generated, or read from files."""

import codecs
import gzip
import json
import os
import pathlib
import re
import zlib
from typing import Literal

import numpy as np

from ntl_jax.number_grammar import clean_numbers
from train.data.rows import LineRows, Row

Split = Literal["train", "interpolation", "extrapolation"]

_TEMPLATES = (
    ("What is {a} plus {b}?", 1),
    ("Add {b} to {a}.", 1),
    ("Calculate {a} + {b}.", 1),
    ("What is the sum of {a} and {b}?", 1),
    ("What is {a} minus {b}?", -1),
    ("Subtract {b} from {a}.", -1),
    ("Calculate {a} - {b}.", -1),
    ("Take {b} away from {a}.", -1),
)
_HELD_OUT = 10  # one pair in so many is kept for evaluation by interpolation
_BLOCK = 1024
_CALCULATOR = re.compile(r"<<.*?>>")


class DataError(ValueError):
    """Data that cannot be read; the message names the file, the line and the remedy."""


def arithmetic_questions(
    n: int, *, seed: int, max_operand: int, split: Split = "train"
) -> list[Row]:
    """Generates additions and subtractions in words, answers in digits.

    The operands are uniform in 0..max_operand. A fixed tenth of their unordered pairs,
    the same for every seed, occurs in the split ``"interpolation"`` and nowhere else.
    In ``"extrapolation"`` both operands are in max_operand + 1..10 max_operand + 9: for
    99, three digits instead of up to two.

    Args:
        n: how many rows.
        seed: equal seeds give equal rows.
        max_operand: largest operand of training, at least 9.
        split: which of the three sets.

    Returns:
        n rows ``{"question": ..., "answer": ...}``, the first n of an endless sequence;
        answers may be negative.

    Raises:
        DataError: max_operand is below 9 (too few pairs to hold any out), or n below 0.

    Example:
        >>> for row in arithmetic_questions(2, seed=0, max_operand=99):
        ...     print(row["question"], row["answer"])
        Calculate 85 - 63. 22
        What is the sum of 51 and 26? 77
    """
    if max_operand < 9:
        raise DataError(f"max_operand must be at least 9, got {max_operand}")
    if n < 0:
        raise DataError(f"the number of questions must not be negative, got {n}")
    salt = ("train", "interpolation", "extrapolation").index(split)
    rng = np.random.Generator(np.random.PCG64([seed, salt]))
    low, high = 0, max_operand
    if split == "extrapolation":
        low, high = max_operand + 1, 10 * max_operand + 9
    # Blocks of one size, so that the first rows do not depend on how many follow.
    pairs, kinds = [], []
    while len(pairs) < n:
        drawn = rng.integers(low, high, (_BLOCK, 2), endpoint=True)  # [block, 2]
        kind = rng.integers(0, len(_TEMPLATES), _BLOCK)  # [block]
        if split != "extrapolation":
            chosen = _is_held_out(drawn) == (split == "interpolation")
            drawn, kind = drawn[chosen], kind[chosen]
        pairs.extend(drawn.tolist())
        kinds.extend(kind.tolist())
    rows = []
    for (a, b), kind in zip(pairs[:n], kinds[:n], strict=True):
        template, sign = _TEMPLATES[kind]
        answer = str(a + sign * b)
        rows.append({"question": template.format(a=a, b=b), "answer": answer})
    return rows


def _is_held_out(pairs: np.ndarray) -> np.ndarray:
    """One bool a pair of operands [n, 2], by a hash that knows no order and no seed."""
    low = pairs.min(axis=1).astype(np.uint64)
    high = pairs.max(axis=1).astype(np.uint64)
    # SplitMix64's finaliser over both operands; unsigned arithmetic wraps around.
    x = low * np.uint64(0x9E3779B97F4A7C15) + high * np.uint64(0xD1B54A32D192ED03)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(31))
    return x % np.uint64(_HELD_OUT) == 0


def read_mathematics(path: str | os.PathLike) -> LineRows:
    """Reads a module of DeepMind's mathematics dataset: question and answer lines.

    Args:
        path: a ``.txt`` or ``.txt.gz`` file whose lines alternate.

    Raises:
        DataError: the file is missing, empty or not UTF-8, or its last question lacks
            an answer.

    Source: Saxton et al., *Analysing Mathematical Reasoning Abilities of Neural
    Models* (2019), release v1.0.
    """
    block = _read_text(path)
    lines = block.count(b"\n") + (not block.endswith(b"\n"))
    if lines % 2:
        raise DataError(
            f"{path}: {lines} lines, an odd number: the question in line {lines} has "
            "no answer line; complete the file"
        )
    return LineRows.from_block(block)


def read_jsonl(path: str | os.PathLike) -> list[Row]:
    """Reads ``{"question": ..., "answer": ...}`` objects, one a line.

    Args:
        path: a ``.jsonl`` or ``.jsonl.gz`` file. Further keys are left out, blank lines
            skipped.

    Raises:
        DataError: the file is missing, empty or not UTF-8, or a line is no JSON object
            with both keys as strings.
    """
    rows = []
    for number, line in enumerate(_read_text(path).split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(
                f"{path}, line {number}: not valid JSON ({error}); write one object a "
                "line"
            ) from error
        if not isinstance(record, dict):
            raise DataError(
                f"{path}, line {number}: a JSON {type(record).__name__}, not an "
                'object; write {"question": "...", "answer": "..."}'
            )
        for key in ("question", "answer"):
            if not isinstance(record.get(key), str):
                problem = "is no string" if key in record else "is missing"
                raise DataError(
                    f'{path}, line {number}: "{key}" {problem}; write '
                    '{"question": "...", "answer": "..."}'
                )
        rows.append({"question": record["question"], "answer": record["answer"]})
    if not rows:
        raise DataError(f"{path}: only blank lines; it needs at least one row")
    return rows


def read_gsm8k(path: str | os.PathLike) -> list[Row]:
    """Reads a split of GSM8K, calculator marks removed, numbers in plain digits.

    Args:
        path: ``train.jsonl`` or ``test.jsonl`` of the official release, or gzipped.

    Raises:
        DataError: as `read_jsonl`.

    Source: Cobbe et al., *Training Verifiers to Solve Math Word Problems* (2021); the
    clean-up of *Regress, Don't Guess* (ICML 2025).
    """
    return [clean_gsm8k(row) for row in read_jsonl(path)]


def clean_gsm8k(row: Row) -> Row:
    """Drops ``<<48/2=24>>`` marks and writes numbers in plain digits.

    >>> clean_gsm8k({"question": "Is it $1,000?", "answer": "2*.5=<<2*.5=1>>1"})
    {'question': 'Is it $1000?', 'answer': '2*0.5=1'}
    """
    return {
        key: clean_numbers(_CALCULATOR.sub("", row[key]))
        for key in ("question", "answer")
    }


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


def _read_text(path: str | os.PathLike) -> bytes:
    """A valid UTF-8 text, gunzipped where the file's name ends in .gz."""
    path = pathlib.Path(path)
    if not path.is_file():
        raise DataError(f"{path}: no such file; check the path")
    data = path.read_bytes()
    try:
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        data.decode()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(
            f"{path}: no complete gzip file ({error}); fetch it again"
        ) from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}, line {line}: byte {data[error.start]:#04x} is no UTF-8; save the "
            "file as UTF-8"
        ) from error
    data = data.removeprefix(codecs.BOM_UTF8)
    if not data.strip():
        raise DataError(f"{path}: the file is empty; it needs at least one row")
    return data

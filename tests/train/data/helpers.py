"""What several tests of data share: small datasets, right answers, damaged rows."""

import ast
import itertools
import json
import re
from fractions import Fraction

import numpy as np
import pytest

from train.data import TokenizedDataset, train_batches
from train.data.transforms import Ragged

# Lines of the published test file whose answer has other numbers than the official
# one: what stands there, and what is right.
DAMAGED = {
    9: [("100.5", "1.5")],
    53: [("70.5", "7.5")],
    228: [("40.50", "4.50"), ("60.50", "6.50")],
    360: [("10.5", "1.5")],
    435: [("30.75", "3.75")],
    581: [("10.04", "1.04")],
    599: [("3000.65", "3.65")],
    616: [("20.50", "2.50")],
    815: [("10.5", "1.5"), ("200.75", "2.75")],
    1015: [("30.5", "3.5"), ("300.75", "3.75"), ("90.25", "9.25")],
    1177: [("200.25", "2.25"), ("200.2", "2.2")],
    1194: [("10.50", "1.50")],
}
# Others, where 0.75 became 00.75 or 000.75.
ZEROS = [25, 110, 411, 568, 755, 773, 803, 807, 1031, 1063, 1095, 1153, 1240, 1271]
# Others, where $400 000 stayed as it was.
SPACED = [266, 267]


def ragged(sizes, offset: int) -> Ragged:
    """Row i holds its own mark, offset + i, as often as it is long."""
    values = np.repeat(np.arange(len(sizes)) + offset, sizes).astype(np.int32)
    return Ragged.from_sizes(values, sizes)


def dataset(sizes, kind=TokenizedDataset) -> TokenizedDataset:
    """Rows of these lengths [N, 2]; questions hold 1000 + i, answers 5000 + i."""
    sizes = np.asarray(sizes)
    longest = sizes.max(axis=0)
    return kind(
        ragged(sizes[:, 0], 1000),
        ragged(sizes[:, 1], 5000),
        pad_token_id=0,
        source_length=int(longest[0]),
        target_length=int(longest[1]),
        truncated_sources=0,
        truncated_targets=0,
    )


def some_sizes(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).geometric(0.1, (n, 2)).clip(1, 40)


def take(n, iterator):
    batches = list(itertools.islice(iterator, n))
    iterator.close()
    return batches


def assert_equal(first, second):
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        assert a.keys() == b.keys()
        for key in a:
            np.testing.assert_array_equal(a[key], b[key])


def assert_resumes(dataset, start: int, batch_size: int, **options) -> list:
    """From a step on, the batches are those of the whole stream, which it returns."""
    options = options | {"batch_size": batch_size, "seed": 5}
    whole = take(start + 12, train_batches(dataset, **options))
    rest = take(12, train_batches(dataset, **options, start_step=start))
    assert_equal(whole[start:], rest)
    with pytest.raises(AssertionError):
        assert_equal(
            whole[:12], take(12, train_batches(dataset, **options, start_step=1))
        )
    return whole


def assert_processes_share(dataset, processes: int, batch_size: int, **options):
    """The batches of several processes, joined, are those of one."""
    options = options | {"batch_size": batch_size, "seed": 1}
    whole = take(20, train_batches(dataset, **options))
    parts = [
        take(20, train_batches(dataset, **options, rows=part))
        for part in np.split(np.arange(batch_size), processes)
    ]
    joined = [
        {key: np.concatenate([part[key] for part in step]) for key in step[0]}
        for step in zip(*parts, strict=True)
    ]
    assert_equal(whole, joined)


def evaluated(node):
    """The value of an expression of numbers, exactly."""
    match node:
        case ast.Expression():
            return evaluated(node.body)
        case ast.Constant():
            return Fraction(str(node.value))
        case ast.UnaryOp(op=ast.USub()):
            return -evaluated(node.operand)
    a, b = evaluated(node.left), evaluated(node.right)
    match node.op:
        case ast.Add():
            return a + b
        case ast.Sub():
            return a - b
        case ast.Mult():
            return a * b
        case ast.Div():
            return a / b
    raise ValueError(ast.dump(node))


def wrong_answers(rows):
    """Rows whose expression has another value than the answer."""
    wrong = []
    for row in rows:
        (text,) = re.findall(r"[-(]*\d[-+*/() \d]*", row["question"])
        if evaluated(ast.parse(text, mode="eval")) != Fraction(row["answer"]):
            wrong.append(row)
    return wrong


def jsonl(path, n):
    rows = [{"question": f"{i}+{i}", "answer": str(2 * i)} for i in range(n)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path), rows


def passages(answers):
    """A line of MultiRC whose question has these (text, label) options."""
    options = [{"text": text, "label": label} for text, label in answers]
    question = {"question": "Who?", "answers": options}
    return json.dumps({"passage": {"text": "It is I.", "questions": [question] * 3}})

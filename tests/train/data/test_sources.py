"""Reading and generating rows: contents, and messages about broken files."""

import gzip
import re

import numpy as np
import pytest

from train.data.arithmetic import arithmetic_questions
from train.data.files import DataError
from train.data.mathematics import read_mathematics
from train.data.rows import ComputedRows, JoinedRows, LineRows, PickedRows, spread


def operands(row):
    return [int(number) for number in re.findall(r"\d+", row["question"])]


@pytest.mark.parametrize("split", ["train", "interpolation", "extrapolation"])
def test_generated_answers_are_right(split):
    for row in arithmetic_questions(2000, seed=3, max_operand=99, split=split):
        a, b = operands(row)
        question = row["question"]
        if re.search(r"plus|sum|Add|\+", question):
            expected = a + b
        elif question.startswith(("Subtract", "Take")):
            expected = b - a
        else:
            assert re.search("minus|-", question)
            expected = a - b
        assert row["answer"] == str(expected)


@pytest.mark.parametrize("max_operand", [9, 99, 10_000])
def test_held_out_pairs_never_occur_in_training(max_operand):
    def pairs(split, seed):
        rows = arithmetic_questions(
            3000, seed=seed, max_operand=max_operand, split=split
        )
        return {tuple(sorted(operands(row))) for row in rows}

    train, held_out = pairs("train", 0), pairs("interpolation", 1)
    assert held_out and not train & held_out
    beyond = pairs("extrapolation", 0)
    assert min(min(pair) for pair in beyond) > max_operand
    assert max(max(pair) for pair in beyond) <= 10 * max_operand + 9
    assert max(max(pair) for pair in train) <= max_operand


def test_held_out_share_is_a_tenth_and_operands_are_uniform():
    rows = arithmetic_questions(40_000, seed=0, max_operand=99)
    seen = {tuple(sorted(operands(row))) for row in rows}
    assert 0.88 < len(seen) / 5050 < 0.92
    values = np.array([operands(row) for row in rows])
    counts = np.bincount(values.ravel(), minlength=100)
    assert len(counts) == 100
    assert counts.min() > 0.8 * counts.mean()


def test_generation_is_fixed_forever_and_prefixes_agree():
    rows = arithmetic_questions(5000, seed=0, max_operand=99)
    assert rows[:3] == [
        {"question": "Calculate 85 - 63.", "answer": "22"},
        {"question": "What is the sum of 51 and 26?", "answer": "77"},
        {"question": "What is the sum of 30 and 4?", "answer": "34"},
    ]
    assert arithmetic_questions(1500, seed=0, max_operand=99) == rows[:1500]
    assert arithmetic_questions(5, seed=1, max_operand=99) != rows[:5]
    assert arithmetic_questions(0, seed=0, max_operand=99) == []


def test_generation_refuses_what_it_cannot_hold_out():
    with pytest.raises(DataError, match="at least 9, got 8"):
        arithmetic_questions(1, seed=0, max_operand=8)
    with pytest.raises(DataError, match="not be negative, got -1"):
        arithmetic_questions(-1, seed=0, max_operand=99)


def write(path, data):
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("name", ["m.txt", "m.txt.gz"])
@pytest.mark.parametrize(
    "data", [b"1+1\n2\nis\t\xc3\xa9?\n7\n", b"1+1\r\n2\r\nis\t\xc3\xa9?\r\n7"]
)
def test_mathematics_lines(tmp_path, name, data):
    rows = read_mathematics(write(tmp_path / name, data))
    assert list(rows) == [
        {"question": "1+1", "answer": "2"},
        {"question": "is\t\u00e9?", "answer": "7"},
    ]


def test_missing_and_damaged_files(tmp_path):
    with pytest.raises(DataError, match=r"no\.txt: no such file; check"):
        read_mathematics(tmp_path / "no.txt")
    with pytest.raises(DataError, match="a folder; name a file in it"):
        read_mathematics(tmp_path)
    whole = gzip.compress(b"1+1\n2\n" * 50)
    for data in (b"plain text", whole[:-12], whole[:15] + b"\0\0\0" + whole[18:]):
        broken = tmp_path / "m.txt.gz"
        broken.write_bytes(data)
        with pytest.raises(DataError, match="incomplete gzip file"):
            read_mathematics(broken)


def test_line_rows_behave_like_a_list(data_dir):
    path = data_dir / "mathematics_dataset" / "train-easy" / "arithmetic__mul.txt.gz"
    rows = read_mathematics(path)
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    expected = [
        {"question": question, "answer": answer}
        for question, answer in zip(lines[::2], lines[1::2], strict=True)
    ]
    assert len(rows) == 5000 and list(rows) == expected
    assert rows[-1] == expected[-1]
    assert isinstance(rows[7:30:2], LineRows)
    assert list(rows[7:30:2]) == expected[7:30:2]
    with pytest.raises(IndexError):
        rows[5000]


def test_joined_rows_behave_like_a_list():
    parts = [
        [{"question": f"{p}", "answer": f"{i}"} for i in range(p)] for p in (2, 0, 3)
    ]
    joined, flat = JoinedRows(parts), [row for part in parts for row in part]
    assert len(joined) == 5 and list(joined) == flat
    assert joined[-1] == flat[-1] and joined[1:4] == flat[1:4]
    with pytest.raises(IndexError):
        joined[5]
    assert len(JoinedRows([])) == 0


class Many(list):
    """A list that also hands out many at once, as ArrayRecord files do."""

    def __getitems__(self, places):
        self.asked = places
        return [self[place] for place in places]


@pytest.mark.parametrize("kind", [list, Many])
def test_picked_rows_behave_like_a_list(kind):
    rows = kind({"question": str(i), "answer": str(i)} for i in range(20_000))
    places = np.arange(19_999, 0, -2, dtype=np.int32)
    picked, expected = PickedRows(rows, places), rows[::-1][:-1:2]
    assert len(picked) == 10_000 and list(picked) == expected
    assert picked[-1] == expected[-1] and picked[3] == expected[3]
    assert list(picked[5:9]) == expected[5:9] and isinstance(picked[5:9], PickedRows)
    assert not isinstance(rows, Many) or len(rows.asked) < 10_000
    with pytest.raises(IndexError):
        picked[10_000]


def test_computed_rows_behave_like_a_list_and_wait_to_be_asked():
    made = []

    def row(number):
        made.append(number)
        return {"question": str(number), "answer": ""}

    rows = ComputedRows(10, row)
    assert len(rows) == 10 and len(rows[3:7]) == 4 and made == []
    assert rows[-1]["question"] == "9" and rows[3:7][1]["question"] == "4"
    assert made == [9, 4]
    assert [r["question"] for r in rows[3:7][::2]] == ["3", "5"]
    with pytest.raises(IndexError):
        rows[10]


@pytest.mark.parametrize(
    ("sizes", "n", "expected"),
    [
        ((10, 10, 10), 9, (3, 3, 3)),
        ((10, 10, 10), 10, (3, 3, 4)),
        ((1, 10, 10), 9, (1, 4, 4)),
        ((10, 0, 10), 20, (10, 0, 10)),
    ],
)
def test_spread_is_as_even_as_the_sizes_allow(sizes, n, expected):
    parts = [
        [{"question": str(i), "answer": str(j)} for j in range(size)]
        for i, size in enumerate(sizes)
    ]
    rows = list(spread(parts, n))
    assert len(rows) == n
    counts = [sum(row["question"] == str(i) for row in rows) for i in range(len(sizes))]
    assert tuple(counts) == expected
    with pytest.raises(ValueError, match=f"{sum(sizes) + 1} rows were asked for"):
        spread(parts, sum(sizes) + 1)

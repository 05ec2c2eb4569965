"""GSM8K: rows, the clean-up of numbers, and what the published clean-up damaged."""

import gzip
import json
import re

import pytest

from ntl_jax.numbers.grammar import find_numbers, last_number
from tests.train.data.helpers import DAMAGED, SPACED, ZEROS
from train.data.official import clean_gsm8k, paper_clean_up, read_gsm8k

OFFICIAL_ROWS = {"train": 7473, "test": 1319}
KEYS = ("question", "answer")


@pytest.fixture(scope="module")
def ours(data_dir):
    return read_gsm8k(data_dir / "gsm8k" / "test.jsonl")


@pytest.fixture(scope="module")
def published(data_dir):
    path = data_dir / "gsm8k" / "ntl_preprocessed_test_clean.jsonl.gz"
    lines = gzip.decompress(path.read_bytes()).splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def train_file(data_dir):
    return data_dir / "gsm8k" / "train.jsonl.gz"


def numbers(text):
    return [text[n.start : n.end] for n in find_numbers(text)]


def values(row):
    return [[n.value for n in find_numbers(row[key])] for key in KEYS]


def test_the_papers_form_is_the_published_file(data_dir, ours, published):
    form = read_gsm8k(data_dir / "gsm8k" / "test.jsonl", paper_form=True)
    assert form == published
    assert form != ours


def test_ours_differs_where_the_published_file_is_damaged_alone(ours, published):
    pairs = list(enumerate(zip(ours, published, strict=True), start=1))
    different = [line for line, (own, other) in pairs if own != other]
    assert different == sorted([*DAMAGED, *ZEROS, *SPACED])
    for line in ZEROS:
        assert values(ours[line - 1]) == values(published[line - 1])
    for line in (*DAMAGED, *ZEROS):
        repaired = undoubled(published[line - 1]["answer"])
        assert undoubled(ours[line - 1]["answer"]) == repaired
    for line in SPACED:
        for key in KEYS:
            joined = re.sub(r"(?<=\d) (?=\d{3}\b)", "", published[line - 1][key])
            assert ours[line - 1][key] == joined


def undoubled(text):
    """Without the zeros that the published clean-up put before a point."""
    return re.sub(r"0+(?=\.\d)", "", text)


@pytest.mark.parametrize("line", DAMAGED)
def test_every_damaged_number_is_listed_with_the_right_one(ours, published, line):
    own, other = ours[line - 1], published[line - 1]
    assert own["question"] == other["question"]
    found = dict.fromkeys(
        (wrong, right)
        for wrong, right in zip(
            numbers(other["answer"]), numbers(own["answer"]), strict=True
        )
        if last_number(wrong) != last_number(right)
    )
    assert list(found) == DAMAGED[line]


@pytest.mark.parametrize("line", DAMAGED)
def test_the_right_numbers_are_the_official_ones(data_dir, line):
    official = (data_dir / "gsm8k" / "test.jsonl").read_text().splitlines()
    answer = json.loads(official[line - 1])["answer"]
    for wrong, right in DAMAGED[line]:
        # The official files write .5 as often as 0.5.
        assert right in numbers(answer) or right.lstrip("0") in numbers(answer)
        assert wrong not in numbers(answer)


def test_official_rows(data_dir, train_file, ours):
    train = read_gsm8k(train_file)
    assert {"train": len(train), "test": len(ours)} == OFFICIAL_ROWS
    text = "".join(row[key] for row in (*train, *ours) for key in KEYS)
    assert "<<" not in text and not re.search(r"\d,\d{3}\b", text)
    # 2 contracts of 132 pages, and 12 videos of 200 kilobytes.
    assert re.findall(r"\d+ \d{3}\b", text) == ["12 200", "2 132"]


def test_official_finals_are_whole_numbers(data_dir, train_file, ours):
    """The clean-up touches no final answer."""
    for rows, path in (
        (ours, data_dir / "gsm8k" / "test.jsonl"),
        (read_gsm8k(train_file), train_file),
    ):
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        for row, line in zip(rows, data.splitlines(), strict=True):
            final = json.loads(line)["answer"].rpartition("#### ")[2].replace(",", "")
            assert row["answer"].endswith(f"#### {final}")
    finals = [last_number(row["answer"]) for row in ours]
    assert sum(final % 10 == 0 for final in finals) == 476
    assert sum(final < 0 for final in finals) == 2


def test_a_space_divides_two_numbers_where_the_row_counts_with_both():
    row = {
        "question": "He has 2 132 letters, and 1 500 stamps.",
        "answer": "2 of 132 pages are 2*132=<<2*132=264>>264.\n#### 264",
    }
    clean = clean_gsm8k(row)
    assert clean["question"] == "He has 2 132 letters, and 1500 stamps."
    assert clean_gsm8k(row | {"answer": "2*100"})["question"].startswith(
        "He has 2132 l"
    )
    assert clean_gsm8k(row, paper_form=True)["question"].startswith("He has 2132 let")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,234,567.5 and $1 000", "1234567.5 and $1 000"),
        ("1 500 000 of 500 000", "1 500000 of 500000"),
        ("12.5, .5", "120.5, 0.5"),
        ("x.5 x.25 .5", "x00.5 x0.25 00.5"),
        ("no number.", "no number."),
    ],
)
def test_the_papers_clean_up_has_its_faults(text, expected):
    assert paper_clean_up(text) == expected

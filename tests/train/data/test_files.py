"""Malformed files of every format: named by file and line, or skipped and counted."""

import gzip
import itertools
import json
import logging
from fractions import Fraction

import hypothesis
import pytest
from hypothesis import strategies as st

from train.config import DataConfig
from train.data import DataError, load_splits
from train.data.files import read_jsonl, read_tsv
from train.data.mathematics import read_mathematics
from train.data.official import read_multirc, read_rjokes

GOOD = {"question": "q", "answer": "1"}


def passage(**fields) -> str:
    question = {"question": "Who?", "answers": [{"text": "I", "label": 1}]}
    return json.dumps({"passage": {"text": "I am.", "questions": [question | fields]}})


READERS = {
    "jsonl": (read_jsonl, b'{"question": "q", "answer": "1"}'),
    "tsv": (read_tsv, b"q\t1"),
    "rjokes": (read_rjokes, b"1\tq"),
    "multirc": (read_multirc, passage().encode()),
}


def write(path, data):
    path.write_bytes(data)
    return path


def logged(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "train"]


MALFORMED = [
    ("jsonl", b'{"question"', "not valid JSON"),
    ("jsonl", b"[" * 100_000, "not valid JSON"),
    ("jsonl", b'{"id": ' + b"9" * 5000 + b"}", "not valid JSON"),
    ("jsonl", b'{"question": "q", "answer": "1"} {}', "not valid JSON"),
    ("jsonl", b'["q", "1"]', "a JSON list, not an object; write"),
    ("jsonl", b'{"answer": "1"}', '"question" is missing; write'),
    ("jsonl", b'{"question": "q", "answer": 1}', '"answer" is not a string; write'),
    (
        "jsonl",
        b'{"question": "q", "answer": "1", "answer": "2"}',
        'the key "answer" is repeated; keep one',
    ),
    ("jsonl", b'{"question": "\\ud800", "answer": "1"}', "half of a surrogate pair"),
    ("jsonl", b'{"question": " ", "answer": "1"}', '"question" is empty; write'),
    ("tsv", b"q", "1 columns instead of 2; write question, tab, answer"),
    ("tsv", b"q\t1\t2", "3 columns instead of 2"),
    ("tsv", b"q\t ", "the answer is empty"),
    ("tsv", b"\t1", "the question is empty"),
    ("tsv", b"Question\tanswer", "a second header; leave it out"),
    ("rjokes", b"1 q", "no tab; write score, tab, joke"),
    ("rjokes", b"12\tq", "the score '12' is not a whole number from 0 to 11"),
    ("rjokes", b"-1\tq", "the score '-1' is not a whole"),
    ("rjokes", b"1.0\tq", "the score '1.0' is not a whole"),
    ("rjokes", "\u0663\tq".encode(), "is not a whole number"),
    ("rjokes", b"9" * 5000 + b"\tq", "the score of 5000 characters is not a whole"),
    ("rjokes", b"a joke first\t3", "the score of 12 characters is not a whole"),
    ("rjokes", b"1\t  ", "no joke after the tab"),
    ("multirc", b'{"question": "q"}', '"passage" is missing; write'),
    ("multirc", b'{"passage": {"text": 1}}', '"text" is not a str'),
    (
        "multirc",
        b'{"passage": {"text": "", "questions": [1]}}',
        "1 of .* is not an object",
    ),
    ("multirc", passage(answers=[{"text": "I"}]).encode(), '"label" is missing'),
    (
        "multirc",
        passage(answers=[{"text": "I", "label": 2}]).encode(),
        '"label" is 2, neither 0 nor 1',
    ),
    ("multirc", passage(question=" ").encode(), '"question" of a question .* is empty'),
    (
        "multirc",
        passage(answers=[{"text": "", "label": 1}]).encode(),
        "is empty; write",
    ),
    *((name, b"\xff", "byte 0xff is not UTF-8; save") for name in READERS),
    *((name, b"q\0\t1\0", "a byte of 0, as in UTF-16; save") for name in READERS),
]


@pytest.mark.parametrize(("name", "line", "message"), MALFORMED)
def test_a_malformed_line_is_named_or_skipped(tmp_path, caplog, name, line, message):
    read, good = READERS[name]
    path = write(tmp_path / "rows", b"\n".join([good, b"", line, good, line]))
    with pytest.raises(DataError, match=rf"rows, line 3: .*{message}") as error:
        read(path)
    assert "\n" not in str(error.value)
    with caplog.at_level(logging.WARNING):
        rows = read(path, bad_rows="skip")
    assert rows == read(write(tmp_path / "good", good)) * 2
    (warning,) = logged(caplog)
    assert "skipped 2 malformed lines and kept 2 rows; the first, line 3" in warning
    with pytest.raises(DataError, match="no valid row; it needs at least one"):
        read(write(tmp_path / "bad", line), bad_rows="skip")


@pytest.mark.parametrize("read", [read_mathematics, *(r for r, _ in READERS.values())])
# Without its time in it: two processes have to give one test the same name.
@pytest.mark.parametrize("data", [b"", b" \r\n\n", gzip.compress(b"", mtime=0)])
def test_an_empty_file_is_never_skipped(tmp_path, read, data):
    path = write(tmp_path / "rows", data)
    with pytest.raises(DataError, match="rows: the file is empty"):
        read(path, bad_rows="skip")


@pytest.mark.parametrize("name", READERS)
def test_byte_order_mark_line_ends_and_compression_change_nothing(tmp_path, name):
    read, good = READERS[name]
    expected = read(write(tmp_path / "plain", good + b"\n" + good))
    assert len(expected) == 2
    variants = {
        "bom": b"\xef\xbb\xbf" + good + b"\n" + good + b"\n",
        "crlf": good + b"\r\n\r\n" + good + b"\r\n",
        "packed.gz": gzip.compress(good + b"\n" + good),
        "packed_without_a_name": gzip.compress(good + b"\n" + good),
    }
    for variant, data in variants.items():
        assert read(write(tmp_path / variant, data)) == expected


def test_a_line_of_a_megabyte_is_a_row_like_any_other(tmp_path):
    long = "long " * 200_000 + "end"
    answer = {"question": long, "answer": "7"}
    lines = {
        "jsonl": json.dumps(answer),
        "tsv": f"{long}\t7",
        "rjokes": f"7\t{long}",
    }
    for name, line in lines.items():
        read, good = READERS[name]
        path = write(tmp_path / name, line.encode() + b"\n" + good)
        rows = read(path)
        assert len(rows) == 2 and rows[0] == answer
    pairs = (long + "\n7\n").encode() * 2
    assert read_mathematics(write(tmp_path / "m", pairs))[1] == answer


def test_other_keys_of_jsonl_are_ignored(tmp_path):
    line = b'{"question": "a\\n1", "answer": "1", "id": 3}'
    assert read_jsonl(write(tmp_path / "r.jsonl", line)) == [
        {"question": "a\n1", "answer": "1"}
    ]


def test_a_header_names_the_columns_of_a_tsv(tmp_path):
    path = write(tmp_path / "t.tsv", b"id\tAnswer\tquestion\r\n7\t1\tq\r\n8\t2\tp\r\n")
    assert read_tsv(path) == [GOOD, {"question": "p", "answer": "2"}]
    with pytest.raises(DataError, match="line 3: 2 columns instead of 3"):
        read_tsv(write(path, b"id\tanswer\tquestion\n7\t1\tq\n1\tq\n"))
    for header, problem in (
        (b"question\tscore", "0 columns 'answer' instead of one"),
        (b"question\tanswer\tanswer", "2 columns 'answer' instead of one"),
    ):
        with pytest.raises(DataError, match=f"line 1: the header has {problem}"):
            read_tsv(write(path, header + b"\nq\t1\t1\n"), bad_rows="skip")


def test_files_joined_with_their_headers_are_noticed(tmp_path, caplog):
    one, other = b"question\tanswer\nq\t1\n", b"answer\tquestion\n1\tq\n"
    with pytest.raises(DataError, match=r"t\.tsv, line 3: a second header"):
        read_tsv(write(tmp_path / "t.tsv", one + one))
    assert read_tsv(tmp_path / "t.tsv", bad_rows="skip") == [GOOD] * 2
    assert "skipped 1 malformed lines and kept 2" in logged(caplog)[0]
    for bad_rows in ("error", "skip"):
        with pytest.raises(DataError, match="line 3: another header, answer, question"):
            read_tsv(write(tmp_path / "t.tsv", one + other), bad_rows=bad_rows)


def test_quotation_marks_and_other_line_ends_are_text(tmp_path):
    text = 'he said "no\u2028yes'
    path = write(tmp_path / "t.tsv", f"{text}\t1\n{text}\t1\n".encode())
    assert read_tsv(path) == [{"question": text, "answer": "1"}] * 2


def test_further_tabs_belong_to_the_joke(tmp_path):
    path = write(tmp_path / "train.tsv", b"11\tone\ttwo\t\n00\tthree\n")
    assert read_rjokes(path) == [
        {"question": "one\ttwo", "answer": "11"},
        {"question": "three", "answer": "0"},
    ]


PAIRS = b"Add 1 and 1.\n2\nAdd 1 and 2.\n3\n"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (PAIRS[:-2], "3 lines, an odd number: a question has no answer"),
        (PAIRS.replace(b"\n2\n", b"\n"), "3 lines, an odd number"),
        (PAIRS.replace(b"\n2\n", b"\n\n"), "m, line 2: blank; a line is missing or"),
        (PAIRS.replace(b"\n2\n", b"\n \r\n"), "m, line 2: blank"),
        (b"\n" + PAIRS + b"4", "m, line 1: blank"),
        (b"1+1\n2\n3\n1+2\n", "m, line 3: a question that is a bare number; a line"),
        (b"1+1\n2\n-0.5\n1-2\n", "m, line 3: a question that is a bare number"),
        (b"1+1\n2\n3/4\n1+2\n", "m, line 3: a question that is a bare number"),
        (
            b"1+1\n2\nWhat is the sum of 1 and 2 and 3?\n"
            b"What is the sum of 2 and 2 and 5?\n9\n1+1\n",
            "m, line 4: an answer of 33 characters, where .* have at most 30",
        ),
    ],
)
def test_lines_that_do_not_alternate_are_never_skipped(tmp_path, data, message):
    """Every row after the fault would be wrong."""
    for bad_rows in ("error", "skip"):
        with pytest.raises(DataError, match=message):
            read_mathematics(write(tmp_path / "m", data), bad_rows=bad_rows)


SHORT = [
    (question.encode(), str(answer).encode())
    for number in range(1, 40)
    for question, answer in (
        (f"{number}*7", number * 7),
        (f"-{number} - 3", -number - 3),
        (f"What is {number} divided by 8?", Fraction(number, 8)),
    )
]


@hypothesis.given(
    st.lists(st.integers(0, 2 * len(SHORT) - 1), min_size=1, max_size=4),
    st.booleans(),
)
@hypothesis.settings(
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
def test_lost_and_doubled_lines_are_noticed(tmp_path, places, doubled):
    """In different places, that is: an answer and the next question lost at once are
    not, nor two answers about a question so short that it may be one."""
    places = sorted(set(places))
    hypothesis.assume(all(b - a > 2 for a, b in itertools.pairwise(places)))
    lines = [line for pair in SHORT for line in pair]
    for place in reversed(places):
        lines[place : place + 1] = [lines[place]] * 2 if doubled else []
    with pytest.raises(DataError, match=r"a line is missing|odd number"):
        read_mathematics(write(tmp_path / "m", b"\n".join(lines)))


@pytest.mark.parametrize("bad", [b"\xff", b"\0"])
def test_mathematics_pairs_that_are_no_text_are_skipped(tmp_path, caplog, bad):
    data = PAIRS + b"Add " + bad + b".\n4\n" + PAIRS + b"Add 2.\n" + bad + b"\n"
    path = write(tmp_path / "m", data)
    with pytest.raises(DataError, match=r"m, line 5: .* save the file as UTF-8"):
        read_mathematics(path)
    with caplog.at_level(logging.WARNING):
        rows = read_mathematics(path, bad_rows="skip")
    assert list(rows) == list(read_mathematics(write(tmp_path / "good", PAIRS))) * 2
    (warning,) = logged(caplog)
    assert "skipped 2 malformed lines and kept 4 rows; the first, line 5" in warning
    with pytest.raises(DataError, match="no valid row"):
        read_mathematics(write(path, bad + b"\n1\n"), bad_rows="skip")


def test_blank_lines_at_the_end_are_no_rows(tmp_path):
    path = write(tmp_path / "m", PAIRS + b"\n\r\n")
    assert len(read_mathematics(path)) == 2


def test_a_config_chooses_what_a_malformed_row_does(tmp_path):
    path = str(write(tmp_path / "t.tsv", b"q\t1\nq\n"))
    data = {"name": "tsv", "train_file": path, "eval_file": path}
    with pytest.raises(DataError, match=r"t\.tsv, line 2: 1 columns"):
        load_splits(DataConfig(**data))
    splits = load_splits(DataConfig(**data, bad_rows="skip"))
    assert (splits.train, list(splits.evaluation["eval"])) == ([GOOD], [GOOD])

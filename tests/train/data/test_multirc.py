"""MultiRC: counts, and a question that no truncation takes away."""

import json

import numpy as np
import pytest

from ntl_jax.tokenization import builtin_tokenizer
from train.config import DataConfig
from train.data import load_splits, tokenize_rows
from train.data.files import find_file
from train.data.official import read_multirc

PASSAGE = " Anna has 3 apples. She eats one.\n" + "They are sweet. " * 9
QUESTIONS = [
    ("How many are left? ", [(" two ", 1), ("three", 0), ("2", 1)]),
    ("Who has apples?", [("Bert", 0)]),
]


def record(labelled=True):
    questions = [
        {
            "question": question,
            "answers": [
                {"text": text} | ({"label": label} if labelled else {})
                for text, label in options
            ],
        }
        for question, options in QUESTIONS
    ]
    return json.dumps({"passage": {"text": PASSAGE, "questions": questions}, "idx": 0})


def write(folder, **splits):
    for split, text in splits.items():
        (folder / f"{split}.jsonl").write_text(text + "\n")
    return folder


def test_questions_come_first_and_right_answers_are_joined(tmp_path):
    path = write(tmp_path, train=record()) / "train.jsonl"
    assert read_multirc(path) == [
        {
            "question": "Question: How many are left?\n\n" + PASSAGE.strip(),
            "answer": "two | 2",
        },
        {"question": "Question: Who has apples?\n\n" + PASSAGE.strip(), "answer": ""},
    ]
    paper = read_multirc(path, paper_form=True)
    assert paper[0] == {
        "question": PASSAGE.strip() + "\n\nQuestion: How many are left?",
        "answer": "two | 2",
    }


def test_a_test_split_has_no_answers(tmp_path):
    path = write(tmp_path, test=record(labelled=False)) / "test.jsonl"
    assert [row["answer"] for row in read_multirc(path, labelled=False)] == ["", ""]


def test_truncation_never_takes_the_question(tmp_path):
    path = write(tmp_path, train=record()) / "train.jsonl"
    tokenizer = builtin_tokenizer()

    def seen(rows):
        dataset = tokenize_rows(
            rows, tokenizer, max_source_length=30, max_target_length=40
        )
        assert dataset.truncated_sources == 2
        batch = dataset.batch(np.array([0, 1]))
        return [tokenizer.decode(ids.tolist()) for ids in batch["input_ids"]]

    kept, lost = (seen(read_multirc(path, paper_form=form)) for form in (False, True))
    for row, (question, _) in enumerate(QUESTIONS):
        assert question.strip() in kept[row]
        assert question.strip() not in lost[row]


def test_splits(tmp_path):
    folder = write(tmp_path, train=record(), val=record())
    splits = load_splits(DataConfig(name="multirc", raw_dir=str(folder)))
    assert len(splits.train) == 2 and splits.evaluation.keys() == {"validation"}
    assert splits.train[0]["question"].startswith("Question: ")
    paper = load_splits(
        DataConfig(name="multirc", raw_dir=str(folder), paper_form=True)
    )
    assert paper.train[0]["question"].endswith("Question: How many are left?")


@pytest.mark.parametrize(
    ("split", "questions", "unanswered"),
    [("train", 5131, 23), ("val", 953, 3), ("test", 1820, 1820)],
)
def test_official_rows(data_dir, split, questions, unanswered):
    path = find_file(data_dir / "multirc", f"{split}.jsonl")
    rows = read_multirc(path, labelled=split != "test")
    assert len(rows) == questions
    assert sum(row["answer"] == "" for row in rows) == unanswered
    assert all(row["question"].startswith("Question: ") for row in rows)

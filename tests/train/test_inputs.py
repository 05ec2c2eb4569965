"""Answers that a number loss or a number metric could make nothing of."""

import json
import pathlib

import pytest

from tests.train.helpers import TINY, changed
from train.config import ConfigError, DataConfig
from train.inputs import load_inputs
from train.number_tokens import make_vocab


def rows(path: pathlib.Path, *answers: str) -> str:
    lines = [json.dumps({"question": "1 + 2", "answer": answer}) for answer in answers]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def config(**files: str):
    data = DataConfig(name="jsonl", batch_size=1, **files)
    return changed(TINY, data=data)


def test_training_answers_without_a_number_are_refused(tmp_path, caplog):
    words = config(train_file=rows(tmp_path / "train.jsonl", "Paris", "Rome"))
    inputs = load_inputs(words, words.model)
    with pytest.raises(ConfigError, match="first 2 training answers hold no number"):
        make_vocab(words, words.model, inputs)
    accepted = changed(words, allow_low_coverage=True)
    with caplog.at_level("INFO", logger="train"):
        assert len(make_vocab(accepted, words.model, inputs)) == 10
    assert caplog.messages == ["the first 2 training answers hold no digit"]
    cross_entropy = changed(words, loss=type(words.loss)(was=None))
    assert len(make_vocab(cross_entropy, words.model, inputs)) == 10


def test_answers_to_evaluate_without_a_number_are_counted(tmp_path, caplog):
    mixed = config(
        train_file=rows(tmp_path / "train.jsonl", "3"),
        eval_file=rows(tmp_path / "eval.jsonl", "3", "Paris", "4", "Rome"),
    )
    with caplog.at_level("WARNING", logger="train"):
        inputs = load_inputs(mixed, mixed.model)
    assert len(inputs.evaluation["eval"]) == 4, "text metrics are of all rows"
    assert "2 of 4 answers of the evaluation set 'eval'" in caplog.text
    assert "the first in row 2" in caplog.text


def test_answers_longer_than_what_is_generated_are_counted(tmp_path, caplog):
    digits = config(
        train_file=rows(tmp_path / "train.jsonl", "3"),
        eval_file=rows(tmp_path / "eval.jsonl", "1234", "123", "12345"),
    )
    with caplog.at_level("WARNING", logger="train"):
        load_inputs(changed(digits, evaluation__max_new_tokens=5), digits.model)
        assert "longer" not in caplog.text
        load_inputs(changed(digits, evaluation__max_new_tokens=3), digits.model)
    assert "2 of 3 answers of the evaluation set 'eval' are longer" in caplog.text
    assert "max-new-tokens 3, the longest 5" in caplog.text

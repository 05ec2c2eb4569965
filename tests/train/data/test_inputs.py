"""Answers that a number loss or a number metric could make nothing of."""

import dataclasses
import json
import pathlib

import pytest

from ntl_jax.numbers.place_tokens import NUMBER_TOKENS
from tests.train.helpers import TINY, changed
from train.config import ConfigError, DataConfig
from train.data.inputs import load_inputs, open_tokenizer
from train.data.number_tokens import make_vocab


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


def test_digits_that_are_cut_off_are_not_seen(tmp_path, caplog):
    """Of answers whose numbers stand at the end a short limit leaves words."""
    late = config(train_file=rows(tmp_path / "train.jsonl", "so it must be 7", "3"))
    with caplog.at_level("INFO", logger="train"):
        whole = changed(late, data__max_target_length=64)
        make_vocab(whole, whole.model, load_inputs(whole, whole.model))
    assert caplog.messages == ["100.0% of the digits in the answers are number tokens"]
    caplog.clear()
    cut = changed(late, data__max_target_length=3)
    with caplog.at_level("INFO", logger="train"):
        make_vocab(cut, cut.model, load_inputs(cut, cut.model))
    assert "50.0% before --data.max-target-length 3 cuts them" in caplog.text
    none = changed(late, data__max_target_length=1)
    inputs = load_inputs(none, none.model)
    with pytest.raises(ConfigError, match=r"0\.0% .* raise --data.max-target-length 1"):
        make_vocab(none, none.model, inputs)


def test_numbers_beyond_the_places_get_a_remedy_of_their_own(tmp_path):
    files = {"train_file": rows(tmp_path / "train.jsonl", "9" * 100)}
    model = dataclasses.replace(TINY.model, vocab_size=512 + NUMBER_TOKENS)
    places = changed(config(**files), number_tokens="places", model=model)
    inputs = load_inputs(places, model, open_tokenizer("builtin", True, "places"))
    with pytest.raises(ConfigError, match=r"from 10\^-12 to 10\^19 alone"):
        make_vocab(places, model, inputs)


def test_a_fraction_is_a_number_to_losses_as_to_metrics(tmp_path):
    halves = config(train_file=rows(tmp_path / "train.jsonl", "\u00bd", "\u00bd"))
    inputs = load_inputs(halves, halves.model)
    assert len(make_vocab(halves, halves.model, inputs)) == 10

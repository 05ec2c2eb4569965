"""Asking a trained run: its answer, its digit probabilities, its checkpoint."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import SafetensorError

from ntl_jax.generate import greedy
from train.checkpointing.rundir import read_config
from train.config import ConfigError
from train.evaluation.predict import (
    answer_report,
    export,
    load_run,
    predict,
)
from train.heads.lm import number_probabilities

QUESTION = "What is 3 plus 4?"


@pytest.fixture(scope="module")
def model(compared):
    return load_run(compared / "ce-0.3was")


def answer(model, question=QUESTION):
    ids = jnp.asarray([model.tokenizer.encode(question)], jnp.int32)
    tokens = greedy(model.model, model.params, ids, max_new_tokens=4)
    return ids, np.asarray(tokens)


def test_probabilities_sum_to_1_and_their_largest_is_the_greedy_digit(model):
    ids, tokens = answer(model)
    probabilities = number_probabilities(model, ids, jnp.asarray(tokens))
    ends = np.cumsum(tokens[0] == model.model.eos_token_id)
    sums = np.where(ends - (tokens[0] == model.model.eos_token_id), 0, 1)
    np.testing.assert_allclose(probabilities.sum(-1), sums, rtol=1e-5)
    rows = model.vocab.row[tokens[0]]
    assert (rows >= 0).any()
    np.testing.assert_array_equal(probabilities.argmax(-1)[rows >= 0], rows[rows >= 0])


def test_probabilities_depend_on_the_digits_before(model):
    ids, tokens = answer(model)
    other = tokens.copy()
    first = int(np.flatnonzero(model.vocab.row[tokens[0]] >= 0)[0])
    other[0, first] = next(t for t in model.vocab.token_ids if t != tokens[0, first])
    one, two = (
        number_probabilities(model, ids, jnp.asarray(t)) for t in (tokens, other)
    )
    np.testing.assert_array_equal(one[: first + 1], two[: first + 1])
    assert np.abs(one[first + 1] - two[first + 1]).max() > 1e-4


def test_the_report_has_a_row_for_each_digit(model):
    _, tokens = answer(model)
    text = model.tokenizer.decode(tokens[0].tolist())
    lines = answer_report(model, QUESTION).splitlines()
    assert lines[0] == text
    assert lines[1].split() == ["digit", "|", *"0123456789"]
    digits = [c for c in text if c.isdigit()]
    assert [line.split()[0] for line in lines[2:]] == digits
    for line in lines[2:]:
        cells = [float(cell) for cell in line.split("|")[1].split()]
        assert sum(cells) == pytest.approx(1.0, abs=0.006)  # ten roundings to 0.0005
        assert int(np.argmax(cells)) == int(line.split()[0])


def test_an_answer_without_digits_says_so(model):
    zero = jax.tree.map(jnp.zeros_like, model.params)
    silent = type(model)(**{**vars(model), "params": zero})
    assert answer_report(silent, QUESTION).endswith("(no digit in it)")


def test_a_run_trained_by_kernels_is_asked_on_any_machine(compared, tmp_path):
    config = read_config(compared / "ce-0.3was")
    config["resolved_model"]["attention"] = "triton"
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "checkpoints").symlink_to(compared / "ce-0.3was" / "checkpoints")
    assert load_run(tmp_path).model.attention == "auto"


def test_predict_asks_every_run_of_a_comparison(compared):
    text = predict(compared, QUESTION)
    assert [part.split(":")[0] for part in text.split("\n\n")] == ["ce", "ce-0.3was"]


def test_an_empty_question_and_several_runs_are_refused(compared, tmp_path):
    with pytest.raises(ConfigError, match="the question is empty"):
        predict(compared, "  ")
    with pytest.raises(ConfigError, match="several runs"):
        export(compared, tmp_path / "out")
    (tmp_path / "note").touch()
    with pytest.raises(ConfigError, match="is not empty"):
        export(compared / "ce", tmp_path)


def test_a_question_longer_than_any_in_training_is_refused(compared, model):
    with pytest.raises(ConfigError, match=rf"at most {model.max_source_length} "):
        predict(compared, QUESTION * 50)


def test_a_run_without_checkpoint_is_refused(tmp_path, compared):
    config = (compared / "ce" / "config.json").read_text()
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ConfigError, match="no finished checkpoint"):
        load_run(tmp_path)


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("I/O error: No space left on device (os error 28)", "make room"),
        ("I/O error: Read-only file system (os error 30)", "look at its permissions"),
        ("I/O error: No such file (os error 2)", "bring its folder back"),
        ("Error while serializing: something else", "look at its disk"),
    ],
)
def test_an_export_that_cannot_be_written_is_one_message(
    compared, tmp_path, monkeypatch, said, remedy
):
    def failing(*_):
        raise SafetensorError(said)

    monkeypatch.setattr("train.evaluation.predict.save_checkpoint", failing)
    message = rf"out cannot be written \({re.escape(said)}\): {remedy}, or name"
    with pytest.raises(ConfigError, match=message):
        export(compared / "ce", tmp_path / "out")

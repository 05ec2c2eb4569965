"""Evaluating a finished run: as in training, with beams, scored as in the paper."""

import dataclasses
import json

import chex
import jax
import numpy as np
import pytest

from ntl_jax.generate import generate
from ntl_jax.metrics import numeric_metrics
from tests.train.helpers import COMPARED as TRAINED
from tests.train.helpers import SET, answers
from train.__main__ import main
from train.checkpointing.rundir import read_train_config
from train.config import ConfigError
from train.data.inputs import load_inputs
from train.evaluation import evaluate_run
from train.evaluation.evaluate_run import evaluate
from train.evaluation.predict import load_run

RUN = "ce-0.3was"
MESH = ["--mesh.data", "-1", "--mesh.fsdp", "1", "--mesh.tensor", "1"]


def results(folder):
    return json.loads((folder / "evaluation.json").read_text())


def test_the_config_of_a_run_is_read_back(compared):
    config = read_train_config(compared / RUN)
    assert config == TRAINED
    assert read_train_config(compared / "ce").loss.was == 0.0


def test_fields_of_another_version_are_named(compared, tmp_path):
    content = json.loads((compared / RUN / "config.json").read_text())
    del content["evaluation"]["beams"]  # older: it keeps its default
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert read_train_config(tmp_path) == TRAINED
    content["data"]["colour"] = "red"
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=r"config\.json has colour"):
        read_train_config(tmp_path)


def test_evaluating_a_run_repeats_its_results(compared, tmp_path, capsys):
    arguments = ["--sets", SET, "--out", str(tmp_path / "out"), *MESH]
    assert main(["evaluate", str(compared / RUN), *arguments]) == 0
    assert "always the median" in capsys.readouterr().out
    old, new = results(compared / RUN), results(tmp_path / "out")
    assert list(new) == [SET] and list(old) != [SET]
    assert answers(tmp_path / "out") == answers(compared / RUN)
    metrics = [result[SET]["metrics"] for result in (old, new)]
    chex.assert_trees_all_close(*metrics, rtol=1e-5)


def test_a_run_trained_by_kernels_is_evaluated_here(
    compared, tmp_path, monkeypatch, caplog
):
    config = json.loads((compared / RUN / "config.json").read_text())
    config["resolved_model"]["attention"] = "triton"
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "checkpoints").symlink_to(compared / RUN / "checkpoints")
    seen = []
    monkeypatch.setattr(evaluate_run, "_evaluate", lambda *given: seen.append(given[1]))
    monkeypatch.setattr(evaluate_run, "report", lambda *given: "")
    # The command line logs to a stream of its own.
    monkeypatch.setattr(evaluate_run.logger, "propagate", True)
    monkeypatch.setattr(evaluate_run.logger, "handlers", [])
    caplog.set_level("INFO", logger="train")
    evaluate(tmp_path, MESH)
    assert seen[0].model == dataclasses.replace(TRAINED.model, attention="xla")
    assert "attention='triton' runs on NVIDIA GPUs" in caplog.text
    assert "Taking 'xla'." in caplog.text


def answers_of_generate(run, **options):
    """The texts that `generate` gives to 16 questions."""
    trained = load_run(run)
    inputs = load_inputs(TRAINED, TRAINED.model)
    batch = inputs.evaluation[SET].batch(np.arange(16))
    if "numbers" in options:
        options["vocab"] = trained.vocab
    tokens = generate(
        trained.model,
        trained.params,
        jax.numpy.asarray(batch["input_ids"]),
        attention_mask=jax.numpy.asarray(batch["attention_mask"]),
        max_new_tokens=TRAINED.evaluation.max_new_tokens,
        **options,
    ).tokens
    return [trained.tokenizer.decode(row.tolist()) for row in np.asarray(tokens)]


@pytest.fixture(scope="module")
def searched(compared, tmp_path_factory):
    """The answers of four beams to a few rows, counted as the paper counts."""
    folder = tmp_path_factory.mktemp("searched") / "beams"
    arguments = ["--evaluation.beams", "4", "--evaluation.paper-compat"]
    arguments += ["--sets", SET, "--eval-size", "16", "--out", str(folder), *MESH]
    evaluate(compared / RUN, arguments)
    return folder


def test_beams_are_those_of_generate(compared, searched):
    found = answers(searched)
    assert found == answers_of_generate(compared / RUN, num_beams=4)
    assert found != answers(compared / RUN)[:16], "four beams find what greed finds"


def test_numbers_may_be_chosen_by_their_distribution(compared, tmp_path):
    arguments = ["--evaluation.numbers", "expected", "--out", str(tmp_path / "mean")]
    evaluate(compared / RUN, [*arguments, "--sets", SET, "--eval-size", "16", *MESH])
    found = answers(tmp_path / "mean")
    assert found == answers_of_generate(compared / RUN, numbers="expected")
    assert found != answers(compared / RUN)[:16], "the means are the most likely"


def test_the_paper_counts_otherwise(searched):
    result = results(searched)[SET]
    assert result["paper_compat"] is True
    lines = (searched / "predictions.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    texts = [[row[key] for row in rows] for key in ("prediction", "answer")]
    expected = numeric_metrics(*texts, paper_compat=True)
    assert result["metrics"] | expected == result["metrics"]
    # Padding counts as right: ten tokens beyond every answer.
    short = result["metrics"]["token_accuracy"]
    assert short > 0.5, "a dozen padded columns of right tokens"


def test_what_cannot_be_evaluated_is_refused(compared, searched):
    run = compared / RUN
    refused = {
        "no evaluation set nowhere": ["--sets", "nowhere", *MESH],
        "is not empty": ["--out", str(searched), *MESH],
        "for greedy decoding": [
            *("--evaluation.beams", "4", "--evaluation.numbers", "median", *MESH)
        ],
        "--eval-file is for runs of jsonl or tsv, not of arithmetic: leave it out": [
            *("--eval-file", "rows.jsonl", *MESH)
        ],
        "does not fill": ["--mesh.data", "3", "--mesh.fsdp", "1", *MESH[4:]],
    }
    for message, arguments in refused.items():
        with pytest.raises(ConfigError, match=message):
            evaluate(run, arguments)
    assert not list(run.glob("evaluation-*")), "nothing was left behind"

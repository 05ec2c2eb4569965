"""An evaluation's figures equal a direct computation; its files hold all of it."""

import dataclasses
import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax.generate import greedy
from ntl_jax.losses import stats_from_logits
from ntl_jax.metrics import numeric_metrics
from tests.train.helpers import COMPARED, answer_logits, tiny_task
from train.data.inputs import load_inputs
from train.data.transforms import Ragged
from train.evaluation.evaluator import Evaluator
from train.evaluation.predict import load_run
from train.heads.lm import evaluation_objective
from train.reporting.tables import comparison_table
from train.state import init_state

RUN = "ce-0.3was"
SET = "interpolation"


@pytest.fixture(scope="module")
def inputs():
    return load_inputs(COMPARED, COMPARED.model)


@pytest.fixture(scope="module")
def written(compared):
    return json.loads((compared / RUN / "evaluation.json").read_text())


@pytest.fixture(scope="module")
def predictions(compared):
    text = (compared / RUN / "predictions.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def whole(compared, inputs):
    """The evaluation set as one batch on one device: losses and greedy tokens."""
    task = tiny_task(COMPARED)
    params = load_run(compared / RUN).params
    dataset = inputs.evaluation[SET]
    batch = dataset.batch(np.arange(len(dataset)))

    def losses(rows: slice) -> dict[str, float]:
        part = {name: jnp.asarray(value[rows]) for name, value in batch.items()}
        objective = evaluation_objective(task.objective)

        @jax.jit
        def terms_of(part):
            logits, labels = answer_logits(task.model, params, part)
            stats = stats_from_logits(logits, labels, task.vocab)
            return objective(stats, labels, task.vocab)

        terms = terms_of(part)
        means = {name: float(term.mean) for name, term in terms.items()}
        return means | {"loss": float(objective.total(terms))}

    tokens = greedy(
        task.model,
        params,
        batch["input_ids"],
        attention_mask=batch["attention_mask"],
        max_new_tokens=COMPARED.evaluation.max_new_tokens,
    )
    return losses, np.asarray(tokens)


def test_the_last_batch_is_ragged(inputs):
    rows = len(inputs.evaluation[SET])
    assert 0 < rows % COMPARED.evaluation.batch_size < rows


def test_losses_equal_those_of_one_batch_of_all_rows(whole, written):
    expected = whole[0](slice(None))
    assert set(expected) == {"loss", "ce", "was"}
    found = {name: written[SET]["metrics"][name] for name in expected}
    chex.assert_trees_all_close(found, expected, rtol=1e-5)


def test_a_mean_of_batch_means_would_be_seen(whole, written):
    size = COMPARED.evaluation.batch_size
    parts = [whole[0](slice(0, size)), whole[0](slice(size, None))]
    naive = np.mean([part["ce"] for part in parts])
    assert abs(naive / written[SET]["metrics"]["ce"] - 1) > 1e-3


def test_predictions_are_the_greedy_answers_row_by_row(whole, predictions, inputs):
    rows = [row for row in predictions if row["set"] == SET]
    texts = [inputs.tokenizer.decode(row.tolist()) for row in whole[1]]
    assert [row["prediction"] for row in rows] == texts
    asked = [(row["question"], row["answer"]) for row in rows]
    expected = inputs.splits.evaluation[SET]
    assert asked == [(row["question"], row["answer"]) for row in expected]
    assert len(predictions) == sum(map(len, inputs.evaluation.values()))


def test_number_metrics_are_those_of_the_written_predictions(predictions, written):
    assert {row["set"] for row in predictions} == set(written)
    for name, result in written.items():
        rows = [row for row in predictions if row["set"] == name]
        expected = numeric_metrics(
            [row["prediction"] for row in rows], [row["answer"] for row in rows]
        )
        assert result["metrics"] | expected == result["metrics"]


def test_number_token_scores_count_every_digit(whole, written, inputs):
    for name, result in written.items():
        numbers = result["number_tokens"]
        text = "".join(row["answer"] for row in inputs.splits.evaluation[name])
        values = np.asarray(result["number_values"])
        expected = [text.count(f"{value:g}") for value in values]
        np.testing.assert_array_equal(numbers["counts"], expected)
        sums = np.sum(numbers["mean_by_label"], axis=1)
        np.testing.assert_allclose(sums, np.array(expected) > 0, atol=1e-5)
        metrics = result["metrics"]
        # The number token loss is the expected distance, computed elsewhere.
        assert metrics["number_token_distance"] == pytest.approx(
            metrics["was"], rel=1e-5
        )
        assert metrics["number_token_accuracy"] == numbers["accuracy"]


def test_token_and_sequence_accuracy_are_those_of_the_ids(whole, written, inputs):
    metrics = written[SET]["metrics"]
    labels = [row["answer"] for row in inputs.splits.evaluation[SET]]
    labels = [inputs.tokenizer.encode(answer) for answer in labels]
    found = [row.tolist() for row in whole[1]]
    hits = [
        sum(a == b for a, b in zip(row, label, strict=False))
        for row, label in zip(found, labels, strict=True)
    ]
    assert metrics["token_accuracy"] == sum(hits) / sum(map(len, labels))
    assert "bleu" not in metrics, "no answer holds a word"


def test_a_number_loss_of_answers_without_a_number_is_not_defined(inputs):
    numbers, task = inputs.evaluation[SET], tiny_task(COMPARED)
    ends = np.full(len(numbers), task.model.eos_token_id, np.int32)
    empty = Ragged(ends, np.arange(len(ends) + 1))
    words = dataclasses.replace(numbers, targets=empty)
    rows = [row | {"answer": ""} for row in inputs.splits.evaluation[SET]]
    evaluator = Evaluator(task, inputs.tokenizer, {SET: words}, {SET: rows})
    result = evaluator(init_state(task, None).params)[SET]
    assert result.metrics["was"] is None
    assert result.metrics["loss"] == pytest.approx(result.metrics["ce"])
    evaluated = {"metrics": result.metrics, "number_tokens": result.numbers}
    header, _, row = comparison_table({RUN: {SET: evaluated}}).splitlines()
    shown = dict(zip(header.split("|"), row.split("|"), strict=True))
    found = {name.strip(): cell.strip() for name, cell in shown.items()}
    assert found["NTL-WAS"] == "-" and float(found["CE"]) > 0


def test_an_empty_set_is_refused(inputs):
    none = Ragged(np.zeros(0, np.int32), np.zeros(1, np.int64))
    empty = dataclasses.replace(inputs.train, sources=none, targets=none)
    evaluator = Evaluator(
        tiny_task(COMPARED), inputs.tokenizer, {SET: empty}, {SET: []}
    )
    with pytest.raises(ValueError, match="an evaluation set is empty"):
        evaluator({})

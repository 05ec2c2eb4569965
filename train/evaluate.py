"""Evaluation: teacher-forced losses, greedy answers, metrics of their numbers."""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ntl_jax.generate import greedy
from ntl_jax.metrics import numeric_metrics
from ntl_jax.sharding import batch_sharding
from ntl_jax.tokenization.hugging_face import Tokenizer
from train.data import Row, TokenizedDataset, eval_batches
from train.state import Params, Task
from train.step import EvalSums, eval_step, evaluation_objective

PREDICTIONS_FILE = "predictions.jsonl"
RESULTS_FILE = "evaluation.json"


@dataclasses.dataclass(frozen=True)
class SetResult:
    """What one evaluation set gave."""

    metrics: dict[str, Any]
    predictions: list[str]
    digits: np.ndarray
    """f64 [K, K]: mean predicted probability of number token j where the label is k."""
    counts: np.ndarray
    """f64 [K]: labels of each number token."""
    values: np.ndarray
    """f32 [K]: what each number token is worth."""


class Evaluator:
    """Evaluates parameters on every evaluation set; compiles once a shape."""

    def __init__(
        self,
        task: Task,
        tokenizer: Tokenizer,
        datasets: Mapping[str, TokenizedDataset],
        rows: Mapping[str, Sequence[Row]],
    ) -> None:
        self._rows = rows
        self._task = task
        self._tokenizer = tokenizer
        self._datasets = datasets
        self._eval_step = jax.jit(functools.partial(eval_step, task=task))

    def __call__(self, params: Params) -> dict[str, SetResult]:
        """Losses, answers and metrics by evaluation set."""
        return {
            name: self._evaluate(params, dataset, self._rows[name])
            for name, dataset in self._datasets.items()
        }

    def _evaluate(
        self, params: Params, dataset: TokenizedDataset, rows: Sequence[Row]
    ) -> SetResult:
        config = self._task.config.evaluation
        sharding = batch_sharding(self._task.mesh)
        sums: EvalSums | None = None
        predictions: list[str] = []
        for host_batch in eval_batches(dataset, batch_size=config.batch_size):
            batch = jax.device_put(host_batch, sharding)
            step_sums = self._eval_step(params, batch)
            sums = step_sums if sums is None else sums + step_sums
            tokens = greedy(
                self._task.model,
                params,
                batch.get("prompt_ids", batch["input_ids"]),
                attention_mask=batch.get("prompt_mask", batch["attention_mask"]),
                max_new_tokens=config.max_new_tokens,
            )
            real = int(host_batch["weights"].sum())
            predictions += [
                self._tokenizer.decode(row.tolist())
                for row in np.asarray(tokens)[:real]
            ]
        if sums is None:
            raise ValueError("an evaluation set is empty: give it at least one row.")
        return self._result(jax.device_get(sums), rows, predictions)

    def _result(
        self, sums: EvalSums, rows: Sequence[Row], predictions: list[str]
    ) -> SetResult:
        objective = evaluation_objective(self._task.objective)
        metrics: dict[str, Any] = {"loss": float(objective.total(sums.terms))}
        metrics |= {name: float(t.mean) for name, t in sums.terms.items()}
        answers = [row["answer"] for row in rows]
        metrics |= numeric_metrics(predictions, answers)
        counts = np.asarray(sums.counts, np.float64)
        digits = np.asarray(sums.digits, np.float64)
        digits /= np.maximum(counts, 1.0)[:, None]
        return SetResult(metrics, predictions, digits, counts, self._task.vocab.values)


def write_predictions(
    run_dir: pathlib.Path,
    results: Mapping[str, SetResult],
    rows: Mapping[str, Sequence[Row]],
) -> None:
    """Writes predictions.jsonl (a row an answer) and evaluation.json (the metrics)."""
    with (run_dir / PREDICTIONS_FILE).open("w") as file:
        for name, result in results.items():
            for row, prediction in zip(rows[name], result.predictions, strict=True):
                line = {
                    "set": name,
                    "question": row["question"],
                    "answer": row["answer"],
                    "prediction": prediction,
                }
                file.write(json.dumps(line) + "\n")
    summary = {
        name: {
            "metrics": result.metrics,
            "digit_distribution": result.digits.round(6).tolist(),
            "digit_counts": result.counts.tolist(),
            "number_values": result.values.tolist(),
        }
        for name, result in results.items()
    }
    (run_dir / RESULTS_FILE).write_text(json.dumps(summary, indent=1) + "\n")

"""Evaluation: teacher-forced losses, generated answers, metrics of both."""

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntl_jax.generate import generate
from ntl_jax.metrics import NumberTokenScores, number_token_scores
from ntl_jax.sharding.mesh import batch_sharding
from ntl_jax.tokenization import Tokenizer, XvalTokenizer
from train.checkpointing.storage import AnyPath
from train.data import Row, TokenizedDataset, eval_batches
from train.evaluation.scores import Answers, answer_metrics, answer_tables, plain
from train.heads.number_answers import NumberModel, total_loss
from train.heads.regression import written
from train.multihost.hosts import gathered, global_batch, made_progress
from train.reporting.metrics_writer import replace_text
from train.state import Params, Task
from train.step import (
    Batch,
    EvalOutputs,
    compiler_options,
    eval_step,
    evaluation_objective,
)

PREDICTIONS_FILE = "predictions.jsonl"
RESULTS_FILE = "evaluation.json"


@dataclasses.dataclass(frozen=True)
class SetResult:
    """What one evaluation set gave."""

    metrics: dict[str, Any]
    predictions: list[str]
    numbers: NumberTokenScores | None
    """How the model spread its probability over the K number tokens; None without a
    number in the answers, and beyond `MAX_DISTRIBUTION` tokens."""
    values: np.ndarray
    """f32 [K]: what each number token is worth."""


class Evaluator:
    """Evaluates parameters on every evaluation set; compiles once a shape.

    Args:
        task: model, losses and mesh.
        tokenizer: what the rows were read with.
        datasets: the rows of every set as ids.
        rows: the same as text.
    """

    def __init__(
        self,
        task: Task,
        tokenizer: Tokenizer,
        datasets: Mapping[str, TokenizedDataset],
        rows: Mapping[str, Sequence[Row]],
    ) -> None:
        self._rows = rows
        self._task = task
        is_xval = isinstance(tokenizer, XvalTokenizer)
        self._tokenizer = tokenizer.base if is_xval else tokenizer  # of answers
        self._datasets = datasets
        self._eval_step = jax.jit(
            functools.partial(eval_step, task=task),
            compiler_options=compiler_options(task),
        )

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
        collected = _Collected(self._task.vocab.values)
        tokens: list[list[int]] = []
        for host_batch in eval_batches(dataset, batch_size=config.batch_size):
            batch = global_batch(host_batch, sharding, config.batch_size)
            outputs = gathered(self._eval_step(params, batch))
            collected.add(outputs)
            real = int(host_batch["weights"].sum())
            tokens += self._answer(params, batch, outputs)[:real]
            made_progress()
        if not tokens:
            raise ValueError("an evaluation set is empty: give it at least one row.")
        labels = [dataset.targets[row].tolist() for row in range(len(dataset))]
        predictions = [self._tokenizer.decode(row) for row in tokens]
        metrics = self._losses(collected) | answer_metrics(
            Answers(rows, predictions, tokens, labels), config
        )
        numbers = collected.numbers()
        if numbers is not None:
            metrics |= {name: getattr(numbers, field) for name, field in _SURE.items()}
        return SetResult(metrics, predictions, numbers, self._task.vocab.values)

    def _answer(
        self, params: Params, batch: Batch, outputs: EvalOutputs
    ) -> list[list[int]]:
        """The ids of every row's answer, without what follows end-of-sequence."""
        task, config = self._task, self._task.config.evaluation
        if outputs.predictions is not None:
            texts = written(np.asarray(outputs.predictions), task.scale)
            return self._tokenizer.encode_batch(texts)
        assert not isinstance(task.model, NumberModel)
        generated = generate(
            task.model,
            params,
            batch.get("prompt_ids", batch["input_ids"]),
            attention_mask=batch.get("prompt_mask", batch["attention_mask"]),
            max_new_tokens=config.max_new_tokens,
            num_beams=config.beams,
            numbers=config.numbers,
            vocab=None if config.numbers == "argmax" else task.vocab,
        )
        end = task.model.eos_token_id
        rows = []
        for row in gathered(generated.tokens).tolist():
            rows.append(row[: row.index(end) + 1] if end in row else row)
        return rows

    def _losses(self, collected: "_Collected") -> dict[str, float | None]:
        """The objective and its terms, None for a term that nothing counts in."""
        terms = jax.device_get(collected.terms)
        if isinstance(self._task.model, NumberModel):
            losses = {"loss": float(total_loss(terms))}
        else:
            objective = evaluation_objective(self._task.objective)
            losses = {"loss": float(objective.total(terms))}
        return losses | {
            name: float(term.mean) if term.count > 0 else None
            for name, term in terms.items()
        }


_SURE = {
    "number_token_accuracy": "accuracy",
    "number_token_log_q": "mean_log_q",
    "number_token_entropy": "entropy",
    "number_token_calibration_error": "calibration_error",
    "number_token_distance": "expected_distance",
}
"""Teacher-forced scores of number tokens: their names, and in NumberTokenScores."""


class _Collected:
    """Adds up the losses of batches, and keeps the logits of number tokens."""

    def __init__(self, values: np.ndarray) -> None:
        self.terms: dict[str, Any] = {}
        self._values = values
        self._logits: list[np.ndarray] = []
        self._rows: list[np.ndarray] = []

    def add(self, outputs: EvalOutputs) -> None:
        terms = outputs.terms
        self.terms = jax.tree.map(jnp.add, self.terms, terms) if self.terms else terms
        rows = np.asarray(outputs.number_rows)
        counted = rows >= 0
        self._rows.append(rows[counted])
        self._logits.append(np.asarray(outputs.number_logits)[counted])

    def numbers(self) -> NumberTokenScores | None:
        rows, logits = np.concatenate(self._rows), np.concatenate(self._logits)
        if not rows.size or not logits.size:
            return None
        return number_token_scores(logits, rows, values=self._values)


def write_predictions(
    run_dir: AnyPath,
    results: Mapping[str, SetResult],
    rows: Mapping[str, Sequence[Row]],
    *,
    paper_compat: bool = False,
) -> None:
    """Writes predictions.jsonl (a row an answer) and evaluation.json.

    The latter holds by set: ``metrics``, one number each; the tables of
    `answer_tables`; ``number_tokens``, distributions over number tokens by label; and
    ``number_values``, what these are worth.
    """
    lines = [
        {
            "set": name,
            "question": row["question"],
            "answer": row["answer"],
            "prediction": prediction,
        }
        for name, result in results.items()
        for row, prediction in zip(rows[name], result.predictions, strict=True)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    replace_text(run_dir / PREDICTIONS_FILE, text)
    summary = {}
    for name, result in results.items():
        summary[name] = {
            "paper_compat": paper_compat,
            "metrics": result.metrics,
            **answer_tables(rows[name], result.predictions, paper_compat=paper_compat),
            "number_tokens": result.numbers and plain(result.numbers),
            "number_values": result.values.tolist(),
        }
    replace_text(run_dir / RESULTS_FILE, json.dumps(summary, indent=1) + "\n")

"""Evaluations of one run or several as Markdown tables."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ntl_jax.metrics import Comparison, compare_runs, penalised_errors, read_pairs
from train.data import Row
from train.evaluation.scores import numbered

Evaluation = Mapping[str, Mapping[str, Any]]
"""evaluation.json: the metrics and tables of each set."""

COLUMNS = {
    "number_accuracy": "accuracy",
    "mae": "MAE",
    "rmse": "RMSE",
    "median_ae": "median AE",
    "r2": "R2",
    "log_mae": "log10 MAE",
    "log_r2": "log10 R2",
    "pearson": "Pearson",
    "spearman": "Spearman",
    "unparsable_rate": "unparsable",
    "mae_penalised": "MAE, penalised",
    "log_mae_penalised": "log10 MAE, penalised",
    "ce": "CE",
    "was": "NTL-WAS",
}
"""The main table: metric names and their headings."""

MORE_COLUMNS = {
    "number_accuracy_1e-5": "within 0.001%",
    "number_accuracy_1e-2": "within 1%",
    "number_accuracy_1e-1": "within 10%",
    "rounded_accuracy": "to two decimals",
    "mape": "MAPE",
    "mape_median": "median APE",
    "sequence_accuracy": "whole answer",
    "token_accuracy": "tokens",
    "bleu": "BLEU",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
    "number_token_accuracy": "number tokens",
    "number_token_entropy": "their entropy",
    "number_token_calibration_error": "calibration error",
}
"""The second table."""

BASELINES = ("mean", "median", "mode")
WITH_INTERVAL = ("number_accuracy", "mae", "rmse", "median_ae", "log_mae")

DIFFERENCES = {
    "number_accuracy": "accuracy",
    "mae_penalised": "MAE, penalised",
    "log_mae_penalised": "log10 MAE, penalised",
    "unparsable_rate": "unparsable",
}
"""Scores whose differences between two runs are tested, and their headings."""


def comparison_table(evaluations: Mapping[str, Evaluation]) -> str:
    """The main table: one row per evaluation set and run.

    Accuracies and errors have 95% intervals. The last three rows of a set are the
    scores of always answering the mean, the median or the most frequent answer.

    Args:
        evaluations: by run, of the same sets.
    """
    rows = [["set", "trained with", "n", *COLUMNS.values()]]
    for name in next(iter(evaluations.values())):
        for run, evaluation in evaluations.items():
            result = evaluation[name]
            cells = [_with_interval(result, column) for column in COLUMNS]
            rows.append([name, run, _count(result), *cells])
        result = next(iter(evaluations.values()))[name]
        for kind in BASELINES if "baselines" in result else ():
            answer, scores = (
                result["baselines"][kind][k] for k in ("answer", "scores")
            )
            cells = [_cell(scores.get(column)) for column in COLUMNS]
            label = f"always the {kind}, {answer:.4g}"
            rows.append([name, label, _count(result), *cells])
    return markdown_table(rows)


def more_scores_table(evaluations: Mapping[str, Evaluation]) -> str:
    """The other scores, without columns that no set has."""
    sets = next(iter(evaluations.values()))
    present = [
        column
        for column in MORE_COLUMNS
        if any(
            e[name]["metrics"].get(column) is not None
            for e in evaluations.values()
            for name in sets
        )
    ]
    rows = [["set", "trained with", *(MORE_COLUMNS[column] for column in present)]]
    for name in sets:
        for run, evaluation in evaluations.items():
            metrics = evaluation[name]["metrics"]
            rows.append([name, run, *(_cell(metrics.get(c)) for c in present)])
    return markdown_table(rows)


def paired_table(
    answers: Mapping[str, Mapping[str, Sequence[Row]]],
    *,
    paper_compat: bool = False,
) -> str:
    """Differences of every run from the first, tested over paired answers.

    Args:
        answers: by run, then by set, the rows of predictions.jsonl.
        paper_compat: see `paired_comparisons`.

    Returns:
        The table; empty for one run, or if no answer holds a number.

    Raises:
        ValueError: see `paired_comparisons`.
    """
    first, *others = answers
    head = ["set", "run", "minus", "score", "difference", "95% interval", "p"]
    rows = [head]
    for name in answers[first]:
        for other in others:
            compared = paired_comparisons(
                answers[first][name],
                answers[other][name],
                paper_compat=paper_compat,
            )
            for score, result in compared.items():
                interval = f"{result.low:+.3g} to {result.high:+.3g}"
                difference = f"{result.difference:+.4g}"
                p = f"{result.p_value:.2g}"
                heading = DIFFERENCES[score]
                rows.append([name, other, first, heading, difference, interval, p])
    return markdown_table(rows) if len(rows) > 1 else ""


def paired_comparisons(
    a: Sequence[Row],
    b: Sequence[Row],
    *,
    paper_compat: bool = False,
) -> dict[str, Comparison]:
    """Run b minus run a on the same questions, in every score of `DIFFERENCES`.

    In errors, a prediction without a number counts as the farthest right answer, so
    both runs are compared on all questions.

    Args:
        a: rows of predictions.jsonl of the first run, for one set.
        b: the same for the second run.
        paper_compat: parses and compares numbers as the paper's code does.

    Returns:
        Comparisons by score; empty if no answer holds a number.

    Raises:
        ValueError: the runs have other questions or answers.
    """
    questions = [[(row["question"], row["answer"]) for row in run] for run in (a, b)]
    if questions[0] != questions[1]:
        raise ValueError(
            f"{len(a)} and {len(b)} answers to different questions: evaluate both runs "
            "on the same rows."
        )
    kept = numbered(a, paper_compat=paper_compat)
    if not kept:
        return {}
    references = [a[place]["answer"] for place in kept]
    scores = []
    for run in (a, b):
        texts = [run[place]["prediction"] for place in kept]
        pairs = read_pairs(texts, references, paper_compat=paper_compat)
        right = pairs.within(1e-5, 1e-8) if paper_compat else pairs.exact
        error, log_error = map(np.abs, penalised_errors(pairs))
        values = (right, error, log_error, ~pairs.parsed)
        scores.append(dict(zip(DIFFERENCES, values, strict=True)))
    return {
        name: compare_runs(scores[0][name].astype(float), scores[1][name].astype(float))
        for name in DIFFERENCES
    }


def error_rates_table(evaluations: Mapping[str, Evaluation]) -> str:
    """Rates of exact, too large and too small answers, by kind of label."""
    shares = ("exact", "over", "under", "unparsable")
    rows = [["set", "trained with", "labels", "n", *shares]]
    for name, run, result in _results(evaluations, "error_rates"):
        for kind, rates in result["error_rates"].items():
            cells = [_interval(rates[share]) for share in shares]
            rows.append([name, run, kind.replace("_", " "), str(rates["n"]), *cells])
    return markdown_table(rows) if len(rows) > 1 else ""


def digit_accuracy_table(evaluations: Mapping[str, Evaluation]) -> str:
    """Accuracy of digits at each place, of value 10^place."""
    rows = [["set", "trained with", "place", "n", "accuracy"]]
    for name, run, result in _results(evaluations, "digit_accuracy"):
        for place, score in result["digit_accuracy"].items():
            cells = [f"10^{place}", str(score["n"]), _interval(score["accuracy"])]
            rows.append([name, run, *cells])
    return markdown_table(rows) if len(rows) > 1 else ""


def cells_table(evaluations: Mapping[str, Evaluation]) -> str:
    """Scores by the lengths of both operands; empty if no set has such cells."""
    names = {
        "n": "n",
        "number_accuracy": "accuracy",
        "unparsable_rate": "unparsable",
        "mape": "MAPE",
        "mape_median": "median APE",
        "mape_penalised": "MAPE, penalised",
    }
    rows = [["set", "trained with", "digits", *names.values()]]
    for name, run, result in _results(evaluations, "cells"):
        for cell, scores in result["cells"].items():
            rows.append([name, run, cell, *(_cell(scores[key]) for key in names)])
    return markdown_table(rows) if len(rows) > 1 else ""


def markdown_table(rows: list[list[str]]) -> str:
    """A header and rows of text as an aligned Markdown table."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def _results(evaluations: Mapping[str, Evaluation], table: str):
    """(set, run, result), set by set, of results that hold a table."""
    for name in next(iter(evaluations.values())):
        for run, evaluation in evaluations.items():
            if evaluation[name].get(table):
                yield name, run, evaluation[name]


def _count(result: Mapping[str, Any]) -> str:
    return _cell(result["metrics"].get("n"))


def _with_interval(result: Mapping[str, Any], column: str) -> str:
    bounds = (
        result.get("intervals", {}).get(column) if column in WITH_INTERVAL else None
    )
    cell = _cell(result["metrics"].get(column))
    return cell if bounds is None else f"{cell} ({bounds[0]:.3g} to {bounds[1]:.3g})"


def _interval(interval: Mapping[str, float] | None) -> str:
    if interval is None:
        return "-"
    value, low, high = (interval[key] for key in ("value", "low", "high"))
    return f"{value:.4g} ({low:.3g} to {high:.3g})"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.4g}"

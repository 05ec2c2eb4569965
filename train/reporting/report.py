"""Compares finished runs in tables and figures."""

import importlib.util
import json
from collections.abc import Mapping, Sequence
from typing import Any

from train.checkpointing.storage import AnyPath
from train.config import ConfigError
from train.evaluation.evaluator import PREDICTIONS_FILE, RESULTS_FILE
from train.reporting.figures import comparison_figure, error_figure
from train.reporting.metrics_writer import replace_text
from train.reporting.tables import (
    Evaluation,
    cells_table,
    comparison_table,
    digit_accuracy_table,
    error_rates_table,
    more_scores_table,
    paired_table,
)

TABLE_FILE = "comparison.md"
FIGURE_FILE = "comparison.png"
ERROR_FILE = "errors.png"

_TABLES = ("intervals", "baselines", "error_rates", "digit_accuracy")
_TABLES += ("error_histograms", "cells", "number_tokens")


def read_evaluation(run_dir: AnyPath) -> Evaluation:
    """Reads the evaluation.json of a finished run.

    Raises:
        ConfigError: the run has not been evaluated, was evaluated by an older version,
            or the file is damaged.
    """
    path = run_dir / RESULTS_FILE
    if not path.exists():
        inside = sorted(run_dir.glob(f"*/{RESULTS_FILE}"))
        remedy = "let the run finish first"
        if inside:
            runs = ", ".join(str(found.parent) for found in inside)
            remedy = f"name the runs in it, {runs}"
        raise ConfigError(f"{run_dir} has no {RESULTS_FILE}: {remedy}.")
    try:
        evaluation = json.loads(path.read_text())
    except ValueError as error:  # not JSON, or not UTF-8
        raise ConfigError(f"{path} is damaged ({error}): {_remedy(run_dir)}") from error
    if not isinstance(evaluation, dict):
        raise ConfigError(f"{path} holds no JSON object: {_remedy(run_dir)}")
    for name, result in evaluation.items():
        if isinstance(result, dict) and "paper_compat" not in result:
            raise ConfigError(
                f"{path} was written by an older version: {_remedy(run_dir)}"
            )
        if not _is_result(result):
            raise ConfigError(
                f"{path} holds no results of the set {name!r}: {_remedy(run_dir)}"
            )
    return evaluation


def _is_result(result: Any) -> bool:
    """Whether JSON has the types that `write_predictions` writes for a set."""
    if not isinstance(result, dict):
        return False
    metrics = result.get("metrics")
    return (
        isinstance(result["paper_compat"], bool)
        and isinstance(metrics, dict)
        and all(isinstance(value, int | float | None) for value in metrics.values())
        and all(isinstance(result.get(name), dict | None) for name in _TABLES)
        and isinstance(result.get("number_values"), list)
    )


def _remedy(run_dir: AnyPath) -> str:
    return (
        f"evaluate the run with `python -m train evaluate {run_dir}`, and name the "
        "folder that it writes."
    )


def read_predictions(
    run_dir: AnyPath, sets: Sequence[str]
) -> dict[str, list[dict[str, str]]]:
    """The rows of predictions.jsonl by set.

    Raises:
        ConfigError: the file is missing, or a line of it is damaged.
    """
    path = run_dir / PREDICTIONS_FILE
    if not path.exists():
        raise ConfigError(f"{run_dir} has no {PREDICTIONS_FILE}: {_remedy(run_dir)}")
    rows: dict[str, list[dict[str, str]]] = {name: [] for name in sets}
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            row = _answer(line)
            rows[row["set"]].append(row)
        except (ValueError, KeyError) as error:
            raise ConfigError(
                f"{path}, line {number} is damaged ({error}): {_remedy(run_dir)}"
            ) from error
    return rows


def _answer(line: bytes) -> dict[str, str]:
    """Parses a row of predictions.jsonl; raises ValueError if it is malformed."""
    row = json.loads(line)
    names = ("set", "question", "answer", "prediction")
    if not isinstance(row, dict) or not all(
        isinstance(row.get(name), str) for name in names
    ):
        raise ValueError(f"not an object with the texts {', '.join(names)}")
    return row


def report(run_dirs: Mapping[str, AnyPath], folder: AnyPath) -> str:
    """Compares finished runs: comparison.md, comparison.png, errors.png in `folder`.

    Args:
        run_dirs: finished runs by name, evaluated on the same sets, whose order is that
            of the first run.
        folder: where to write.

    Returns:
        The main table, the tests of the runs' differences, and the paths of the rest.

    Raises:
        ConfigError: a run has not been evaluated, or on other sets or rows than the
            first, or with another `paper_compat`; a file is damaged, or the
            folder is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file: name a folder for the report.")
    evaluations = {name: read_evaluation(run) for name, run in run_dirs.items()}
    sets = [list(evaluation) for evaluation in evaluations.values()]
    if any(set(names) != set(sets[0]) for names in sets):
        raise ConfigError(f"these runs were evaluated on different sets: {sets}.")
    if not sets[0]:
        return "no evaluation set, so no table"
    sections = _sections(run_dirs, evaluations, sets[0])
    folder.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join(f"## {title}\n\n{table}" for title, table in sections.items())
    replace_text(folder / TABLE_FILE, text + "\n")
    shown = "\n\n".join(sections[title] for title in SHOWN if title in sections)
    shown += f"\n\n{folder / TABLE_FILE}: {', '.join(sections).lower()}"
    if importlib.util.find_spec("matplotlib") is None:
        return f"{shown}\nno figure: matplotlib is not installed (extra `plots`)"
    comparison_figure(run_dirs, evaluations, folder / FIGURE_FILE)
    shown += f"\n{folder / FIGURE_FILE}: loss curves and predicted digits"
    if error_figure(evaluations, folder / ERROR_FILE):
        shown += f"\n{folder / ERROR_FILE}: errors by the last digit of the answer"
    return shown


def scores_of_run(run_dir: AnyPath) -> str:
    """The main table of one finished run, with the trivial baselines."""
    return comparison_table({run_dir.name: read_evaluation(run_dir)})


SHOWN = ("Scores", "Differences")
"""The printed sections."""


def _sections(
    run_dirs: Mapping[str, AnyPath],
    evaluations: Mapping[str, Evaluation],
    sets: list[str],
) -> dict[str, str]:
    """The tables that have rows, by title."""
    compat = {e[name]["paper_compat"] for e in evaluations.values() for name in sets}
    if len(compat) > 1:
        raise ConfigError(
            "some of these runs were evaluated with --evaluation.paper-compat, others "
            "without it: evaluate them all the same way."
        )
    answers = {name: read_predictions(run, sets) for name, run in run_dirs.items()}
    try:
        differences = paired_table(answers, paper_compat=compat == {True})
    except ValueError as error:
        raise ConfigError(f"these runs cannot be compared: {error}") from error
    sections = {
        "Scores": comparison_table(evaluations),
        "Differences": differences,
        "More scores": more_scores_table(evaluations),
        "Which way answers miss": error_rates_table(evaluations),
        "Digits by place": digit_accuracy_table(evaluations),
        "Lengths of the operands": cells_table(evaluations),
    }
    return {title: table for title, table in sections.items() if table}

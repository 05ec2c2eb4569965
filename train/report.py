"""Runs to tables and figures."""

import importlib.util
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from train.config import ConfigError
from train.evaluate import RESULTS_FILE
from train.writer import read_metrics

TABLE_FILE = "comparison.md"
FIGURE_FILE = "comparison.png"

COLUMNS = {
    "number_accuracy": "accuracy",
    "mae": "MAE",
    "rmse": "RMSE",
    "r2": "R2",
    "log_mae": "log10 MAE",
    "log_r2": "log10 R2",
    "pearson": "Pearson",
    "spearman": "Spearman",
    "unparsable_rate": "unparsable",
    "ce": "CE",
    "was": "NTL-WAS",
}
"""Metric names and their headings."""


Evaluation = Mapping[str, Mapping[str, Any]]
"""evaluation.json: by set, its metrics and its digit distribution."""


def read_evaluation(run_dir: pathlib.Path) -> Evaluation:
    """What a finished run wrote to evaluation.json.

    Raises:
        ConfigError: the run has not been evaluated.
    """
    path = run_dir / RESULTS_FILE
    if not path.exists():
        raise ConfigError(f"{run_dir} has no {RESULTS_FILE}: let the run finish first.")
    return json.loads(path.read_text())


def report(run_dirs: Mapping[str, pathlib.Path], folder: pathlib.Path) -> str:
    """Compares finished runs: comparison.md and comparison.png in `folder`.

    Args:
        run_dirs: finished runs by name, evaluated on the same sets.
        folder: where to write.

    Returns:
        The table, and where the figure is.

    Raises:
        ConfigError: a run has not been evaluated, or on other sets than the first.
    """
    evaluations = {name: read_evaluation(run) for name, run in run_dirs.items()}
    sets = [list(evaluation) for evaluation in evaluations.values()]
    if any(names != sets[0] for names in sets):
        raise ConfigError(f"these runs were evaluated on different sets: {sets}.")
    if not sets[0]:
        return "no evaluation set, so no table"
    table = comparison_table(evaluations)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TABLE_FILE).write_text(table + "\n")
    if importlib.util.find_spec("matplotlib") is None:
        return f"{table}\n\nno figure: matplotlib is not installed (extra `plots`)"
    comparison_figure(run_dirs, evaluations, folder / FIGURE_FILE)
    return f"{table}\n\n{folder / FIGURE_FILE}: loss curves and predicted digits"


def comparison_table(evaluations: Mapping[str, Evaluation]) -> str:
    """A Markdown table, a row for every evaluation set and loss.

    Accuracy stands with its standard error. The last row of each set is the best
    constant answer: the commonest one for accuracy, the median for MAE, the mean for
    RMSE.

    Args:
        evaluations: by loss.
    """
    sets = next(iter(evaluations.values()))
    rows = [["set", "trained with", "n", *COLUMNS.values()]]
    for name in sets:
        for loss, evaluation in evaluations.items():
            metrics = evaluation[name]["metrics"]
            cells = [_cell(metrics.get(column)) for column in COLUMNS]
            cells[0] += f" ± {metrics['number_accuracy_se']:.2g}"
            rows.append([name, loss, str(metrics["n"]), *cells])
        metrics = sets[name]["metrics"]
        constant = {
            "number_accuracy": metrics["constant_accuracy"],
            "mae": metrics["constant_mae"],
            "rmse": metrics["constant_rmse"],
        }
        cells = [_cell(constant.get(column)) for column in COLUMNS]
        rows.append([name, "best constant", str(metrics["n"]), *cells])
    return markdown_table(rows)


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}"


def markdown_table(rows: list[list[str]]) -> str:
    """A header and rows of text as an aligned Markdown table."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def offset_distribution(
    digits: np.ndarray, counts: np.ndarray, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean predicted probability by signed distance from the true digit.

    Args:
        digits: f64 [K, K], row k the mean distribution where the label is token k.
        counts: f64 [K], labels of each token.
        values: f64 [K], what the tokens are worth.

    Returns:
        The distances, and the probability at each, averaged over all labels.
    """
    offsets = values[None, :] - values[:, None]  # [true, predicted]
    weights = digits * counts[:, None] / max(counts.sum(), 1.0)
    distances = np.unique(offsets)
    return distances, np.array([weights[offsets == d].sum() for d in distances])


def comparison_figure(
    run_dirs: Mapping[str, pathlib.Path],
    evaluations: Mapping[str, Evaluation],
    path: pathlib.Path,
) -> None:
    """Draws loss curves, and predicted digits around the true one, for every run.

    Args:
        run_dirs: finished runs by name.
        evaluations: theirs.
        path: the PNG to write.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    sets = list(next(iter(evaluations.values())))
    figure, axes = plt.subplots(
        2, max(2, len(sets)), figsize=(5 * max(2, len(sets)), 7), squeeze=False
    )
    for axis, (term, label) in zip(
        axes[0], (("ce", "cross entropy"), ("was", "NTL-WAS")), strict=False
    ):
        _draw_curves(axis, run_dirs, term)
        axis.set(xlabel="step", ylabel=label, title=f"{label} while training")
    for axis, name in zip(axes[1], sets, strict=False):
        _draw_offsets(axis, evaluations, name)
        axis.set(
            xlabel="predicted digit - true digit",
            ylabel="mean probability",
            title=f"digits, {name}",
            yscale="log",
        )
    for axis in axes.flat:
        axis.set_visible(axis.has_data())
        if axis.has_data():
            axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _draw_curves(axis: Any, run_dirs: Mapping[str, pathlib.Path], term: str) -> None:
    for name, run_dir in run_dirs.items():
        rows = [r for r in read_metrics(run_dir) if r["kind"] == "train" and term in r]
        if rows:
            axis.plot([r["step"] for r in rows], [r[term] for r in rows], label=name)


def _draw_offsets(axis: Any, evaluations: Mapping[str, Evaluation], name: str) -> None:
    for run, evaluation in evaluations.items():
        result = evaluation[name]
        counts = np.asarray(result["digit_counts"])
        if not counts.sum():
            continue
        distances, probabilities = offset_distribution(
            np.asarray(result["digit_distribution"]),
            counts,
            np.asarray(result["number_values"]),
        )
        axis.plot(distances, probabilities, marker="o", label=run)
        axis.locator_params(axis="x", integer=True)

"""Runs to tables and figures."""

import importlib.util
import json
import logging
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from train.evaluate import RESULTS_FILE, SetResult
from train.writer import read_metrics

logger = logging.getLogger("train")

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


def comparison_table(results: Mapping[str, Mapping[str, SetResult]]) -> str:
    """A Markdown table, a row for every evaluation set and loss.

    The last row of each set is the best constant answer: the commonest one for
    accuracy, the median for MAE.

    Args:
        results: by loss, then by evaluation set.
    """
    sets = next(iter(results.values()))
    rows = [["set", "trained with", "n", *COLUMNS.values()]]
    for name in sets:
        for loss, by_set in results.items():
            metrics = by_set[name].metrics
            cells = [_cell(metrics.get(column)) for column in COLUMNS]
            rows.append([name, loss, str(metrics["n"]), *cells])
        metrics = sets[name].metrics
        constant = {
            "number_accuracy": metrics["constant_accuracy"],
            "mae": metrics["constant_mae"],
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
    run_dirs: Mapping[str, pathlib.Path], path: pathlib.Path
) -> pathlib.Path | None:
    """Draws loss curves, and predicted digits around the true one, for every run.

    Args:
        run_dirs: finished runs by name.
        path: the PNG to write.

    Returns:
        `path`, or None (and a log line) where matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        logger.info("no figure: matplotlib is not installed (extra `plots`)")
        return None
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    evaluations = {
        name: json.loads((run_dir / RESULTS_FILE).read_text())
        for name, run_dir in run_dirs.items()
    }
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
    return path


def _draw_curves(axis: Any, run_dirs: Mapping[str, pathlib.Path], term: str) -> None:
    for name, run_dir in run_dirs.items():
        rows = [r for r in read_metrics(run_dir) if r["kind"] == "train" and term in r]
        if rows:
            axis.plot([r["step"] for r in rows], [r[term] for r in rows], label=name)


def _draw_offsets(axis: Any, evaluations: Mapping[str, Any], name: str) -> None:
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

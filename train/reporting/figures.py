"""Figures of finished runs; matplotlib is imported only to draw one."""

import io
from collections.abc import Mapping
from typing import Any

import numpy as np

from train.checkpointing.storage import AnyPath
from train.reporting.metrics_writer import read_metrics
from train.reporting.tables import Evaluation


def offset_distribution(
    digits: np.ndarray, counts: np.ndarray, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean predicted probability by signed distance from the true digit.

    Args:
        digits: f64 [K, K], row k the mean distribution for label token k.
        counts: f64 [K], labels of each token.
        values: f64 [K], the values of the tokens.

    Returns:
        The distances, and the probability at each, averaged over all labels.
    """
    offsets = values[None, :] - values[:, None]  # [true, predicted]
    weights = digits * counts[:, None] / max(counts.sum(), 1.0)
    distances = np.unique(offsets)
    return distances, np.array([weights[offsets == d].sum() for d in distances])


def comparison_figure(
    run_dirs: Mapping[str, AnyPath],
    evaluations: Mapping[str, Evaluation],
    path: AnyPath,
) -> None:
    """Draws loss curves, and predicted digits around the true one, for every run.

    Args:
        run_dirs: finished runs by name.
        evaluations: of these runs.
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
        axis.set(xlabel="step", ylabel=label, title=f"{label} in training")
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
    _save(figure, path)
    plt.close(figure)


def _save(figure: Any, path: AnyPath) -> None:
    png = io.BytesIO()
    figure.savefig(png, dpi=120, format="png")
    path.write_bytes(png.getvalue())


def _draw_curves(axis: Any, run_dirs: Mapping[str, AnyPath], term: str) -> None:
    for name, run_dir in run_dirs.items():
        rows = [r for r in read_metrics(run_dir) if r["kind"] == "train" and term in r]
        if rows:
            axis.plot([r["step"] for r in rows], [r[term] for r in rows], label=name)


def _draw_offsets(axis: Any, evaluations: Mapping[str, Evaluation], name: str) -> None:
    for run, evaluation in evaluations.items():
        result = evaluation[name]
        numbers = result["number_tokens"]
        if numbers is None:
            continue
        distances, probabilities = offset_distribution(
            np.asarray(numbers["mean_by_label"]),
            np.asarray(numbers["counts"]),
            np.asarray(result["number_values"]),
        )
        axis.plot(distances, probabilities, marker="o", label=run)
        axis.locator_params(axis="x", integer=True)


def error_figure(evaluations: Mapping[str, Evaluation], path: AnyPath) -> bool:
    """Draws histograms of prediction - answer, one row per last digit of the answer.

    Shades are fractions of the answers with that last digit; predictions beyond the
    bins, or without a number, are missing from them.

    Args:
        evaluations: by run, of the same sets.
        path: the PNG to write.

    Returns:
        Whether there was an answer with a number.

    Source: *Regress, Don't Guess* (ICML 2025), figure of error histograms.
    """
    drawn = [
        (f"{name}, {run}", evaluation[name]["error_histograms"])
        for name in next(iter(evaluations.values()))
        for run, evaluation in evaluations.items()
        if "error_histograms" in evaluation[name]
    ]
    if not drawn:
        return False
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    columns = min(len(drawn), len(evaluations))
    rows = -(-len(drawn) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(5 * columns, 3 * rows), squeeze=False
    )
    for axis, (title, histograms) in zip(axes.flat, drawn, strict=False):
        centres = histograms["centres"]
        axis.imshow(
            error_shares(histograms),
            aspect="auto",
            cmap="Blues",
            extent=(centres[0] - 0.5, centres[-1] + 0.5, 9.5, -0.5),
        )
        axis.set(xlabel="prediction - answer", ylabel="last digit", title=title)
        axis.set_yticks(range(10))
    for axis in axes.flat[len(drawn) :]:
        axis.set_visible(False)
    figure.tight_layout()
    _save(figure, path)
    plt.close(figure)
    return True


def error_shares(histograms: Mapping[str, Any]) -> np.ndarray:
    """f64 [10, bins]: counts divided by all answers with that last digit."""
    counts = np.asarray(histograms["counts"], np.float64)
    rest = (np.asarray(histograms[name]) for name in ("below", "above", "unparsable"))
    total = counts.sum(axis=1) + sum(rest)
    return counts / np.maximum(total, 1)[:, None]

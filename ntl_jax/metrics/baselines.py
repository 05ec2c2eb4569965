"""Scores of constant answers, which ignore the question."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from ntl_jax.metrics.numeric import Scores, pair_scores
from ntl_jax.metrics.pairs import NumberPairs, mean_of, read_labels
from ntl_jax.numbers.grammar import Exact


class Baseline(NamedTuple):
    """One answer to all questions, and its scores from `pair_scores`."""

    answer: float
    scores: Scores


def trivial_baselines(
    references: Sequence[str],
    *,
    train_references: Sequence[str] | None = None,
    paper_compat: bool = False,
) -> dict[str, Baseline]:
    """Scores of always answering the mean, the median or the most common label.

    A model that does not beat all three in every score has learned less than it seems.

    Args:
        references: N answers to evaluate on.
        train_references: answers that the three are computed from; by default the N
            themselves, which gives an upper bound on any constant.
        paper_compat: reads and compares numbers as the paper's code does.

    Returns:
        ``"mean"``, ``"median"``, ``"mode"`` (the smallest of equally common ones).

    Raises:
        ValueError: no references, or one without a number.

    Example:
        >>> baselines = trivial_baselines(["0", "0", "0", "4"])
        >>> baselines["mean"].answer, baselines["mode"].scores["number_accuracy"]
        (1.0, 0.75)

    Source: always answering the mean scores an RMSE of 1.829 on the test set of rJokes,
    where *Regress, Don't Guess* (ICML 2025) reports 1.81.
    """
    known = references if train_references is None else train_references
    if not references or not known:
        raise ValueError(
            f"{len(references)} references, {len(known)} to take the answers from: "
            "give at least one of each."
        )
    labels = read_labels(references, paper_compat=paper_compat)
    source = read_labels(known, paper_compat=paper_compat)
    answers = {
        "mean": mean_of(source),
        "median": _median(source),
        "mode": _mode(source),
    }
    return {
        name: _baseline(labels, answer, paper_compat)
        for name, answer in answers.items()
    }


def _baseline(labels: tuple[Exact, ...], answer: Exact, paper_compat: bool) -> Baseline:
    pairs = NumberPairs(labels, (answer,) * len(labels), paper_compat)
    return Baseline(float(pairs.p[0]), pair_scores(pairs))


def _median(labels: tuple[Exact, ...]) -> Exact:
    ranked, n = sorted(labels), len(labels)
    low, high = ranked[(n - 1) // 2], ranked[n // 2]
    return low if low == high else mean_of((low, high))


def _mode(labels: tuple[Exact, ...]) -> Exact:
    counts = Counter(labels)
    most = max(counts.values())
    return min(label for label, count in counts.items() if count == most)

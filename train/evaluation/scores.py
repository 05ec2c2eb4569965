"""The scores of generated answers: one number a name, and what needs a table."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ntl_jax.metrics import (
    NumberPairs,
    bootstrap_interval,
    digit_accuracy,
    error_histograms,
    error_rates,
    mean_over_cells,
    numeric_metrics,
    operand_digits,
    penalised_errors,
    read_pairs,
    rounded_accuracy,
    scores_by_cell,
    sequence_accuracy,
    text_metrics,
    token_accuracy,
    trivial_baselines,
    wilson_interval,
)
from ntl_jax.metrics.bootstrap import Statistic, mean, median, root_mean_square
from ntl_jax.numbers.grammar import last_number
from train.config import EvalConfig
from train.data import Row

RESAMPLES = 1000
"""Of each bootstrap interval."""

ERRORS: Mapping[str, tuple[bool, Statistic]] = {
    "mae": (False, mean),
    "rmse": (False, root_mean_square),
    "median_ae": (False, median),
    "log_mae": (True, mean),
}
"""Scores of errors: whether they are of logarithms, and the statistic."""


@dataclasses.dataclass(frozen=True)
class Answers:
    """What was asked, answered and written, N rows of each.

    Attributes:
        rows: questions and right answers.
        predictions: the answers, as text.
        tokens: the same as ids, the end-of-sequence token last where there is one.
        labels: the right answers as ids, likewise.
    """

    rows: Sequence[Row]
    predictions: Sequence[str]
    tokens: Sequence[Sequence[int]]
    labels: Sequence[Sequence[int]]

    @property
    def references(self) -> list[str]:
        """The right answers."""
        return [row["answer"] for row in self.rows]


def numbered(rows: Sequence[Row], *, paper_compat: bool = False) -> list[int]:
    """Which rows have an answer with a number in it: number metrics are of them."""
    mode = "paper" if paper_compat else "grammar"
    return [
        place
        for place, row in enumerate(rows)
        if last_number(row["answer"], mode=mode, fractions=True) is not None
    ]


def answer_metrics(answers: Answers, config: EvalConfig) -> dict[str, Any]:
    """Every score that is one number.

    Args:
        answers: N of them.
        config: `paper_compat` counts everything as the paper's code does.

    Returns:
        `numeric_metrics` of the rows whose answer holds a number, ``n`` of them, where
        there is one, and ``rounded_accuracy``, to two decimals; ``mape`` (``_median``,
        ``_penalised``) over cells of operand lengths where the questions have two
        operands; ``token_accuracy`` and ``sequence_accuracy``; BLEU and ROUGE where an
        answer holds a word.
    """
    compat = config.paper_compat
    batches = {"paper_compat": compat, "batch_size": config.batch_size}
    metrics: dict[str, Any] = {}
    kept = numbered(answers.rows, paper_compat=compat)
    if kept:
        predictions = [answers.predictions[place] for place in kept]
        references = [answers.references[place] for place in kept]
        metrics |= numeric_metrics(predictions, references, paper_compat=compat)
        rows = [answers.rows[place] for place in kept]
        pairs = read_pairs(predictions, references, paper_compat=compat)
        # Float64 holds not every digit of a long number; the error is of the exact one.
        near = pairs.parsed & (np.abs(pairs.error) <= 0.01)
        guesses = np.where(near, pairs.p, np.nan)
        metrics["rounded_accuracy"] = rounded_accuracy(guesses, pairs.y)
        metrics |= _mape(pairs, rows)
    metrics["token_accuracy"] = token_accuracy(
        answers.tokens, answers.labels, **batches
    )
    if any(_has_word(text) for text in answers.references):
        metrics |= text_metrics(answers.predictions, answers.references, **batches)
    else:
        metrics["sequence_accuracy"] = sequence_accuracy(
            answers.predictions, answers.references
        )
    return metrics


def answer_tables(
    rows: Sequence[Row], predictions: Sequence[str], *, paper_compat: bool = False
) -> dict[str, Any]:
    """What one number does not say, as JSON holds it.

    Args:
        rows: N questions and answers.
        predictions: N generated texts.
        paper_compat: reads and compares numbers as the paper's code does.

    Returns:
        ``intervals`` (95%, of other questions), ``baselines`` (always the mean, the
        median, the mode of the answers), ``error_rates`` by kind of label,
        ``digit_accuracy`` by place, ``error_histograms`` by last digit, and ``cells``
        by operand lengths (None where questions have not two operands); nothing where
        no answer holds a number.
    """
    kept = numbered(rows, paper_compat=paper_compat)
    if not kept:
        return {}
    rows = [rows[place] for place in kept]
    references = [row["answer"] for row in rows]
    pairs = read_pairs(
        [predictions[place] for place in kept], references, paper_compat=paper_compat
    )
    cells = _cells(pairs, rows)
    tables = {
        "intervals": score_intervals(pairs),
        "baselines": trivial_baselines(references, paper_compat=paper_compat),
        "error_rates": error_rates(pairs),
        "digit_accuracy": digit_accuracy(pairs),
        "error_histograms": error_histograms(pairs),
        "cells": cells and {f"{k}x{m}": score for (k, m), score in cells.items()},
    }
    return {name: plain(table) for name, table in tables.items()}


def score_intervals(pairs: NumberPairs) -> dict[str, tuple[float, float] | None]:
    """95% intervals: Wilson's of shares, bootstrapped of errors.

    Args:
        pairs: N pairs of numbers.

    Returns:
        Bounds of ``number_accuracy``, ``unparsable_rate``, the scores in `ERRORS` and
        the same ``_penalised``; None where no prediction holds a number.
    """
    right = pairs.within(1e-5, 1e-8) if pairs.paper_compat else pairs.exact
    shares = {"number_accuracy": right, "unparsable_rate": ~pairs.parsed}
    bounds: dict[str, tuple[float, float] | None] = {}
    for name, share in shares.items():
        interval = wilson_interval(int(share.sum()), len(pairs))
        bounds[name] = interval and (interval.low, interval.high)
    filled, log_filled = penalised_errors(pairs)
    for name, (is_log, statistic) in ERRORS.items():
        error = np.abs(log_filled if is_log else filled)
        for suffix, chosen in (("", error[pairs.parsed]), ("_penalised", error)):
            bounds[name + suffix] = None
            if chosen.size:
                interval = bootstrap_interval(
                    chosen, statistic=statistic, resamples=RESAMPLES
                )
                bounds[name + suffix] = (interval.low, interval.high)
    return bounds


def plain(value: Any) -> Any:
    """Named tuples as objects, arrays as lists: what JSON can hold."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [plain(item) for item in value] if isinstance(value, tuple) else value


def _mape(pairs: NumberPairs, rows: Sequence[Row]) -> dict[str, float | None]:
    cells = _cells(pairs, rows)
    names = ("mape", "mape_median", "mape_penalised") if cells else ()
    return {name: mean_over_cells(cells, name=name) for name in names}


def _cells(pairs: NumberPairs, rows: Sequence[Row]) -> dict[Any, Any]:
    """Scores by the lengths of both operands; empty where a row has not two."""
    lengths = [operand_digits(row["question"]) for row in rows]
    if any(len(digits) != 2 for digits in lengths):
        return {}
    return dict(sorted(scores_by_cell(pairs, lengths).items()))


def _has_word(text: str) -> bool:
    return any(character.isalpha() for character in text)

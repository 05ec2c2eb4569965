"""Rows that a model has no place for, and rows that measure less than they seem to."""

import logging
from collections.abc import Sequence

import numpy as np

from ntl_jax.models import AnyConfig, NumformerConfig
from ntl_jax.number_grammar import last_number
from train.config import ConfigError, TrainConfig
from train.data import CausalDataset, Row, TokenizedDataset

logger = logging.getLogger("train")


def check_length(dataset: TokenizedDataset, config: TrainConfig, model: AnyConfig):
    """A table of positions ends somewhere; generation goes beyond the prompt."""
    if isinstance(model, NumformerConfig):
        (length,) = dataset.shape
        if length > model.max_positions:
            raise ConfigError(
                f"questions with their answers take up to {length} tokens, more than "
                f"the model's {model.max_positions} positions: lower "
                "--data.max-source-length or --data.max-target-length."
            )
        return
    most = getattr(model, "n_positions", None)
    if most is None or not isinstance(dataset, CausalDataset):
        return
    answered = dataset.source_length + config.evaluation.max_new_tokens
    longest = max(dataset.length, answered)
    if longest > most:
        more = f"set --model.n-positions {longest}, or " if not config.init_from else ""
        raise ConfigError(
            f"questions and answers take up to {longest} tokens, more than the model's "
            f"{most} positions: {more}lower --data.max-source-length, "
            "--data.max-target-length or --evaluation.max-new-tokens."
        )


def count_numbers(set_name: str, rows: Sequence[Row]) -> None:
    """Says how many answers number metrics will leave out."""
    lacking = [
        number
        for number, row in enumerate(rows, start=1)
        if last_number(row["answer"], fractions=True) is None
    ]
    if lacking:
        logger.warning(
            "%d of %d answers of the evaluation set %r hold no number, the first in "
            "row %d: number metrics are of the others",
            len(lacking),
            len(rows),
            set_name,
            lacking[0],
        )


def count_long(set_name: str, dataset: TokenizedDataset, max_new_tokens: int) -> None:
    """Says how many right answers are longer than any generated text."""
    lengths = dataset.targets.sizes(np.arange(len(dataset))) - 1  # without the end
    long = int((lengths > max_new_tokens).sum())
    if long:
        logger.warning(
            "%d of %d answers of the evaluation set %r are longer than "
            "--evaluation.max-new-tokens %d, the longest %d: what is generated for "
            "them ends too early",
            long,
            len(dataset),
            set_name,
            max_new_tokens,
            lengths.max(),
        )

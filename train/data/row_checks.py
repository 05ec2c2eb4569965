"""Rows that a model has no place for, and rows that measure less than they seem to."""

import logging
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ntl_jax.models import AnyConfig
from ntl_jax.numbers.grammar import last_number
from ntl_jax.tokenization import Tokenizer
from train.config import ConfigError, TrainConfig
from train.data import CausalDataset, Row, TokenizedDataset
from train.data.transforms import Ragged

_TOKENS_AT_ONCE = 2**24  # bounds what comparing them takes
_ROWS_READ = 100  # for characters to name
_NAMED = 5

logger = logging.getLogger("train")


def check_length(dataset: TokenizedDataset, config: TrainConfig, model: AnyConfig):
    """Positions end somewhere; generation goes beyond the prompt."""
    if isinstance(dataset, CausalDataset):
        answered = dataset.source_length + config.evaluation.max_new_tokens
        check_positions(max(dataset.length, answered), config, model)


def check_positions(longest: int, config: TrainConfig, model: AnyConfig) -> None:
    """A model has positions for rows and answers of so many tokens, or ConfigError."""
    most = model.longest_row
    if most is not None and longest > most:
        more = f"set {positions_flag(model)} {longest}, or "
        raise ConfigError(
            f"questions and answers take up to {longest} tokens, more than the model's "
            f"{most} positions: {'' if config.init_from else more}lower "
            "--data.max-source-length, --data.max-target-length or "
            "--evaluation.max-new-tokens."
        )


def positions_flag(model: AnyConfig) -> str:
    """The flag that says how many positions a model has."""
    return f"--model.{str(model.positions_field).replace('_', '-')}"


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


def count_unknown(
    sets: Mapping[str, tuple[Sequence[Row], TokenizedDataset]], tokenizer: Tokenizer
) -> None:
    """Says how many rows hold what the tokenizer has no token for.

    Args:
        sets: rows and their ids, by name.
        tokenizer: what they were read with.
    """
    unknown = tokenizer.unk_token_id
    if unknown is None:
        return
    counts: list[str] = []
    named: list[str] = []
    for name, (rows, dataset) in sets.items():
        found = np.union1d(
            _rows_with(unknown, dataset.sources), _rows_with(unknown, dataset.targets)
        )
        if not len(found):
            continue
        counts.append(f"{len(found):,} of {len(rows):,} rows of {name!r}")
        texts = (
            rows[row][column]
            for row in found[:_ROWS_READ].tolist()
            for column in ("question", "answer")
        )
        named += _characters_without_token(texts, tokenizer, unknown)
    if counts:
        logger.warning(
            "%s hold characters that the tokenizer reads as its unknown token (%s): "
            "the model cannot tell them apart, nor write them",
            ", ".join(counts),
            ", ".join(map(repr, list(dict.fromkeys(named))[:_NAMED])),
        )


def _rows_with(token_id: int, texts: Ragged) -> np.ndarray:
    """The rows that hold a token, i64, those that hold it twice twice."""
    places = [
        start
        + np.flatnonzero(texts.values[start : start + _TOKENS_AT_ONCE] == token_id)
        for start in range(0, len(texts.values), _TOKENS_AT_ONCE)
    ]
    return np.searchsorted(texts.offsets, np.concatenate(places), side="right") - 1


def _characters_without_token(
    texts: Iterable[str], tokenizer: Tokenizer, unknown: int
) -> list[str]:
    """The first few characters that are unknown by themselves."""
    seen: set[str] = set()
    found: list[str] = []
    for text in texts:
        new = [character for character in dict.fromkeys(text) if character not in seen]
        seen.update(new)
        ids = tokenizer.encode_batch(new)
        found += [c for c, row in zip(new, ids, strict=True) if unknown in row]
        if len(found) >= _NAMED:
            break
    return found[:_NAMED]

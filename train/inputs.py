"""Text made ready for the model: tokenizer, rows, ids and number tokens."""

import dataclasses
import logging
from collections.abc import Sequence
from typing import cast

import numpy as np

from ntl_jax import NumberVocab
from ntl_jax.models import AnyConfig, NumformerConfig, T5RegressionConfig
from ntl_jax.number_grammar import find_numbers, last_number
from ntl_jax.number_vocab import Policy
from ntl_jax.tokenization import (
    RegressionTransformerTokenizer,
    Tokenizer,
    XvalTokenizer,
    load_tokenizer,
    read_place_digit,
)
from ntl_jax.value_scales import ValueScale
from train.config import NUMBER_TERMS, ConfigError, TrainConfig
from train.data import (
    Buckets,
    CausalDataset,
    MaskedDataset,
    PackedDataset,
    Row,
    Splits,
    TokenizedDataset,
    load_splits,
    make_buckets,
    mask_rows,
    pack,
    tokenize_rows,
)
from train.model import is_decoder_only
from train.number_answers import NumberModel
from train.regression import last_numbers, with_numbers

logger = logging.getLogger("train")

COVERAGE_ROWS = 1000
LOWEST_COVERAGE = 0.5


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Text made ready for the model."""

    tokenizer: Tokenizer
    splits: Splits
    train: TokenizedDataset | PackedDataset
    evaluation: dict[str, TokenizedDataset]
    buckets: Buckets | None
    scale: ValueScale
    """What numbers go through that a model reads or answers with as numbers."""


def tokenizer_name(config: TrainConfig) -> str:
    """The tokenizer asked for, or the one that belongs to the pretrained weights."""
    if config.init_from is not None and config.tokenizer == "builtin":
        return config.init_from
    return config.tokenizer


def open_tokenizer(
    name: str, split_digits: bool, number_tokens: str = "digits", head: str = "lm"
) -> Tokenizer:
    """Loads a tokenizer; ConfigError where it cannot be had."""
    try:
        if head == "numformer":
            return XvalTokenizer(load_tokenizer(name))
        if number_tokens == "places":
            return RegressionTransformerTokenizer(load_tokenizer(name))
        return load_tokenizer(name, split_digits=split_digits)
    except ValueError as error:
        raise ConfigError(f"--tokenizer {name}: {error}") from error


def load_inputs(
    config: TrainConfig,
    model: AnyConfig,
    tokenizer: Tokenizer | None = None,
    scale: ValueScale | None = None,
) -> Inputs:
    """Reads and tokenises every row once.

    Args:
        config: the run's.
        model: the model's config.
        tokenizer: None loads the run's.
        scale: of a run that goes on; None fits it to the training rows.

    Raises:
        ConfigError: the tokenizer has ids that the model has no row for.
        DataError: a file is missing or malformed.
    """
    name = tokenizer_name(config)
    tokenizer = tokenizer or open_tokenizer(
        name, config.split_digits, config.number_tokens, config.head
    )
    if len(tokenizer) > model.vocab_size:
        raise ConfigError(
            f"the tokenizer {name} has {len(tokenizer)} tokens, but the model only "
            f"{model.vocab_size} rows: set --model.vocab-size {len(tokenizer)} or more."
        )
    if tokenizer.eos_token_id != model.eos_token_id:
        raise ConfigError(
            f"the tokenizer {name} ends a text with token {tokenizer.eos_token_id}, "
            f"the model with {model.eos_token_id}: set --model.eos-token-id "
            f"{tokenizer.eos_token_id}."
        )
    splits = load_splits(config.data)
    for set_name, rows in splits.evaluation.items():
        _count_numbers(set_name, rows)
    if scale is None and isinstance(model, T5RegressionConfig):
        scale = fitted(config, last_numbers(splits.train))
    unfitted = scale or ValueScale("none")
    train = tokenized(splits.train, config, model, tokenizer, unfitted)
    if isinstance(train, MaskedDataset):
        scale = scale or fitted(config, train.numbers())
        train = dataclasses.replace(train, scale=scale)
    scale = scale or ValueScale("none")
    evaluation = {
        name: tokenized(rows, config, model, tokenizer, scale)
        for name, rows in splits.evaluation.items()
    }
    if config.head == "lm":
        for set_name, dataset in evaluation.items():
            _count_long(set_name, dataset, config.evaluation.max_new_tokens)
    if config.data.packing:
        packed = _packed(train, config, model)
        return Inputs(tokenizer, splits, packed, evaluation, None, scale)
    buckets = None
    if config.data.buckets > 1:
        buckets = make_buckets(train.lengths(), config.data.buckets)
    return Inputs(tokenizer, splits, train, evaluation, buckets, scale)


def fitted(config: TrainConfig, numbers: np.ndarray) -> ValueScale:
    """The scale that the run asks for, fitted to its training numbers."""
    try:
        return ValueScale.fit(config.value_scale, numbers)
    except ValueError as error:
        raise ConfigError(f"--value-scale {config.value_scale}: {error}.") from error


def _packed(
    train: TokenizedDataset, config: TrainConfig, model: AnyConfig
) -> PackedDataset:
    packed = pack(train, seed=config.data.seed, length=config.data.packed_length)
    for name in ("n_positions", "max_position_embeddings"):
        length, most = packed.shape[0], getattr(model, name, packed.shape[0])
        if length > most:
            raise ConfigError(
                f"packed rows have {length} tokens, more than the model's {most} "
                "positions: lower --data.packed-length, or set "
                f"--model.{name.replace('_', '-')} {length}."
            )
    return packed


def layout(inputs: Inputs) -> list[str]:
    """Lines that say how many rows there are, how long, and how many were cut."""
    train = inputs.train
    if isinstance(train, PackedDataset):
        rows, how = train.rows, f"packed into {len(train):,} rows of"
    elif inputs.buckets is not None:
        rows, how = (
            train,
            f"padded to one of {len(inputs.buckets.lengths)} lengths up to",
        )
    else:
        rows, how = train, "padded to"
    lengths = " + ".join(map(str, train.shape))
    lines = [
        f"{len(rows):,} training rows, {how} {lengths} tokens, "
        f"{rows.truncated_sources:,} + {rows.truncated_targets:,} truncated"
    ]
    for name, dataset in inputs.evaluation.items():
        cut = dataset.truncated_sources, dataset.truncated_targets
        if any(cut):
            lines.append(
                f"{name}: of {len(dataset):,} rows {cut[0]:,} + {cut[1]:,} truncated"
            )
    return lines


def tokenized(
    rows: Sequence[Row],
    config: TrainConfig,
    model: AnyConfig,
    tokenizer: Tokenizer,
    scale: ValueScale | None = None,
) -> TokenizedDataset:
    """Rows as ids; ConfigError where the model has no position for the last of them.

    Args:
        rows: questions and answers.
        config: the run's.
        model: the model's config.
        tokenizer: what the rows are read with.
        scale: what the numbers of answers go through; None: the run's, never fitted.
    """
    scale = scale or fitted(config, np.empty(0))
    if isinstance(tokenizer, XvalTokenizer):
        masked = mask_rows(
            rows,
            tokenizer,
            max_source_length=config.data.max_source_length,
            max_target_length=config.data.max_target_length,
            rate=config.mask_rate,
        )
        masked = dataclasses.replace(masked, scale=scale)
        _check_length(masked, config, model)
        return masked
    dataset = tokenize_rows(
        rows,
        tokenizer,
        max_source_length=config.data.max_source_length,
        max_target_length=config.data.max_target_length,
        vocab_size=model.vocab_size,
        separator=config.data.separator if is_decoder_only(model) else None,
        cache=config.token_cache,
    )
    _check_length(dataset, config, model)
    if isinstance(model, T5RegressionConfig):
        return with_numbers(dataset, rows, scale)
    return dataset


def _check_length(dataset: TokenizedDataset, config: TrainConfig, model: AnyConfig):
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


def _count_numbers(set_name: str, rows: Sequence[Row]) -> None:
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


def _count_long(set_name: str, dataset: TokenizedDataset, max_new_tokens: int) -> None:
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


def number_vocab(tokenizer: Tokenizer, vocab_size: int, policy: str) -> NumberVocab:
    """The number tokens under a policy; tokens with places count as their digits."""
    if isinstance(tokenizer, RegressionTransformerTokenizer):
        return NumberVocab.from_tokenizer(
            tokenizer, vocab_size=vocab_size, policy=read_place_digit
        )
    return NumberVocab.from_tokenizer(
        tokenizer, vocab_size=vocab_size, policy=cast(Policy, policy)
    )


def make_vocab(config: TrainConfig, model: AnyConfig, inputs: Inputs) -> NumberVocab:
    """The number tokens, after checking that the answers' digits land on them.

    Raises:
        ConfigError: no number tokens, or a number loss that would see under half of
            the digits, or no number at all.
    """
    try:
        vocab = number_vocab(inputs.tokenizer, model.vocab_size, config.number_policy)
    except ValueError as error:
        raise ConfigError(f"--tokenizer {config.tokenizer}: {error}") from error
    if isinstance(model, NumberModel):
        logger.info("%s", _of_number_model(config, inputs))
        return vocab
    answers = [row["answer"] for row in inputs.splits.train[:COVERAGE_ROWS]]
    coverage = vocab.coverage(inputs.tokenizer, answers)
    logger.info("%.1f%% of the digits in the answers are number tokens", 100 * coverage)
    has_number_loss = any(
        getattr(config.loss, term) is not None for term in NUMBER_TERMS
    )
    if (
        has_number_loss
        and not config.allow_low_coverage
        and not any(find_numbers(answer) for answer in answers)
    ):
        raise ConfigError(
            f"the first {len(answers)} training answers hold no number, so a number "
            "loss would see nothing: train with cross entropy alone (--loss.was None), "
            "or accept it with --allow-low-coverage."
        )
    if has_number_loss and coverage < LOWEST_COVERAGE and not config.allow_low_coverage:
        raise ConfigError(
            f"only {coverage:.1%} of the digits in the answers land on number tokens, "
            "so a number loss would see little of them: train with --split-digits or "
            "--number-policy numbers, or accept it with --allow-low-coverage."
        )
    return vocab


def _of_number_model(config: TrainConfig, inputs: Inputs) -> str:
    scale = inputs.scale
    how = f"numbers go through {scale.kind}"
    if scale.kind == "minmax5":
        how += f" ({scale.low:g} to -5, {scale.high:g} to 5)"
    if config.head == "numformer":
        return f"{how}; hidden tokens are learned by cross entropy, numbers by squares"
    return f"{how}; the head learns by squared error, in which --loss has no part"

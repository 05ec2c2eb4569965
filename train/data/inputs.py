"""Text made ready for the model: tokenizer, rows and ids."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from ntl_jax.models import AnyConfig
from ntl_jax.numbers.value_scales import ValueScale
from ntl_jax.tokenization import Tokenizer
from train.config import ConfigError, DataConfig, TrainConfig
from train.data import (
    Buckets,
    DataError,
    PackedDataset,
    Row,
    RowError,
    Splits,
    TokenizedDataset,
    load_splits,
    make_buckets,
    pack,
)
from train.data.row_checks import (
    count_long,
    count_numbers,
    count_unknown,
    positions_flag,
)
from train.heads import HEADS, head_of


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
        return HEADS[head].open_tokenizer(name, split_digits, number_tokens)
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
    head, splits = head_of(model), load_splits(config.data)
    for set_name, rows in splits.evaluation.items():
        count_numbers(set_name, rows)
    with naming("train", config.data):
        train, scale = head.encode_rows(splits.train, config, model, tokenizer, scale)
    evaluation = tokenized_sets(splits.evaluation, config, model, tokenizer, scale)
    sets = {"train": (splits.train, train)} | {
        name: (splits.evaluation[name], dataset) for name, dataset in evaluation.items()
    }
    count_unknown(sets, tokenizer)
    if head.writes_text:
        for set_name, dataset in evaluation.items():
            count_long(set_name, dataset, config.evaluation.max_new_tokens)
    if config.data.packing:
        packed = _packed(train, config, model)
        return Inputs(tokenizer, splits, packed, evaluation, None, scale)
    buckets = None
    if config.data.buckets > 1:
        buckets = make_buckets(train.lengths(), config.data.buckets)
    return Inputs(tokenizer, splits, train, evaluation, buckets, scale)


def _packed(
    train: TokenizedDataset, config: TrainConfig, model: AnyConfig
) -> PackedDataset:
    packed = pack(train, seed=config.data.seed, length=config.data.packed_length)
    length, most = packed.shape[0], model.longest_row
    if most is not None and length > most:
        raise ConfigError(
            f"packed rows have {length} tokens, more than the model's {most} "
            "positions: lower --data.packed-length, or set "
            f"{positions_flag(model)} {length}."
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
    lines = [f"{len(rows):,} training rows, {how} {lengths} tokens, {_truncated(rows)}"]
    for name, dataset in inputs.evaluation.items():
        if dataset.truncated_sources or dataset.truncated_targets:
            lines.append(f"{name}: of {len(dataset):,} rows {_truncated(dataset)}")
    return lines


def _truncated(rows: TokenizedDataset) -> str:
    cut = rows.truncated_sources, rows.truncated_targets
    return f"{cut[0]:,} questions and {cut[1]:,} answers truncated"


@contextlib.contextmanager
def naming(set_name: str, data: DataConfig) -> Iterator[None]:
    """Says of a row that is refused which set it is of, and of the user's own files
    which one."""
    try:
        yield
    except RowError as error:
        path = data.eval_file if set_name == "eval" else data.train_file
        kind = "training set" if set_name == "train" else f"evaluation set {set_name!r}"
        whose = f", of {path}" if path else ""
        raise DataError(f"{kind}{whose}: {error}") from error


def tokenized_sets(
    sets: Mapping[str, Sequence[Row]],
    config: TrainConfig,
    model: AnyConfig,
    tokenizer: Tokenizer,
    scale: ValueScale,
) -> dict[str, TokenizedDataset]:
    """Evaluation sets as `Head.encode_rows` encodes them.

    Raises:
        DataError: names the set and the row that the model cannot take.
    """
    datasets = {}
    for name, rows in sets.items():
        with naming(name, config.data):
            datasets[name], _ = head_of(model).encode_rows(
                rows, config, model, tokenizer, scale
            )
    return datasets

"""Describes a preset's data before training: `python -m train describe`."""

from collections.abc import Sequence

import numpy as np

from ntl_jax.tokenization import Tokenizer, XvalTokenizer
from train.config import TrainConfig
from train.config.validate import validate_data
from train.data import (
    Row,
    TokenizedDataset,
    load_splits,
    make_buckets,
    plan_rows,
    tokenize_rows,
)
from train.data.inputs import open_tokenizer, tokenizer_name
from train.data.masked import mask_rows
from train.data.number_tokens import COVERAGE_ROWS, number_vocab
from train.data.pipeline import GROUPED_STEPS, grouped_rows
from train.heads import HEADS

MOST_ROWS = 100_000
"""Of larger sets, this many evenly spaced rows are sampled."""
_UNCUT = 2**31 - 1  # tokens
_EXAMPLES = 3
_SHOWN = 400  # characters of a question or an answer
_BUCKETS = 4  # if the preset has none
_GROUPS = 16  # groups of steps to measure the padding of buckets on
_WITHHELD = ("rjokes", "multirc")  # their licences forbid republishing rows


def describe(config: TrainConfig) -> str:
    """Rows, lengths, truncation, numbers, padding and examples of a preset's data.

    Raises:
        ConfigError: the tokenizer is not found, or a run would refuse the data's
            fields.
        DataError: a file is missing or malformed.
    """
    validate_data(config)
    name = tokenizer_name(config)
    tokenizer = open_tokenizer(
        name, config.split_digits, config.number_tokens, config.head
    )
    splits = load_splits(config.data)
    sets = {"train": splits.train, **splits.evaluation}
    data = {key: _tokenized(rows, config, tokenizer) for key, rows in sets.items()}
    digits = "digits split" if config.split_digits else "digits as they come"
    parts = [
        [f"{config.name}: {config.data.name}, tokenizer {name}, {digits}"],
        _table(_rows(sets)),
        _table(_lengths(data, config)),
        _numbers(config, tokenizer, sets["train"], data["train"]),
        _table(
            _padding(
                _as_trained(sets["train"], data["train"], config, tokenizer), config
            )
        ),
        _examples(config, splits.train),
    ]
    return "\n\n".join("\n".join(part) for part in parts)


def _sampled(rows: Sequence[Row]) -> Sequence[Row]:
    if len(rows) <= MOST_ROWS:
        return rows
    chosen = np.linspace(0, len(rows) - 1, MOST_ROWS).astype(np.int64)
    return [rows[row] for row in chosen.tolist()]


def _tokenized(
    rows: Sequence[Row], config: TrainConfig, tokenizer: Tokenizer
) -> TokenizedDataset:
    """Rows as ids, untruncated."""
    return tokenize_rows(
        _sampled(rows),
        tokenizer,
        max_source_length=_UNCUT,
        max_target_length=_UNCUT,
        separator=config.data.separator if config.model.decoder_only else None,
    )


def _rows(sets: dict[str, Sequence[Row]]) -> list[list[str]]:
    notes = [
        f"{MOST_ROWS:,} of them below" if len(rows) > MOST_ROWS else ""
        for rows in sets.values()
    ]
    return [["split", "rows", ""]] + [
        [name, f"{len(rows):,}", note]
        for (name, rows), note in zip(sets.items(), notes, strict=True)
    ]


def _lengths(data: dict[str, TokenizedDataset], config: TrainConfig) -> list[list[str]]:
    """Mean, percentiles and truncation of both sides of every set."""
    limits = config.data.max_source_length, config.data.max_target_length
    table = [["tokens", "mean", "50%", "90%", "99%", "longest", "limit", "cut"]]
    for name, dataset in data.items():
        sides = (dataset.sources, dataset.targets)
        for side, ragged, limit in zip(
            ("source", "target"), sides, limits, strict=True
        ):
            sizes = np.diff(ragged.offsets)
            points = np.percentile(sizes, (50, 90, 99, 100), method="higher")
            cut = (sizes > limit).sum()
            table.append(
                [f"{name} {side}", f"{sizes.mean():.1f}"]
                + [f"{point:,}" for point in points]
                + [f"{limit:,}", f"{cut:,} ({cut / len(sizes):.1%})"]
            )
    return table


def _numbers(
    config: TrainConfig,
    tokenizer: Tokenizer,
    rows: Sequence[Row],
    dataset: TokenizedDataset,
) -> list[str]:
    """The fraction of the answers that number losses see."""
    if isinstance(tokenizer, XvalTokenizer):
        sides = (dataset.sources, dataset.targets)
        asked, answered = ((s.values == tokenizer.num_id).mean() for s in sides)
        return [
            f"each number is one token, [NUM], with its value: {asked:.1%} of source "
            f"and {answered:.1%} of target tokens"
        ]
    columns = max(config.model.vocab_size, len(tokenizer))
    try:
        vocab = number_vocab(tokenizer, columns, config.number_policy)
    except ValueError as error:
        return [f"no number tokens: {error}"]
    shares = [
        np.isin(side.values, vocab.token_ids).mean()
        for side in (dataset.sources, dataset.targets)
    ]
    answers = [row["answer"] for row in rows[:COVERAGE_ROWS]]
    covered = vocab.coverage(tokenizer, answers)
    longest = config.data.max_target_length
    seen = vocab.coverage(tokenizer, answers, max_length=longest)
    cut = f", {seen:.1%} of those that {longest} tokens keep" if seen < covered else ""
    return [
        f"{len(vocab)} number tokens ({config.number_policy}): {shares[0]:.1%} of "
        f"source and {shares[1]:.1%} of target tokens",
        f"coverage: {covered:.1%} of the digits of the first {len(answers):,} answers "
        f"are number tokens{cut}",
    ]


def _as_trained(
    rows: Sequence[Row],
    dataset: TokenizedDataset,
    config: TrainConfig,
    tokenizer: Tokenizer,
) -> np.ndarray:
    """Tokens of each row in training, both sides truncated: [N, 2], or [N, 1] if
    question and answer share a row."""
    limits = config.data.max_source_length, config.data.max_target_length
    if isinstance(tokenizer, XvalTokenizer):
        return mask_rows(
            _sampled(rows),
            tokenizer,
            max_source_length=limits[0],
            max_target_length=limits[1],
        ).lengths()
    sides = [np.diff(side.offsets) for side in (dataset.sources, dataset.targets)]
    cut = np.minimum(np.stack(sides, axis=1), limits)
    return cut.sum(axis=1, keepdims=True) if config.model.decoder_only else cut


def _padding(lengths: np.ndarray, config: TrainConfig) -> list[list[str]]:
    """The fraction of padding in batches: to the longest row, in buckets, packed."""
    data = config.data
    one = make_buckets(lengths, 1).lengths[0]
    table = [["training batches", "length", "padding", "rows per row"]]
    table.append(
        ["padded", _shape(one), f"{1 - lengths.mean(0).sum() / one.sum():.1%}"]
    )

    count = data.buckets if data.buckets > 1 else _BUCKETS
    buckets = make_buckets(lengths, count)
    real = padded = 0
    for group in range(
        min(_GROUPS, 1 + len(lengths) // (GROUPED_STEPS * data.batch_size))
    ):
        for rows in grouped_rows(
            group, batch_size=data.batch_size, ranks=buckets.ranks, seed=data.seed
        ):
            real += lengths[rows].sum()
            padded += len(rows) * sum(buckets.fitting(lengths[rows]))
    shapes = ", ".join(map(_shape, buckets.lengths))
    table.append([f"--data.buckets {count}", shapes, f"{1 - real / padded:.1%}"])

    if HEADS[config.head].writes_text:  # other heads take no packed rows
        plan, shape = plan_rows(lengths, seed=data.seed, length=data.packed_length)
        padding = 1 - lengths.sum() / (len(plan) * sum(shape))
        each = f"{len(lengths) / len(plan):.2f}"
        table.append(["--data.packing", _shape(shape), f"{padding:.1%}", each])
    return [row + ["1"] * (4 - len(row)) for row in table]


def _shape(lengths: Sequence[int] | np.ndarray) -> str:
    return "+".join(str(length) for length in lengths)


def _examples(config: TrainConfig, rows: Sequence[Row]) -> list[str]:
    data = config.data
    names = [data.name, data.train_file or "", data.raw_dir or ""]
    for withheld in _WITHHELD:
        if any(withheld in name.lower() for name in names):
            return [
                f"examples: withheld, the licence of {withheld} forbids showing rows"
            ]
    lines = []
    for row in rows[:_EXAMPLES]:
        lines += [
            f"source: {_short(row['question'])}",
            f"target: {_short(row['answer'])}",
        ]
    return lines


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + " ...")


def _table(rows: list[list[str]]) -> list[str]:
    """Aligned columns, the first one to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *rest in rows:
        cells = [
            f"{cell:>{width}}" for cell, width in zip(rest, widths[1:], strict=True)
        ]
        lines.append("  ".join([f"{first:<{widths[0]}}", *cells]).rstrip())
    return lines

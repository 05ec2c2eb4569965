"""Times the data pipeline on the host: tokenising, planning, batches a second.

Run as ``python -m tests.benchmarks.pipeline --tokenizer FOLDER``, the folder of T5's
tokenizer, which GSM8K is read with. Prints markdown.
"""

import argparse
import contextlib
import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

from absl import flags

from train.config import TrainConfig
from train.config.presets import load_preset
from train.data import load_splits, make_buckets, pack, tokenize_rows, train_batches
from train.data.inputs import open_tokenizer

PRESETS = ("gsm8k-t5-small", "arithmetic-t5-tiny", "gpt2-multiplication")
ROUNDS = 5
ROWS = 100_000  # the most that are tokenised
BUCKETS = 4


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    """What a function returns, and the median seconds it takes."""
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        result = function()
        seconds.append(time.perf_counter() - start)
    return result, statistics.median(seconds)


def batch_rate(rows, config: TrainConfig, steps: int, **options) -> list[str]:
    """Batches and tokens a second as training takes them, and what padding is left."""
    size = config.data.batch_size
    stream = train_batches(rows, batch_size=size, seed=0, **options)
    with contextlib.closing(stream):
        list(itertools.islice(stream, 8))  # what the threads have read ahead
        batches, seconds = timed(lambda: list(itertools.islice(stream, steps)))
    real = sum(rows.count_tokens(batch) for batch in batches)
    causal = config.model.decoder_only
    room = sum(
        batch["input_ids"].size + (0 if causal else batch["labels"].size)
        for batch in batches
    )
    rate = steps / seconds
    return [f"{rate:,.0f}", f"{real / seconds / 1e6:.1f}", f"{1 - real / room:.1%}"]


def measure(config: TrainConfig, steps: int) -> tuple[list[str], list[list[str]]]:
    """A line on tokenising and planning, and one for every way to make batches."""
    data = config.data
    tokenizer = open_tokenizer(config.tokenizer, config.split_digits)
    rows = load_splits(data).train[:ROWS]
    separator = data.separator if config.model.decoder_only else None
    dataset, seconds = timed(
        lambda: tokenize_rows(
            rows,
            tokenizer,
            max_source_length=data.max_source_length,
            max_target_length=data.max_target_length,
            separator=separator,
        )
    )
    tokens = len(dataset.sources.values) + len(dataset.targets.values)
    buckets, choosing = timed(lambda: make_buckets(dataset.lengths(), BUCKETS))
    packed, planning = timed(lambda: pack(dataset, seed=0))
    lines = [
        ["padded", *batch_rate(dataset, config, steps)],
        [
            f"{len(buckets.lengths)} buckets",
            *batch_rate(dataset, config, steps, buckets=buckets),
        ],
        ["packed", *batch_rate(packed, config, steps)],
    ]
    once = [
        f"{len(rows):,}",
        f"{len(rows) / seconds:,.0f}",
        f"{tokens / seconds / 1e6:.2f}",
        f"{choosing * 1e3:.0f}",
        f"{planning * 1e3:.0f}",
    ]
    return [config.name, *once], [[config.name, *line] for line in lines]


def table(head: list[str], lines: list[list[str]]) -> str:
    """A markdown table."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--steps", type=int, default=256)
    arguments = parser.parse_args()
    flags.FLAGS.mark_as_parsed()
    once, rates = [], []
    for preset in PRESETS:
        config = load_preset(preset)[0]
        if config.tokenizer != "builtin":
            config = dataclasses.replace(config, tokenizer=arguments.tokenizer)
        line, lines = measure(config, arguments.steps)
        once.append(line)
        rates += lines
    head = ["preset", "rows", "rows/s", "M tokens/s", "buckets [ms]", "plan [ms]"]
    print(table(head, once), end="\n\n")
    print(table(["preset", "batches", "batches/s", "M tokens/s", "padding"], rates))


if __name__ == "__main__":
    main()

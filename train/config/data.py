"""The data of a run: each field is a flag, `--data.field`."""

import dataclasses
from typing import Annotated, Literal

from train.config.ranges import FRACTION, NOT_NEGATIVE, SIZE, Range


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """The questions to train and evaluate on."""

    name: Literal[
        "arithmetic",
        "multiplication",
        "three_digits",
        "mathematics",
        "gsm8k",
        "rjokes",
        "multirc",
        "jsonl",
        "tsv",
    ] = "arithmetic"
    """arithmetic: generated questions in words; multiplication: generated products,
    12*345=4140; three_digits: all products of two numbers of three digits, in words;
    mathematics: DeepMind's dataset; gsm8k: grade-school word problems; rjokes: how
    funny a joke is, 0 to 11; multirc: questions about a passage, answers in words;
    jsonl, tsv: your own files."""
    raw_dir: str | None = None
    """Folder of raw files (default: $NTL_DATA_DIR; without either, downloaded)."""
    subset: Literal["paper", "arithmetic"] | None = None
    """mathematics: the paper's 13 and 7 modules, or its sums of several terms, with the
    paper's validation rows; replaces modules and difficulties."""
    generate: bool = False
    """mathematics: generate the questions, in the dataset's words, without files."""
    modules: tuple[str, ...] = ("arithmetic__add_sub_multiple",)
    """mathematics: the modules to train on and to evaluate by interpolation."""
    extrapolation_modules: tuple[str, ...] = ("arithmetic__add_sub_multiple_longer",)
    """mathematics: the modules to evaluate by extrapolation."""
    difficulties: tuple[str, ...] = ("train-easy", "train-medium", "train-hard")
    """mathematics: the training folders."""
    train_split: Literal["train", "dev"] = "train"
    """rjokes: the split to train on; the later ones are evaluated on."""
    paper_form: bool = False
    """gsm8k, multirc, three_digits: rows as the paper's code made them, with its
    faults: numbers damaged by the clean-up, the question after the passage, test
    products that training shows in the other order."""
    bad_rows: Literal["error", "skip"] = "error"
    """Files: a malformed row ends the run, or is left out, counted and reported."""
    train_file: str | None = None
    """jsonl: one {"question": ..., "answer": ...} per line; tsv: question, tab, answer,
    or columns named in the first line."""
    eval_file: str | None = None
    """jsonl, tsv: held-out rows; without it no evaluation by generation."""
    train_size: Annotated[int | None, SIZE] = None
    """Train on this many rows (any number if they are generated); None takes all."""
    eval_size: Annotated[int | None, SIZE] = None
    """Evaluate on the first rows of each evaluation set, this many (mathematics: the
    first of each module, this many in total); None takes all."""
    validation_fraction: Annotated[float, FRACTION] = 0.0
    """gsm8k, jsonl, tsv: this fraction of the training rows becomes the evaluation set
    "validation" (the paper: 0.15 of GSM8K)."""
    max_operand: int = 99
    """arithmetic: operands are 0..max_operand; extrapolation goes beyond."""
    digits: Annotated[int, Range(1, 9)] = 5
    """multiplication: operands have 1..digits digits; extrapolation goes one beyond."""
    seed: Annotated[int, NOT_NEGATIVE] = 0
    """Seed of the generation and shuffling of the data."""
    batch_size: Annotated[int, SIZE] = 32
    """Questions per step, over all devices."""
    max_source_length: Annotated[int, SIZE] = 512
    """Longer questions are truncated, and counted [tokens]."""
    max_target_length: Annotated[int, SIZE] = 512
    """Longer answers are truncated, and counted [tokens]."""
    separator: str = "\n"
    """Decoder-only models: what stands between a question and its answer."""
    packing: bool = False
    """Pack several questions into a row, none split and none attending to another;
    batch_size then counts packed rows."""
    packed_length: Annotated[int | None, SIZE] = None
    """packing: tokens per row, question and answer together, unless padding takes
    fewer; None: as many as the longest question and answer have."""
    buckets: Annotated[int, Range(1, 65)] = 1
    """Pad batches to one of at most this many lengths, each compiled once, and batch
    rows of similar length together; 1 pads all to the longest row."""

"""Frozen dataclasses that describe a run; every field is a command-line flag."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Which questions to train and evaluate on."""

    name: Literal["arithmetic", "mathematics", "gsm8k", "jsonl"] = "arithmetic"
    """arithmetic: generated questions in words; mathematics: DeepMind's dataset;
    gsm8k: grade-school word problems; jsonl: your own files."""
    raw_dir: str | None = None
    """Folder of raw files (default: $NTL_DATA_DIR; without either, downloaded)."""
    modules: tuple[str, ...] = ("arithmetic__add_sub_multiple",)
    """mathematics: the modules to train on and to evaluate by interpolation."""
    extrapolation_modules: tuple[str, ...] = ("arithmetic__add_sub_multiple_longer",)
    """mathematics: the modules to evaluate by extrapolation."""
    difficulties: tuple[str, ...] = ("train-easy", "train-medium", "train-hard")
    """mathematics: the training folders."""
    train_file: str | None = None
    """jsonl: one {"question": ..., "answer": ...} a line."""
    eval_file: str | None = None
    """jsonl: held-out rows; without it no evaluation by generation."""
    train_size: int | None = None
    """Train on this many rows (arithmetic generates them); None takes all."""
    eval_size: int | None = None
    """Evaluate on so many rows of each evaluation set, its first ones (mathematics:
    of each module); None takes all."""
    validation_fraction: float = 0.0
    """gsm8k, jsonl: this share of the training rows is held out as the evaluation set
    "validation" (the paper: 0.15 of GSM8K)."""
    max_operand: int = 99
    """arithmetic: operands are 0..max_operand; extrapolation goes beyond."""
    seed: int = 0
    """Generation and shuffling of the data."""
    batch_size: int = 32
    """Questions a step, over all devices."""
    max_source_length: int = 512
    """Longer questions are truncated, and counted [tokens]."""
    max_target_length: int = 512
    """Longer answers are truncated, and counted [tokens]."""

"""Questions and answers: where they come from, and how they reach the model."""

import dataclasses
from collections.abc import Sequence

from train.config import DataConfig
from train.data.pipeline import eval_batches as eval_batches
from train.data.pipeline import train_batches as train_batches
from train.data.sources import DataError as DataError
from train.data.sources import Row as Row
from train.data.sources import arithmetic_questions
from train.data.transforms import TokenizedDataset as TokenizedDataset
from train.data.transforms import tokenize_rows as tokenize_rows

_ARITHMETIC_TRAIN = 100_000
_ARITHMETIC_EVAL = 1_000


@dataclasses.dataclass(frozen=True)
class Splits:
    """What to train on, and what to evaluate on by name."""

    train: Sequence[Row]
    evaluation: dict[str, Sequence[Row]]


def load_splits(data: DataConfig) -> Splits:
    """Loads or generates the rows that a config names."""
    n_train = _ARITHMETIC_TRAIN if data.train_size is None else data.train_size
    n_eval = _ARITHMETIC_EVAL if data.eval_size is None else data.eval_size
    sets: dict[str, Sequence[Row]] = {
        split: arithmetic_questions(
            n_train if split == "train" else n_eval,
            seed=data.seed,
            max_operand=data.max_operand,
            split=split,
        )
        for split in ("train", "interpolation", "extrapolation")
    }
    return Splits(sets.pop("train"), sets)

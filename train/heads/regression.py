"""Runs whose model answers with a number: their data, their loss, their answers."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Array, Float32

from ntl_jax.losses import Term
from ntl_jax.losses.number_heads import squared_error
from ntl_jax.numbers.grammar import last_number
from ntl_jax.numbers.value_scales import ValueScale
from train.data import Row, RowError, TokenizedDataset
from train.data.rows import named_answer
from train.data.transforms import Batch


@dataclasses.dataclass(frozen=True, eq=False)
class NumberDataset(TokenizedDataset):
    """Questions and answers whose batches hold the answers' numbers too.

    Args:
        numbers: f32[N], the last number of each answer, scaled.
    """

    numbers: np.ndarray

    def batch(self, rows: np.ndarray, lengths: Sequence[int] | None = None) -> Batch:
        """As `TokenizedDataset.batch`, with ``targets`` f32[B]."""
        return super().batch(rows, lengths) | {"targets": self.numbers[rows]}


def with_numbers(
    dataset: TokenizedDataset, rows: Sequence[Row], scale: ValueScale
) -> NumberDataset:
    """The dataset with the last number of each answer, as the head learns it.

    Args:
        dataset: the tokenised rows.
        rows: the same rows as text.
        scale: what the numbers go through.

    Raises:
        RowError: an answer holds no number, or none that float32 holds.
    """
    numbers = last_numbers(rows)
    with np.errstate(over="ignore"):  # named below
        scaled = scale.apply(numbers).astype(np.float32)
    if not np.isfinite(scaled).all():
        place = int(np.argmin(np.isfinite(scaled)))
        raise RowError(
            f"{named_answer(rows, place + 1)} ends with a number that float32 does not "
            "hold: "
            + (
                "set --value-scale log1p"
                if np.isfinite(numbers[place])
                else "leave the row out, or set --head lm"
            )
        )
    fields = {f.name: getattr(dataset, f.name) for f in dataclasses.fields(dataset)}
    return NumberDataset(**fields, numbers=scaled)


def last_numbers(rows: Sequence[Row]) -> np.ndarray:
    """The last number of each answer, f64[N]; infinite beyond 1.8e308.

    Raises:
        RowError: an answer holds no number.
    """
    numbers = np.empty(len(rows), np.float64)
    for place, row in enumerate(rows):
        number = last_number(row["answer"], fractions=True)
        if number is None:
            raise RowError(
                f"{named_answer(rows, place + 1)} holds no number, which a regression "
                "head learns from: leave the row out, or set --head lm"
            )
        try:
            numbers[place] = float(number)
        except OverflowError:  # of a fraction; a decimal becomes infinite
            numbers[place] = np.inf if number > 0 else -np.inf
    return numbers


def number_terms(
    answer: Callable[..., Float32[Array, "B"]], batch: dict[str, Any]
) -> tuple[Float32[Array, "B"], dict[str, Term]]:
    """Predicted numbers, and the squared error as sum and count.

    Args:
        answer: the model, given all but ids.
        batch: input_ids and targets; weights where rows only fill up.
    """
    predictions = answer(batch["input_ids"])
    term = squared_error(predictions, batch["targets"], weights=batch.get("weights"))
    return predictions, {"squared_error": term}


def written(predictions: np.ndarray, scale: ValueScale) -> list[str]:
    """Predicted numbers as text, in the fewest digits that tell them apart.

    One that is not finite is written as no number, so that it counts as no answer.

    >>> written(np.array([1.5, -2.25, np.nan], np.float32), ValueScale("none"))
    ['1.5', '-2.25', '']
    """
    with np.errstate(over="ignore"):
        numbers = scale.invert(np.asarray(predictions)).astype(np.float32)
    return [
        np.format_float_positional(number, trim="-") if np.isfinite(number) else ""
        for number in numbers
    ]

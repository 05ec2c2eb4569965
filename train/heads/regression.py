"""A regression head: the model answers with one number per question."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int

from ntl_jax.hf import load_checkpoint
from ntl_jax.losses.number_heads import squared_error
from ntl_jax.models import AnyConfig, T5RegressionConfig, bind, regression_from_t5
from ntl_jax.numbers.grammar import last_number
from ntl_jax.numbers.value_scales import ValueScale
from ntl_jax.tokenization import Tokenizer
from train.config import ConfigError, TrainConfig
from train.data import Row, RowError, TokenizedDataset
from train.data.rows import named_answer
from train.data.transforms import Batch as HostBatch
from train.evaluation.trained import TrainedModel
from train.heads.base import Batch, Counts, Terms
from train.heads.lm import encode_texts
from train.heads.number import NumberHead, fitted, written
from train.state import Params, Task


class RegressionHead(NumberHead):
    """The last number of each answer, learned by squared error."""

    loss_description = "the head learns by squared error, in which --loss has no part"

    def fit_model(self, model: AnyConfig, tokenizer: Tokenizer) -> AnyConfig:
        """The model with a regression head in the place of its own."""
        if model.head == "regression":
            return model
        try:
            return T5RegressionConfig.from_t5(model)
        except TypeError as error:
            raise ConfigError(f"--head regression: {error}.") from error

    def encode_rows(
        self,
        rows: Sequence[Row],
        config: TrainConfig,
        model: AnyConfig,
        tokenizer: Tokenizer,
        scale: ValueScale | None,
    ) -> tuple[TokenizedDataset, ValueScale]:
        """Rows as ids, with the answers' numbers."""
        scale = scale or fitted(config, last_numbers(rows))
        dataset = encode_texts(rows, config, model, tokenizer)
        return with_numbers(dataset, rows, scale), scale

    def load_params(self, source: str, task: Task) -> Params:
        """A checkpoint's weights with its own head or, of a T5, a fresh one."""
        body, params = load_checkpoint(
            source, vocab_size=task.model.vocab_size, new_tokens="mean"
        )
        if body.head == "regression":
            return params
        key = jax.random.key(task.config.seed)
        return regression_from_t5(body, params, key)[1]

    def counts(self, task: Task, batch: Batch) -> Counts:
        """How many numbers there are."""
        return {"squared_error": jnp.float32(len(batch["targets"]))}

    def terms(
        self,
        model: Any,
        params: Params,
        batch: Batch,
        dropout_key: jax.Array | None = None,
        row_offset: Int[Array, "B"] | int = 0,
    ) -> tuple[Float32[Array, "B"], Terms]:
        """Predicted numbers, and ``squared_error``."""
        predictions = bind(model, params)(
            batch["input_ids"],
            attention_mask=batch["attention_mask"],
            dropout_key=dropout_key,
            row_offset=row_offset,
        )
        weights = batch.get("weights")
        term = squared_error(predictions, batch["targets"], weights=weights)
        return predictions, {"squared_error": term}

    def answer(self, trained: TrainedModel, question: str) -> str:
        """The number that answers a question."""
        ids = jnp.asarray([trained.encode(question)], jnp.int32)  # [1, S]
        return written(np.asarray(trained.outputs(ids)), trained.scale)[0]


@dataclasses.dataclass(frozen=True, eq=False)
class NumberDataset(TokenizedDataset):
    """Questions and answers whose batches hold the answers' numbers too.

    Args:
        numbers: f32[N], the last number of each answer, scaled.
    """

    numbers: np.ndarray

    def batch(
        self, rows: np.ndarray, lengths: Sequence[int] | None = None
    ) -> HostBatch:
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

"""The Numformer's heads, which fill in masked tokens and numbers."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int

from ntl_jax.losses.number_heads import xval_loss
from ntl_jax.models import AnyConfig, NumformerConfig, bind
from ntl_jax.numbers.value_scales import ValueScale
from ntl_jax.tokenization import Tokenizer, XvalTokenizer, load_tokenizer
from train.config import ConfigError, TrainConfig
from train.data import MaskedDataset, Row, TokenizedDataset, mask_rows
from train.data.masked import question_row
from train.evaluation.trained import TrainedModel
from train.heads.base import Batch, Counts, Terms
from train.heads.number import NumberHead, fitted, written
from train.state import Params, Task


class NumformerHead(NumberHead):
    """Masked tokens, learned by cross entropy, and masked numbers, by squared error."""

    loss_description = "hidden tokens are learned by cross entropy, numbers by squares"

    def open_tokenizer(
        self, name: str, split_digits: bool, number_tokens: str
    ) -> XvalTokenizer:
        """A tokenizer to which every number is one token, with its value."""
        return XvalTokenizer(load_tokenizer(name))

    def text_tokenizer(self, tokenizer: Any) -> Tokenizer:
        """The tokenizer below, which writes numbers in digits."""
        return tokenizer.base

    def adds_tokens(self, config: TrainConfig) -> bool:
        """[NUM] and the mask are new to every model."""
        return True

    def fit_model(self, model: AnyConfig, tokenizer: Any) -> NumformerConfig:
        """A Numformer of the model's sizes."""
        try:
            return NumformerConfig.from_sizes_of(model, num_id=tokenizer.num_id)
        except TypeError as error:
            raise ConfigError(f"--head numformer: {error}.") from error
        except ValueError as error:
            raise ConfigError(
                f"--head numformer, sizes of --model: {error}."
            ) from error

    def encode_rows(
        self,
        rows: Sequence[Row],
        config: TrainConfig,
        model: AnyConfig,
        tokenizer: Any,
        scale: ValueScale | None,
    ) -> tuple[TokenizedDataset, ValueScale]:
        """Questions with their answers, as ids and values."""
        dataset = mask_rows(
            rows,
            tokenizer,
            max_source_length=config.data.max_source_length,
            max_target_length=config.data.max_target_length,
            rate=config.mask_rate,
        )
        _check_length(dataset, model)
        scale = scale or fitted(config, dataset.numbers())
        return dataclasses.replace(dataset, scale=scale), scale

    def counts(self, task: Task, batch: Batch) -> Counts:
        """How many tokens are hidden, and how many numbers."""
        labels, model = batch["labels"], task.model
        assert isinstance(model, NumformerConfig)
        return {
            "ce": jnp.sum(labels != -100, dtype=jnp.float32),
            "squared_error": jnp.sum(labels == model.num_id, dtype=jnp.float32),
        }

    def terms(
        self,
        model: Any,
        params: Params,
        batch: Batch,
        dropout_key: jax.Array | None = None,
        row_offset: Int[Array, "B"] | int = 0,
    ) -> tuple[Float32[Array, "B"], Terms]:
        """What is filled in, and xVal's two losses.

        Returns:
            The number predicted where a row's one hidden number was (of several, their
            sum), scaled as the values are; and ``ce`` of the hidden tokens [nats] and
            ``squared_error`` of the hidden numbers.
        """
        output = bind(model, params)(
            batch["input_ids"],
            batch["input_values"],
            attention_mask=batch["attention_mask"],
            dropout_key=dropout_key,
            row_offset=row_offset,
        )
        labels, weights = batch["labels"], batch.get("weights")
        if weights is not None:
            weights = jnp.broadcast_to(weights[:, None], labels.shape)
        terms = xval_loss(
            output.logits,
            output.numbers,
            labels,
            batch["label_values"],
            num_id=model.num_id,
            weights=weights,
        )
        hidden = labels == jnp.asarray(model.num_id, labels.dtype)
        numbers = jnp.sum(jnp.where(hidden, output.numbers, 0.0), axis=1)
        return numbers, {"ce": terms.ce, "squared_error": terms.mse}

    def answer(self, trained: TrainedModel, question: str) -> str:
        """What is filled in behind a question."""
        model: Any = trained.model
        tokenizer: Any = trained.tokenizer
        row = question_row(question, tokenizer)
        if len(row.ids) > model.max_positions:
            raise ConfigError(
                f"the question takes {len(row.ids)} tokens with its answer, and the "
                f"model has {model.max_positions} positions: shorten it."
            )
        ids = np.asarray([row.ids], np.int32)
        values = trained.scale.apply(np.asarray([row.values]))
        values = np.where(ids == model.num_id, values, 1.0).astype(np.float32)
        output = trained.outputs(jnp.asarray(ids), jnp.asarray(values))
        asked = np.asarray([row.labels]) == model.num_id
        return written(np.asarray(output.numbers)[asked], trained.scale)[0]


def _check_length(dataset: MaskedDataset, model: AnyConfig) -> None:
    """ConfigError where the model has no position for the last token of a row."""
    (length,), most = dataset.shape, model.longest_row
    if most is not None and length > most:
        raise ConfigError(
            f"questions with their answers take up to {length} tokens, more than the "
            f"model's {most} positions: lower --data.max-source-length or "
            "--data.max-target-length."
        )

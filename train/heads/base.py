"""What every head has: rows, losses, evaluation and answers, one way to each."""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from jaxtyping import Array, Float32, Int

from ntl_jax.hf import load_params
from ntl_jax.losses import Term
from ntl_jax.models import AnyConfig
from ntl_jax.numbers.value_scales import ValueScale
from ntl_jax.tokenization import (
    RegressionTransformerTokenizer,
    Tokenizer,
    load_tokenizer,
)
from train.config import TrainConfig
from train.data import Row, TokenizedDataset
from train.evaluation.trained import TrainedModel
from train.state import Params, Task, state_shardings

Batch = dict[str, jax.Array]
"""input_ids i32 [B, S], attention_mask bool [B, S], labels i32 [B, T], S = T for a
decoder-only model. Where several texts share a row also segment_ids i32 [B, S], and for
an encoder-decoder target_segment_ids i32 [B, T]; for a regression head targets f32 [B];
for a Numformer input_values and label_values f32 [B, S], S = T.
In evaluation also weights f32 [B], 0 for the rows that only fill up the last batch, and
for a decoder-only model prompt_ids and prompt_mask [B, P]."""

Counts = dict[str, Float32[Array, ""]]
Terms = dict[str, Term]
Total = Float32[Array, ""]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class EvalOutputs:
    """What evaluation learns of one batch, the right answers being fed."""

    terms: Terms  # sums and counts: add them up, divide once
    number_logits: jax.Array  # f32 [B, T, K]; K = 0 beyond MAX_DISTRIBUTION
    number_rows: jax.Array  # i32 [B, T]: row of the label's token, -1 if no number
    predictions: jax.Array | None = None  # f32 [B], of models that answer so, scaled


class Head(abc.ABC):
    """What answers a question: text, a number, or numbers filled into a text."""

    writes_text: bool

    # -------------------------------------------------------- the model and its rows

    def open_tokenizer(
        self, name: str, split_digits: bool, number_tokens: str
    ) -> Tokenizer:
        """What texts are read with; ValueError where it cannot be had."""
        if number_tokens == "places":
            return RegressionTransformerTokenizer(load_tokenizer(name))
        return load_tokenizer(name, split_digits=split_digits)

    def text_tokenizer(self, tokenizer: Tokenizer) -> Tokenizer:
        """What answers are written with."""
        return tokenizer

    def adds_tokens(self, config: TrainConfig) -> bool:
        """Whether the tokenizer has tokens that no pretrained model knows."""
        return config.number_tokens == "places"

    @abc.abstractmethod
    def fit_model(self, model: AnyConfig, tokenizer: Tokenizer) -> AnyConfig:
        """The model under this head; ConfigError where its family has none such.

        Args:
            model: the model's config, with a row for every token.
            tokenizer: what its texts are read with.
        """

    @abc.abstractmethod
    def encode_rows(
        self,
        rows: Sequence[Row],
        config: TrainConfig,
        model: AnyConfig,
        tokenizer: Tokenizer,
        scale: ValueScale | None,
    ) -> tuple[TokenizedDataset, ValueScale]:
        """Rows as ids, and what their numbers went through.

        Args:
            rows: questions and answers.
            config: the run's.
            model: the model's config.
            tokenizer: what the rows are read with.
            scale: None fits the run's to these rows.

        Raises:
            ConfigError: the model has no position for the last token of a row.
            RowError: a row that the head cannot learn from.
        """

    def load_params(self, source: str, task: Task) -> Params:
        """A checkpoint's weights, read into the shards of the task's mesh.

        Raises:
            ValueError: they are not those of the model.
            OSError: they cannot be read.
        """
        shardings = state_shardings(task).params
        return load_params(source, task.model, shardings=shardings, new_tokens="mean")

    def describe_numbers(self, scale: ValueScale) -> str | None:
        """How numbers are learned, in a line; None where they are tokens."""
        return None

    # -------------------------------------------------------- losses

    @abc.abstractmethod
    def counts(self, task: Task, batch: Batch) -> Counts:
        """What the sums of a whole batch, without weights, are divided by."""

    @abc.abstractmethod
    def total_and_terms(
        self,
        task: Task,
        params: Params,
        batch: Batch,
        dropout_key: jax.Array | None,
        row_offset: Int[Array, "B"] | int,
        counts: Counts | None,
    ) -> tuple[Total, Terms]:
        """The objective of a batch, or a part's share of it where counts are given.

        Args:
            task: static.
            params: the parameters.
            batch: see `Batch`.
            dropout_key: None for no dropout.
            row_offset: what to add to a row's place for its number in the whole batch.
            counts: of the whole batch; None where this is it.
        """

    @abc.abstractmethod
    def evaluate(self, task: Task, params: Params, batch: Batch) -> EvalOutputs:
        """Teacher-forced sums of every loss term of one batch, and its predictions."""

    @abc.abstractmethod
    def evaluation_loss(self, task: Task, terms: Any) -> float:
        """The loss that an evaluation's terms add up to."""

    # -------------------------------------------------------- answers

    @abc.abstractmethod
    def predictions(
        self,
        task: Task,
        params: Params,
        batch: Batch,
        outputs: EvalOutputs,
        tokenizer: Tokenizer,
    ) -> list[list[int]]:
        """The ids of every row's answer, without what follows end-of-sequence.

        Args:
            task: static.
            params: the parameters.
            batch: see `Batch`.
            outputs: what `evaluate` gave for it.
            tokenizer: what answers are written with.
        """

    @abc.abstractmethod
    def answer(self, trained: TrainedModel, question: str) -> str:
        """The answer to a question, as a printable report."""

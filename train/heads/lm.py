"""The language-model head: answers are text, written token by token."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from ntl_jax.generate import generate, greedy, number_distributions
from ntl_jax.losses import (
    Objective,
    Term,
    objective_from_hidden,
    stats_from_hidden,
    stats_from_logits,
)
from ntl_jax.models import AnyConfig, RegressionTransformerConfig
from ntl_jax.numbers.value_scales import ValueScale
from ntl_jax.sharding.mesh import data_shards
from ntl_jax.tokenization import RegressionTransformerTokenizer, Tokenizer
from train.config import ConfigError, TrainConfig
from train.data import Row, TokenizedDataset, tokenize_rows
from train.data.row_checks import check_length
from train.evaluation.trained import TrainedModel
from train.heads.base import Batch, Counts, EvalOutputs, Head, Terms, Total
from train.heads.teacher_forcing import answer_hidden, answer_labels, label_segments
from train.multihost.hosts import gathered
from train.state import Params, Task

TILE_TOKENS = 4096
"""Tokens whose logits a device computes at a time, under a fused head."""
MAX_DISTRIBUTION = 100
"""Largest K for which evaluation keeps the distributions over number tokens."""


class LanguageHead(Head):
    """Text, with number-token losses beside cross entropy."""

    writes_text = True

    def fit_model(self, model: AnyConfig, tokenizer: Tokenizer) -> AnyConfig:
        """The model; with number encodings where tokens have places."""
        if not isinstance(tokenizer, RegressionTransformerTokenizer):
            return model
        first = tokenizer.first_number_id
        try:
            return RegressionTransformerConfig.from_t5(model, first_number_id=first)
        except TypeError as error:
            raise ConfigError(f"--number-tokens places: {error}.") from error

    def encode_rows(
        self,
        rows: Sequence[Row],
        config: TrainConfig,
        model: AnyConfig,
        tokenizer: Tokenizer,
        scale: ValueScale | None,
    ) -> tuple[TokenizedDataset, ValueScale]:
        """Rows as ids; their numbers are tokens and go through nothing."""
        dataset = encode_texts(rows, config, model, tokenizer)
        return dataset, scale or ValueScale("none")

    def counts(self, task: Task, batch: Batch) -> Counts:
        """What the terms' sums are divided by."""
        labels = answer_labels(task.model, batch)
        segments = label_segments(task.model, batch)
        return task.objective.counts(labels, task.vocab, segment_ids=segments)

    def total_and_terms(
        self,
        task: Task,
        params: Params,
        batch: Batch,
        dropout_key: jax.Array | None,
        row_offset: Int[Array, "B"] | int,
        counts: Counts | None,
    ) -> tuple[Total, Terms]:
        """The objective and, where experts are routed, the loss that balances them."""
        model = task.model
        answer = answer_hidden(model, params, batch, dropout_key, row_offset)
        segments = label_segments(model, batch)
        total, terms = _objective(task, answer, segments, counts)
        if answer.router_loss is None:
            return total, terms
        one = jnp.ones((), jnp.float32)
        share = model.router_aux_loss_coef / task.config.accumulate
        terms = terms | {"router": Term(answer.router_loss, one)}
        return total + share * answer.router_loss, terms

    def evaluate(self, task: Task, params: Params, batch: Batch) -> EvalOutputs:
        """The trained terms, CE and NTL-WAS, and the logits of number tokens."""
        vocab = task.vocab
        answer = answer_hidden(task.model, params, batch)
        labels = answer.labels
        if task.config.fused_head:
            stats = stats_from_hidden(
                answer.hidden,
                answer.model.head,
                labels,
                vocab,
                tile_tokens=data_shards(task.mesh) * TILE_TOKENS,
                logits_dtype=jnp.float32,
            )
        else:
            logits = answer.model.logits(answer.hidden, aligned=True)
            stats = stats_from_logits(logits, labels, vocab)
        weights = jnp.broadcast_to(batch["weights"][:, None], labels.shape)
        objective = evaluation_objective(task.objective)
        terms = objective(stats, labels, vocab, weights=weights)
        number_logits = stats.number_logits
        if len(vocab.token_ids) > MAX_DISTRIBUTION:
            number_logits = number_logits[..., :0]
        rows = jnp.asarray(vocab.row)[jnp.maximum(labels, 0)]  # [B, T]
        counted = (labels >= 0) & (weights > 0)
        return EvalOutputs(terms, number_logits, jnp.where(counted, rows, -1))

    def evaluation_loss(self, task: Task, terms: Any) -> float:
        """The objective of an evaluation's terms."""
        return float(evaluation_objective(task.objective).total(terms))

    def predictions(
        self,
        task: Task,
        params: Params,
        batch: Batch,
        outputs: EvalOutputs,
        tokenizer: Tokenizer,
    ) -> list[list[int]]:
        """Generated ids up to and with end-of-sequence."""
        config = task.config.evaluation
        generated = generate(
            task.model,
            params,
            batch.get("prompt_ids", batch["input_ids"]),
            attention_mask=batch.get("prompt_mask", batch["attention_mask"]),
            max_new_tokens=config.max_new_tokens,
            num_beams=config.beams,
            numbers=config.numbers,
            vocab=None if config.numbers == "argmax" else task.vocab,
        )
        end = task.model.eos_token_id
        rows = gathered(generated.tokens).tolist()
        return [row[: row.index(end) + 1] if end in row else row for row in rows]

    def answer(self, trained: TrainedModel, question: str) -> str:
        """The greedy answer, then a row per digit: probabilities of number tokens.

        The probabilities are the softmax over the number tokens alone, as in the loss.
        """
        ids = jnp.asarray([trained.encode(question)], jnp.int32)  # [1, S]
        tokens = greedy(
            trained.model, trained.params, ids, max_new_tokens=trained.max_new_tokens
        )
        written = np.asarray(tokens)[0]
        answer = trained.tokenizer.decode(written.tolist())
        probabilities = number_probabilities(trained, ids, tokens)  # [T, K]
        is_number = trained.vocab.row[written] >= 0
        if not is_number.any():
            return f"{answer} (no digit in it)"
        values = " ".join(f"{value:>5g}" for value in trained.vocab.values)
        lines = [answer, f"  digit | {values}"]
        for token, row in zip(
            written[is_number], probabilities[is_number], strict=True
        ):
            value = trained.vocab.values[trained.vocab.row[token]]
            cells = " ".join(f"{probability:5.3f}" for probability in row)
            lines.append(f"  {value:>5g} | {cells}")
        return "\n".join(lines)


def _objective(task: Task, answer, segments, counts) -> tuple[Total, Terms]:
    """The objective of hidden states, through their logits or a tile at a time."""
    objective, labels, vocab = task.objective, answer.labels, task.vocab
    if task.config.fused_head:
        groups = data_shards(task.mesh)
        return objective_from_hidden(
            objective,
            answer.hidden,
            answer.model.head,
            labels,
            vocab,
            segment_ids=segments,
            counts=counts,
            tile_tokens=groups * TILE_TOKENS,
            row_groups=groups,
            logits_dtype=jnp.float32,
        )
    logits = answer.model.logits(answer.hidden, aligned=True)
    stats = stats_from_logits(logits, labels, vocab)
    terms = objective(stats, labels, vocab, segment_ids=segments)
    return objective.total(terms, counts), terms


def evaluation_objective(objective: Objective) -> Objective:
    """The trained objective, with CE and NTL-WAS always reported beside it."""
    filled = {name: 0.0 for name in ("ce", "was") if getattr(objective, name) is None}
    return dataclasses.replace(objective, **filled)


def encode_texts(
    rows: Sequence[Row], config: TrainConfig, model: AnyConfig, tokenizer: Tokenizer
) -> TokenizedDataset:
    """Questions and answers as ids, in one row where the model is decoder-only.

    Raises:
        ConfigError: the model has no position for the last of them.
    """
    dataset = tokenize_rows(
        rows,
        tokenizer,
        max_source_length=config.data.max_source_length,
        max_target_length=config.data.max_target_length,
        vocab_size=model.vocab_size,
        separator=config.data.separator if model.decoder_only else None,
        cache=config.token_cache,
    )
    check_length(dataset, config, model)
    return dataset


def number_probabilities(
    trained: TrainedModel, input_ids: jax.Array, tokens: jax.Array
) -> np.ndarray:
    """Softmax over number tokens where each answer token was chosen.

    Args:
        trained: the model.
        input_ids: i32 [1, S].
        tokens: i32 [1, T], the answer, fed back as decoder input.

    Returns:
        f32 [T, K], each row summing to 1 up to the end of the answer, to 0 beyond.
    """
    q = number_distributions(
        trained.model, trained.params, input_ids, tokens, trained.vocab
    )
    return np.asarray(q[0])

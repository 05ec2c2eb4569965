"""Hidden states of right answers, and the labels that stand for them."""

from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Float, Float32, Int

from ntl_jax.losses import shift_labels
from ntl_jax.models import T5, ModelConfig, Params, bind, shift_right
from ntl_jax.models.decoder_only import DecoderOnly
from ntl_jax.models.t5.model import share_table


class Answer(NamedTuple):
    """What a model makes of a batch with the right answers fed, before its logits.

    Attributes:
        model: the model, bound; ``model.logits(hidden)`` or ``model.head``.
        hidden: [B, T, D] in the model's dtype.
        labels: i32[B, T] of the same positions, -100 where nothing is asked.
        router_loss: the loss that balances experts, None for models without.
    """

    model: T5 | DecoderOnly
    hidden: Float[Array, "B T D"]
    labels: Int[Array, "B T"]
    router_loss: Float32[Array, ""] | None


def answer_hidden(
    model: Any,
    params: Params,
    batch: dict[str, Array],
    dropout_key: jax.Array | None = None,
    row_offset: Int[Array, "B"] | int = 0,
) -> Answer:
    """Teacher-forced hidden states, and the labels that stand for them.

    Args:
        model: the model's config.
        params: its parameters.
        batch: input_ids, attention_mask and labels, and segment_ids where several
            texts share a row; see `train.data`.
        dropout_key: None for no dropout.
        row_offset: what to add to a row's place for its number in the whole batch.
    """
    inputs, labels = batch["input_ids"], answer_labels(model, batch)
    options: dict[str, Any] = {
        "attention_mask": batch["attention_mask"],
        "segment_ids": batch.get("segment_ids"),
        "dropout_key": dropout_key,
        "row_offset": row_offset,
    }
    if model.decoder_only:
        decoder: DecoderOnly = bind(model, params)
        hidden, router_loss = decoder.hidden_for_training(inputs, **options)
        return Answer(decoder, hidden, labels, router_loss)
    segments = batch.get("target_segment_ids")
    shifted = shift_right(
        labels,
        start_id=model.decoder_start_token_id,
        pad_id=model.pad_token_id,
        segment_ids=segments,
    )
    t5: T5 = bind(model, share_table(model, params))
    hidden = t5.hidden(inputs, shifted, target_segment_ids=segments, **options)
    return Answer(t5, hidden, labels, None)


def answer_labels(model: ModelConfig, batch: dict[str, Array]) -> Int[Array, "B T"]:
    """Labels of the positions that answer: a decoder-only model's come one earlier."""
    labels = batch["labels"]
    return shift_labels(labels) if model.decoder_only else labels


def label_segments(
    model: ModelConfig, batch: dict[str, Array]
) -> Int[Array, "B T"] | None:
    """Which text of its row each of `answer_labels` is of; None: of one."""
    if not model.decoder_only:
        return batch.get("target_segment_ids")
    segments = batch.get("segment_ids")
    return None if segments is None else shift_labels(segments, ignore_index=0)

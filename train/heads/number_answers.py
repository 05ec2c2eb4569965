"""Models that answer with a number and not with text: a way to all of them."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int

from ntl_jax.losses import Term
from ntl_jax.models import NumformerConfig, Params, T5RegressionConfig, bind
from train.heads.numformer import filled_counts, filled_terms
from train.heads.regression import number_terms

NumberModel = NumformerConfig | T5RegressionConfig
"""Configs of models that answer with a number."""


def answer_terms(
    model: NumberModel,
    params: Params,
    batch: dict[str, Any],
    dropout_key: jax.Array | None = None,
    row_offset: Int[Array, "B"] | int = 0,
) -> tuple[Float32[Array, "B"], dict[str, Term]]:
    """Predicted numbers, scaled, and the losses whose means add up to what is trained.

    Args:
        model: the model's config.
        params: its parameters.
        batch: see `Batch`.
        dropout_key: None for no dropout.
        row_offset: what to add to a row's place for its number in the whole batch.
    """
    given: dict[str, Any] = {
        "attention_mask": batch["attention_mask"],
        "dropout_key": dropout_key,
        "row_offset": row_offset,
    }
    if isinstance(model, NumformerConfig):
        fill_in = functools.partial(bind(model, params), **given)
        return filled_terms(fill_in, model.num_id, batch)
    return number_terms(functools.partial(bind(model, params), **given), batch)


def answer_counts(
    model: NumberModel, batch: dict[str, Any]
) -> dict[str, Float32[Array, ""]]:
    """What the sums of `answer_terms` are divided by, of a batch without weights."""
    if isinstance(model, NumformerConfig):
        return filled_counts(model.num_id, batch)
    return {"squared_error": jnp.float32(len(batch["targets"]))}


def total_loss(terms: dict[str, Term]) -> Float32[Array, ""]:
    """The loss that these terms make."""
    return jnp.sum(jnp.stack([term.mean for term in terms.values()]))

"""Runs of a Numformer, which fills in hidden tokens and numbers."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int

from ntl_jax.losses import Term
from ntl_jax.losses.number_heads import xval_loss
from ntl_jax.models import NumformerConfig, Params, bind


def filled_terms(
    model: NumformerConfig,
    params: Params,
    batch: dict[str, Any],
    dropout_key: jax.Array | None = None,
    row_offset: Int[Array, "B"] | int = 0,
) -> tuple[Float32[Array, "B"], dict[str, Term]]:
    """What is filled in, and xVal's two losses as sums and counts.

    Args:
        model: the model's config.
        params: its parameters.
        batch: see `MaskedDataset.batch`; weights where rows only fill up.
        dropout_key: None for no dropout.
        row_offset: what to add to a row's place for its number in the whole batch.

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


def filled_counts(
    model: NumformerConfig, batch: dict[str, Any]
) -> dict[str, Float32[Array, ""]]:
    """What the sums of `filled_terms` are divided by: hidden tokens, hidden numbers."""
    labels = batch["labels"]
    return {
        "ce": jnp.sum(labels != -100, dtype=jnp.float32),
        "squared_error": jnp.sum(labels == model.num_id, dtype=jnp.float32),
    }

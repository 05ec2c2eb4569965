"""Runs of a Numformer, which fills in hidden tokens and numbers."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float32

from ntl_jax.losses import Term
from ntl_jax.losses.number_heads import xval_loss
from ntl_jax.models import TokensAndNumbers


def filled_terms(
    answer: Callable[..., TokensAndNumbers], num_id: int, batch: dict[str, Any]
) -> tuple[Float32[Array, "B"], dict[str, Term]]:
    """What is filled in, and xVal's two losses as sums and counts.

    Args:
        answer: the model, given all but ids and values.
        num_id: the token that stands for a number.
        batch: see `MaskedDataset.batch`; weights where rows only fill up.

    Returns:
        The number predicted where a row's one hidden number was (of several, their
        sum), scaled as the values are; and ``ce`` of the hidden tokens [nats] and
        ``squared_error`` of the hidden numbers.
    """
    output = answer(batch["input_ids"], batch["input_values"])
    labels, weights = batch["labels"], batch.get("weights")
    if weights is not None:
        weights = jnp.broadcast_to(weights[:, None], labels.shape)
    terms = xval_loss(
        output.logits,
        output.numbers,
        labels,
        batch["label_values"],
        num_id=num_id,
        weights=weights,
    )
    hidden = labels == jnp.asarray(num_id, labels.dtype)
    numbers = jnp.sum(jnp.where(hidden, output.numbers, 0.0), axis=1)
    return numbers, {"ce": terms.ce, "squared_error": terms.mse}


def filled_counts(num_id: int, batch: dict[str, Any]) -> dict[str, Float32[Array, ""]]:
    """What the sums of `filled_terms` are divided by: hidden tokens, hidden numbers."""
    labels = batch["labels"]
    return {
        "ce": jnp.sum(labels != -100, dtype=jnp.float32),
        "squared_error": jnp.sum(labels == num_id, dtype=jnp.float32),
    }

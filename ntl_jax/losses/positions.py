"""Which positions a loss looks at, and how much each of them counts."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int, Int32

from ntl_jax.number_vocab import NumberVocab

_FEW = 16  # numbers that are looked up by comparison


class NumberTargets(NamedTuple):
    """The number positions of a batch.

    Attributes:
        row: i32[*B], the label's place in ``vocab.token_ids``; 0 off the numbers.
        value: f32[*B], what the label is worth; that of row 0 off the numbers.
        weight: f32[*B], how much the position counts; 0 off the numbers.
        mask: bool[*B], where the label is a number, is not ignored and has weight.
    """

    row: Int32[Array, "*B"]
    value: Float32[Array, "*B"]
    weight: Float32[Array, "*B"]
    mask: Bool[Array, "*B"]


def check_labels(logits: Array, labels: Array, *, name: str = "logits") -> None:
    """Raises unless logits are floats, labels integers and the shapes go together.

    Args:
        logits: [*B, V], or anything else with a last axis of its own.
        labels: [*B].
        name: what the former are called.
    """
    check_floating(name, logits)
    check_integers("labels", labels)
    if logits.ndim == 0 or logits.shape[:-1] != labels.shape:
        raise ValueError(
            f"{name} of shape {logits.shape}: give labels of shape "
            f"{logits.shape[:-1]}, not {labels.shape}."
        )


def check_is_array(name: str, value: Any) -> None:
    """Raises TypeError for a list, a PyTorch tensor, or what else is no array."""
    if not isinstance(value, jax.Array | np.ndarray | np.generic):
        raise TypeError(
            f"{name} must be a JAX or NumPy array, not {type(value).__name__}: take "
            f"jnp.asarray({name})."
        )


def check_floating(name: str, value: Any) -> None:
    """Raises TypeError for what is no array of floating-point numbers."""
    check_is_array(name, value)
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise TypeError(f"{name} must be floating point, not {value.dtype}.")


def check_integers(name: str, value: Any) -> None:
    """Raises TypeError for what is no array of integers."""
    check_is_array(name, value)
    if not jnp.issubdtype(value.dtype, jnp.integer):
        raise TypeError(f"{name} must be integers, not {value.dtype}.")


def check_vocab(vocab: NumberVocab) -> None:
    """Raises TypeError for what is no NumberVocab, such as a tokenizer or a dict."""
    if not isinstance(vocab, NumberVocab):
        raise TypeError(
            f"vocab must be a NumberVocab, not {type(vocab).__name__}: make one by "
            "NumberVocab.from_tokenizer or NumberVocab.from_mapping."
        )


def check_segments(segment_ids: Array | None, labels: Array) -> None:
    """Raises unless segment ids, where given, are integers, one a label."""
    if segment_ids is None:
        return
    check_integers("segment_ids", segment_ids)
    if segment_ids.shape != labels.shape:
        raise ValueError(
            f"segment_ids of shape {segment_ids.shape} do not match labels of "
            f"shape {labels.shape}: give one segment a label."
        )


def label_is(labels: Int[Array, "*B"], token_id: int) -> Bool[Array, "*B"]:
    """Where a label is this id, in a dtype that may be too narrow to hold it.

    Args:
        labels: token ids [*B], of any integer dtype.
        token_id: a token's id, or the label that counts nothing.

    Returns:
        bool[*B]; False everywhere if no label of this dtype can be the id.

    Raises:
        TypeError: for labels or an id that are no integers.
    """
    check_integers("labels", labels)
    if not isinstance(token_id, int | np.integer):
        raise TypeError(
            f"an id or ignore_index must be an integer, not {token_id!r}: -100, say, "
            "for one that no token has."
        )
    # JAX would wrap the id first, so that -100 were byte 156.
    bounds = jnp.iinfo(labels.dtype)
    if not bounds.min <= token_id <= bounds.max:
        return jnp.zeros(labels.shape, jnp.bool_)
    return labels == token_id


def token_weights(
    labels: Int[Array, "*B"],
    weights: Float[Array, "*B"] | Bool[Array, "*B"] | None = None,
    *,
    ignore_index: int = -100,
) -> Float32[Array, "*B"]:
    """How much each label counts: its weight, or 0 where it is ignored.

    Args:
        labels: token ids [*B].
        weights: non-negative weights [*B]; 1 where None.
        ignore_index: the label that counts nothing.

    Returns:
        f32[*B].

    Raises:
        TypeError: for labels or an ignore_index that are no integers.
        ValueError: if weights and labels differ in shape.
    """
    kept = ~label_is(labels, ignore_index)
    if weights is None:
        return kept.astype(jnp.float32)
    if jnp.shape(weights) != labels.shape:
        raise ValueError(
            f"weights of shape {jnp.shape(weights)} do not match labels of shape "
            f"{labels.shape}: give one weight a label."
        )
    return jnp.where(kept, jnp.asarray(weights).astype(jnp.float32), 0.0)


def safe_labels(
    labels: Int[Array, "*B"], vocab_size: int, *, ignore_index: int = -100
) -> Int32[Array, "*B"]:
    """Labels that can index V columns: ignored ones become 0, the rest are clipped.

    Args:
        labels: token ids [*B].
        vocab_size: V.
        ignore_index: the label that counts nothing.

    Returns:
        i32[*B] in [0, V).
    """
    ignored = label_is(labels, ignore_index)
    last = min(vocab_size - 1, int(jnp.iinfo(labels.dtype).max))  # 299 is byte 43
    return jnp.where(ignored, 0, jnp.clip(labels, 0, last).astype(jnp.int32))


def number_targets(
    labels: Int[Array, "*B"],
    vocab: NumberVocab,
    weights: Float[Array, "*B"] | Bool[Array, "*B"] | None = None,
    *,
    ignore_index: int = -100,
) -> NumberTargets:
    """Looks up the labels that are numbers.

    Args:
        labels: token ids [*B].
        vocab: the number tokens.
        weights: non-negative weights [*B]; 1 where None.
        ignore_index: the label that counts nothing, even where it is a number's id.

    Returns:
        NumberTargets over [*B].
    """
    check_vocab(vocab)
    weight = token_weights(labels, weights, ignore_index=ignore_index)
    ids = safe_labels(labels, vocab.vocab_size, ignore_index=ignore_index)
    row, value = _look_up(ids, vocab)
    mask = (row >= 0) & (weight != 0)
    row = jnp.maximum(row, 0)
    return NumberTargets(row, value, jnp.where(mask, weight, 0.0), mask)


def _look_up(
    ids: Int32[Array, "*B"], vocab: NumberVocab
) -> tuple[Int32[Array, "*B"], Float32[Array, "*B"]]:
    """Each id's place among the numbers, -1 where it is none, and its value.

    The value of none is that of the first number.
    """
    if len(vocab) > _FEW:
        row = jnp.asarray(vocab.row)[ids]
        return row, jnp.asarray(vocab.values)[jnp.maximum(row, 0)]
    # A chain of comparisons fuses with whatever uses it, where a gather does not.
    row = jnp.full_like(ids, -1)
    value = jnp.full(ids.shape, vocab.values[0])
    for k, token_id in enumerate(vocab.token_ids):
        here = ids == token_id
        row = jnp.where(here, k, row)
        value = jnp.where(here, vocab.values[k], value)
    return row, value

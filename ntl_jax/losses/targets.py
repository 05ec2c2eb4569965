"""Which positions a loss looks at, and how much each of them counts."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int, Int32

from ntl_jax.losses.checks import check_integers, check_vocab
from ntl_jax.numbers.vocab import NumberVocab
from ntl_jax.sharding.auto_axes import on_auto_axes

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


def clip_labels(
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
    ids = clip_labels(labels, vocab.vocab_size, ignore_index=ignore_index)
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


@on_auto_axes(labels=0)
def shift_labels(
    labels: Int[Array, "*B T"], *, ignore_index: int = -100
) -> Int[Array, "*B T"]:
    """Moves labels one step left, so that position t is asked for token t + 1.

    A causal model's logits at t predict token t + 1. Losses here compare logits and
    labels of the same position, as an encoder-decoder model needs it; give them
    ``shift_labels(tokens)`` for a decoder-only model. The last position has nothing to
    predict and is ignored, so the result equals that of ``logits[:, :-1]`` and
    ``labels[:, 1:]`` while shapes stay as they are.

    Args:
        labels: token ids [*B, T].
        ignore_index: what to put at the last position.

    Returns:
        token ids [*B, T], in the dtype of labels.

    Raises:
        TypeError: for labels that are no integers.
        ValueError: for a dtype that cannot hold ``ignore_index``.

    >>> shift_labels(jnp.array([[5, 6, 7]])).tolist()
    [[6, 7, -100]]
    """
    check_integers("labels", labels)
    bounds = jnp.iinfo(labels.dtype)
    if not bounds.min <= ignore_index <= bounds.max:
        raise ValueError(
            f"labels of dtype {labels.dtype} cannot hold ignore_index={ignore_index}: "
            "take labels.astype(jnp.int32)."
        )
    last = jnp.full_like(labels[..., :1], ignore_index)
    return jnp.concatenate([labels[..., 1:], last], axis=-1)

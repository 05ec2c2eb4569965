"""What a T5's decoder reads while the right answers are fed."""

import jax.numpy as jnp
from jaxtyping import Array, Int


def shift_right(
    labels: Int[Array, "B T"],
    *,
    start_id: int,
    pad_id: int,
    segment_ids: Int[Array, "B T"] | None = None,
) -> Int[Array, "B T"]:
    """Decoder inputs for labels: a start token, then the labels but the last.

    Args:
        labels: target ids, -100 where there is none.
        start_id: `config.decoder_start_token_id`.
        pad_id: `config.pad_token_id`, which takes the place of -100.
        segment_ids: equal, side by side, where labels belong together, in rows that
            hold several texts: each begins with a start token.

    Returns:
        Ids of the labels' shape and dtype.

    >>> shift_right(jnp.array([[5, 6, 1, -100, -100]]), start_id=0, pad_id=0)
    Array([[0, 5, 6, 1, 0]], dtype=int32)
    >>> labels, segments = jnp.array([[5, 1, 6, 1]]), jnp.array([[1, 1, 2, 2]])
    >>> shift_right(labels, start_id=0, pad_id=0, segment_ids=segments)
    Array([[0, 5, 0, 6]], dtype=int32)

    Source: transformers' T5PreTrainedModel._shift_right; segments are this package's.
    """
    start = jnp.full_like(labels[:, :1], start_id)
    shifted = jnp.concatenate([start, labels[:, :-1]], axis=1)
    if segment_ids is not None:
        begins = segment_ids[:, 1:] != segment_ids[:, :-1]
        begins = jnp.pad(begins, ((0, 0), (1, 0)))  # [B, T]
        shifted = jnp.where(begins, jnp.asarray(start_id, labels.dtype), shifted)
    return jnp.where(shifted == -100, jnp.asarray(pad_id, labels.dtype), shifted)

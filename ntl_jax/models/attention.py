"""Attention: scores, what may be seen, positions of tokens, the cache of decoding."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Int32

Mask = Bool[Array, "B T"] | Int[Array, "B T"]


class Visible(NamedTuple):
    """Which keys each query sees.

    Attributes:
        mask: true where a query sees a key; None: everywhere.
        causal: whether a query sees no key after itself, besides what the mask says.
    """

    mask: Bool[Array, "#B #N #T #S"] | None = None
    causal: bool = False


def make_attention_mask(
    attention_mask: Bool[Array, "B S"] | Int[Array, "B S"] | None = None,
    query_segments: Int[Array, "B T"] | None = None,
    key_segments: Int[Array, "B S"] | None = None,
) -> Bool[Array, "B 1 #T S"] | None:
    """Where a query sees a key: not padding, and of its own segment.

    Args:
        attention_mask: true or non-zero where a key is none of padding.
        query_segments: equal to a key's where the two belong together, in rows of
            several texts.
        key_segments: the keys'; both or neither.

    Returns:
        [B, 1, T, S], or [B, 1, 1, S] where queries are alike; None where all is seen.
    """
    seen = None
    if attention_mask is not None:
        seen = attention_mask.astype(bool)[:, None, None, :]  # [B, 1, 1, S]
    if query_segments is not None and key_segments is not None:
        same = query_segments[:, None, :, None] == key_segments[:, None, None, :]
        seen = same if seen is None else seen & same
    return seen


def token_positions(
    length: int,
    attention_mask: Mask | None = None,
    segment_ids: Int[Array, "B T"] | None = None,
) -> Int32[Array, "#B T"]:
    """Each token's number within its text: padding is not counted.

    Args:
        length: T.
        attention_mask: true or non-zero where a token is none of padding.
        segment_ids: equal, side by side, where tokens belong together; every segment
            starts at 0.

    Returns:
        [B, T], or [1, T] where all rows are alike; padding has some valid position.

    >>> mask = jnp.array([[0, 0, 1, 1, 1]])
    >>> token_positions(5, mask)
    Array([[0, 0, 0, 1, 2]], dtype=int32)
    >>> token_positions(5, None, jnp.array([[1, 1, 2, 2, 2]]))
    Array([[0, 1, 0, 1, 2]], dtype=int32)
    """
    if attention_mask is None:
        count = jnp.arange(1, length + 1, dtype=jnp.int32)[None]
    else:
        count = jnp.cumsum(attention_mask.astype(bool), axis=1, dtype=jnp.int32)
    if segment_ids is not None:
        starts = segment_ids[:, 1:] != segment_ids[:, :-1]
        before = jnp.where(starts, count[:, :-1], 0)
        before = jnp.pad(before, ((0, 0), (1, 0)))  # [B, T]
        # Counts never fall, so the latest start has the largest.
        count = count - jax.lax.cummax(before, axis=1)
    return jnp.maximum(count - 1, 0)


class Cache(NamedTuple):
    """What decoding remembers; S slots, filled from the left, alike in every row.

    Attributes:
        keys: of all layers; slots that are not filled yet hold zeros.
        values: as the keys.
        seen: which slots hold tokens that later ones see; false for padding.
        positions: the next token's position in each row.
        filled: how many slots are filled, padding included.
    """

    keys: Float[Array, "L B S K H"]
    values: Float[Array, "L B S K H"]
    seen: Bool[Array, "B S"]
    positions: Int32[Array, "B"]
    filled: Int32[Array, ""]

    def advanced(self, keys, values) -> "Cache":
        """The cache after a step that wrote one token's keys and values."""
        return Cache(
            keys, values, self.seen_by_next(), self.positions + 1, self.filled + 1
        )

    def seen_by_next(self) -> Bool[Array, "B S"]:
        """Which slots the next token sees, its own included."""
        slots = jnp.arange(self.seen.shape[1], dtype=jnp.int32)
        return self.seen | (slots == self.filled)[None]


def start_cache(
    keys: Float[Array, "L B P K H"],
    values: Float[Array, "L B P K H"],
    attention_mask: Mask | None,
    length: int,
) -> Cache:
    """A cache that holds a prompt, with room for `length` more tokens.

    Args:
        keys: the prompt's, of all layers.
        values: as the keys.
        attention_mask: [B, P], zero where the prompt is padded on the left.
        length: how many tokens are to come.
    """
    _, batch, prompt, _, _ = keys.shape
    room = ((0, 0), (0, 0), (0, length), (0, 0), (0, 0))
    if attention_mask is None:
        seen = jnp.ones((batch, prompt), bool)
    else:
        seen = attention_mask.astype(bool)
    return Cache(
        jnp.pad(keys, room),
        jnp.pad(values, room),
        jnp.pad(seen, ((0, 0), (0, length))),
        jnp.sum(seen, axis=1, dtype=jnp.int32),
        jnp.int32(prompt),
    )

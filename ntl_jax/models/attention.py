"""Attention: scores, what may be seen, positions of tokens, the cache of decoding."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Int, Int32

from ntl_jax.models.attention_choice import Implementation, choose_implementation
from ntl_jax.models.layers import einsum_float32
from ntl_jax.models.relative_bias import MASKED

Mask = Bool[Array, "B T"] | Int[Array, "B T"]


class Visible(NamedTuple):
    """Which keys each query sees.

    Attributes:
        mask: true where a query sees a key; None: everywhere.
        causal: whether a query sees no key after itself, besides what the mask says.
    """

    mask: Bool[Array, "#B #N #T #S"] | None = None
    causal: bool = False


def attend(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K H"],
    *,
    scale: float | Float32[Array, ""],
    bias: Float32[Array, "#B #N #T #S"] | None = None,
    mask: Bool[Array, "#B #N #T #S"] | None = None,
    causal: bool = False,
    drop: Callable[[Array], Array] | None = None,
    implementation: Implementation = "auto",
) -> Float[Array, "B T N H"]:
    """Attention of queries over keys and values, heads in groups where K < N.

    softmax(scale * q kᵀ + bias) v, the softmax in float32.

    Args:
        q: queries, N heads.
        k: keys, K heads; query head n reads key head n // (N / K).
        v: values, as the keys.
        scale: what the scores are multiplied by, 1/sqrt(H) in most models.
        bias: added to the scaled scores.
        mask: true where a query sees a key. A query that sees nothing gets the mean
            of all values: finite, and of no meaning.
        causal: whether queries see no key after themselves, besides what the mask
            says; T is S.
        drop: dropout of the probabilities, [B, N, T, S] -> the same.
        implementation: which program computes it, see `attention_choice`.

    Returns:
        [B, T, N, H] in the queries' dtype.

    Raises:
        ValueError: the key heads do not divide the query heads, `causal` with other
            than as many queries as keys, or operands or a platform that the
            implementation does not take.

    >>> q, k, v = jnp.ones((3, 1, 2, 4, 8))
    >>> attend(q, k, v, scale=8**-0.5).shape
    (1, 2, 4, 8)
    """
    _check_shapes(q, k, causal)
    chosen = choose_implementation(
        implementation, q, k, scale=scale, bias=bias, mask=mask, drop=drop
    )
    if chosen == "triton":
        return _triton(q, k, v, scale, bias, mask, causal, drop)
    if chosen == "cudnn":
        return _cudnn(q, k, v, scale, bias, mask, causal)
    return _attend(q, k, v, scale, bias, mask, causal, drop)


def _triton(q, k, v, scale, bias, mask, causal, drop) -> Float[Array, "B T N H"]:
    from ntl_jax.models.flash_attention import flash_attention

    return flash_attention(
        q, k, v, scale=scale, bias=bias, mask=mask, causal=causal, drop=drop
    )


def _cudnn(q, k, v, scale, bias, mask, causal) -> Float[Array, "B T N H"]:
    if bias is not None:
        bias = bias.astype(q.dtype)
    if mask is not None:
        shape = (*mask.shape[:2], q.shape[1], k.shape[1])
        mask = jnp.broadcast_to(mask, shape)
    return jax.nn.dot_product_attention(
        q, k, v, bias, mask, scale=scale, is_causal=causal, implementation="cudnn"
    )


def _check_shapes(q, k, causal: bool) -> None:
    heads, groups = q.shape[2], k.shape[2]
    if heads % groups:
        raise ValueError(
            f"{groups} key heads do not divide {heads} query heads; k is {k.shape}, "
            f"q {q.shape}, both [batch, length, heads, width]"
        )
    if causal and q.shape[1] != k.shape[1]:
        raise ValueError(
            f"{q.shape[1]} queries over {k.shape[1]} keys cannot be causal: give a "
            "mask that says which key is whose"
        )


def _attend(q, k, v, scale, bias, mask, causal, drop) -> Float[Array, "B T N H"]:
    batch, length, heads, width = q.shape
    groups = k.shape[2]
    if groups == heads:
        scores = einsum_float32("BTNH,BSNH->BNTS", q, k)
    else:
        grouped = q.reshape(batch, length, groups, heads // groups, width)
        scores = einsum_float32("BTKGH,BSKH->BKGTS", grouped, k)
        scores = scores.reshape(batch, heads, length, k.shape[1])
    scores = scores * scale  # [B, N, T, S]
    if bias is not None:
        scores = scores + jnp.broadcast_to(bias, scores.shape)
    if causal:
        earlier = jnp.tril(jnp.ones((1, 1, length, length), bool))
        mask = earlier if mask is None else earlier & mask
    if mask is not None:
        scores = jnp.where(mask, scores, jnp.float32(MASKED))
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    if drop is not None:
        weights = drop(weights)
    if groups == heads:
        return jnp.einsum("BNTS,BSNH->BTNH", weights, v)
    weights = weights.reshape(batch, groups, heads // groups, length, k.shape[1])
    mixed = jnp.einsum("BKGTS,BSKH->BTKGH", weights, v)
    return mixed.reshape(q.shape)


def visible_keys(
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

"""One tile of a fused head: its logits, what is read off them, and their gradient.

A tile is some tokens times all columns of the kernel, or all tokens times some columns.
It is the only place where logits exist.
"""

import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Int

from ntl_jax.losses.stats import MASKED_LOGIT, NumberStats
from ntl_jax.number_vocab import NumberVocab

Backward = Literal["tokens", "columns"]


class Head(NamedTuple):
    """The static part of a head: hashable, never traced."""

    vocab: NumberVocab
    logit_scale: float
    soft_cap: float | None
    ignore_index: int
    tile_tokens: int
    row_groups: int = 1
    backward: Backward = "tokens"

    def tiling(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """(number of tiles, positions in each) for tokens of shape [*L, T].

        A tile holds positions of T for all rows of L, so that rows spread over devices
        stay where they are. Tiles are of one size; together they are longer than T by
        less than their number.
        """
        length = shape[-1]
        at_most = max(1, self.tile_tokens // max(1, math.prod(shape[:-1])))
        tiles = max(1, -(-length // at_most))
        return tiles, -(-length // tiles)


class LogitSums(NamedTuple):
    """What a pass over all columns of a tile's logits gives, f32[*B] each.

    Attributes:
        top: the largest logit.
        log_sum: the log of the sum of exp(z - top). Both parts of lse are kept: their
            float32 sum would round the softmax of logits near 1e4.
        label_logit: the logit of the label.
        logit_sum: the sum of the logits.
    """

    top: Float32[Array, "*B"]
    log_sum: Float32[Array, "*B"]
    label_logit: Float32[Array, "*B"]
    logit_sum: Float32[Array, "*B"]

    def stats(self, number_logits: Float32[Array, "*B K"]) -> NumberStats:
        """These sums as NumberStats."""
        lse = self.top + self.log_sum
        return NumberStats(lse, self.label_logit, number_logits, self.logit_sum)


def product(a: Array, b: Array, axes) -> Array:
    """`jnp.tensordot` in float32; exact for float32, on the matrix unit for bfloat16.

    The operands' dtype is what is multiplied; sums are float32 for either.
    """
    exact = a.dtype == jnp.float32
    precision = jax.lax.Precision.HIGHEST if exact else jax.lax.Precision.DEFAULT
    return jnp.tensordot(
        a, b, axes, precision=precision, preferred_element_type=jnp.float32
    )


def logits_of(
    head: Head,
    hidden: Float[Array, "*B D"],
    kernel: Float[Array, "D C"],
    bias: Float[Array, "C"] | None,
) -> Float32[Array, "*B C"]:
    """Scaled and capped logits of some columns, MASKED_LOGIT at the least."""
    z = product(hidden, kernel, 1)
    if bias is not None:
        z += jnp.expand_dims(bias.astype(jnp.float32), range(z.ndim - 1))
    z *= head.logit_scale
    if head.soft_cap is not None:
        z = head.soft_cap * jnp.tanh(z / head.soft_cap)
    return jnp.maximum(z, MASKED_LOGIT)


def number_logits_of(
    head: Head,
    hidden: Float[Array, "*B D"],
    kernel: Float[Array, "D V"],
    bias: Float[Array, "V"] | None,
) -> Float32[Array, "*B K"]:
    """The logits of the number tokens: a matmul with K columns."""
    ids = head.vocab.token_ids
    columns = jnp.take(kernel, ids, axis=1, mode="clip").astype(hidden.dtype)
    bias = None if bias is None else jnp.take(bias, ids, mode="clip")
    return logits_of(head, hidden, columns, bias)


def sums_of(
    head: Head, z: Float32[Array, "*B V"], labels: Int[Array, "*B"]
) -> LogitSums:
    """Reads a tile with all columns; ``labels`` are in [0, V)."""
    column = _columns(z, 0)
    real = column < head.vocab.vocab_size
    masked = jnp.where(real, z, MASKED_LOGIT)
    top = jnp.max(masked, axis=-1)
    log_sum = jnp.log(jnp.sum(jnp.exp(masked - top[..., None]), axis=-1))
    label_logit = jnp.sum(jnp.where(column == labels[..., None], z, 0.0), axis=-1)
    logit_sum = jnp.sum(jnp.where(real, z, 0.0), axis=-1)
    return LogitSums(top, log_sum, label_logit, logit_sum)


def is_live(cotangent: NumberStats) -> Bool[Array, "*B"]:
    """Where any cotangent is not 0; ``number_logits`` may be None."""
    live = (cotangent.lse != 0) | (cotangent.label_logit != 0)
    live |= cotangent.logit_sum != 0
    if cotangent.number_logits is None:
        return live
    return live | jnp.any(cotangent.number_logits != 0, axis=-1)


def gradient_of(
    head: Head,
    z: Float32[Array, "*B C"],
    labels: Int[Array, "*B"],
    sums: LogitSums,
    cotangent: NumberStats,
    *,
    first: int | Int[Array, ""] = 0,
) -> Float32[Array, "*B C"]:
    """The gradient of a tile's matrix product (and of the bias) from that of the stats.

    Args:
        head: the head.
        z: the logits of the columns from ``first`` on.
        labels: [*B], in [0, V).
        sums: of the same tokens.
        cotangent: of their NumberStats, without that of ``number_logits``, for which
            `number_gradients` is.
        first: the first column of the tile.

    Returns:
        f32[*B, C], exactly 0 in padded columns and where all cotangents are 0.
    """
    column = _columns(z, first)
    d_lse = cotangent.lse[..., None]
    grad = d_lse * jnp.exp(z - sums.top[..., None] - sums.log_sum[..., None])
    # Not the product alone: it is NaN where a position that counts nothing holds NaN.
    grad = jnp.where(d_lse == 0, 0.0, grad)
    grad += jnp.where(column == labels[..., None], cotangent.label_logit[..., None], 0)
    grad += cotangent.logit_sum[..., None]
    live = is_live(cotangent)[..., None] & (column < head.vocab.vocab_size)
    return _through_head(head, z, grad, live)


def _through_head(head: Head, z: Array, grad: Array, live: Array) -> Array:
    """From the gradient of the logits z to that of the matrix product, where live."""
    if head.soft_cap is not None:
        grad *= 1 - (z / head.soft_cap) ** 2
    return jnp.where(live & (z > MASKED_LOGIT), grad * head.logit_scale, 0.0)


def _columns(z: Array, first: int | Array) -> Int[Array, "*B C"]:
    """The index of each column, in the shape of z."""
    return first + jax.lax.broadcasted_iota(jnp.int32, z.shape, z.ndim - 1)


def over_tokens(
    a: Float[Array, "*B I"], b: Float[Array, "*B J"]
) -> Float32[Array, "I J"]:
    """sum_n a[n, i] b[n, j] over all tokens n."""
    # Flat, because XLA for CPUs refuses some bfloat16 products over two axes.
    a, b = a.reshape(-1, a.shape[-1]), b.reshape(-1, b.shape[-1])
    return product(a, b, ((0,), (0,)))


def hidden_gradient(
    grad: Float32[Array, "*B C"], kernel: Float[Array, "D C"]
) -> Float32[Array, "*B D"]:
    """The gradient of the hidden states from that of the matrix product."""
    return product(grad.astype(kernel.dtype), kernel, ((grad.ndim - 1,), (1,)))


class HeadGradients(NamedTuple):
    """The gradients of a head's kernel and bias."""

    kernel: Float[Array, "D V"]
    bias: Float[Array, "V"] | None


class GroupedGradients(NamedTuple):
    """Float32 sums of the gradients of a head, G groups of rows on their own.

    Where G devices share the rows, each adds up its own tiles, and `summed` is the only
    time that they meet.
    """

    kernel: Float32[Array, "G D V"]
    bias: Float32[Array, "G V"] | None

    @classmethod
    def zeros(cls, head: Head, kernel: Array, bias: Array | None, like: Array):
        """Zeros that vary over the `shard_map` axes of ``like``."""
        groups = head.row_groups
        of_kernel = zeros_like((groups, *kernel.shape), jnp.float32, like)
        if bias is None:
            return cls(of_kernel, None)
        return cls(of_kernel, zeros_like((groups, *bias.shape), jnp.float32, like))

    def add(
        self, hidden: Float[Array, "*B D"], grad: Float32[Array, "*B V"]
    ) -> "GroupedGradients":
        """Adds those of a tile of tokens, from the gradient of its matrix product."""
        groups = len(self.kernel)
        hidden = hidden.reshape(groups, -1, hidden.shape[-1])  # [G, N, D]
        grad = grad.reshape(groups, -1, grad.shape[-1])  # [G, N, V]
        # An outer `vmap` and not a loop: one product with a batch axis.
        kernel = self.kernel + jax.vmap(over_tokens)(hidden, grad.astype(hidden.dtype))
        if self.bias is None:
            return GroupedGradients(kernel, None)
        return GroupedGradients(kernel, self.bias + jnp.sum(grad, axis=1))

    def summed(self) -> HeadGradients:
        """The gradients, still float32."""
        bias = None if self.bias is None else jnp.sum(self.bias, axis=0)
        return HeadGradients(jnp.sum(self.kernel, axis=0), bias)


def add_number_gradients(
    head: Head,
    d_hidden: Float[Array, "*B D"],
    gradients: HeadGradients,
    hidden: Float[Array, "*B D"],
    kernel: Float[Array, "D V"],
    number_logits: Float32[Array, "*B K"],
    cotangent: Float32[Array, "*B K"],
) -> tuple[Float[Array, "*B D"], HeadGradients]:
    """Adds what the gradient of the number logits sends to the head's inputs.

    Two matrix products with K columns.
    """
    ids = head.vocab.token_ids
    live = cotangent != 0
    grad = _through_head(head, number_logits, cotangent, live)  # [*B, K]
    any_live = jnp.any(live, axis=-1, keepdims=True)
    hidden = jnp.where(any_live, hidden, jnp.zeros((), hidden.dtype))
    columns = jnp.take(kernel, ids, axis=1, mode="clip").astype(hidden.dtype)
    d_hidden += hidden_gradient(grad, columns).astype(d_hidden.dtype)
    of_columns = over_tokens(hidden, grad.astype(hidden.dtype))  # [D, K]
    d_kernel, d_bias = gradients
    d_kernel = d_kernel.at[:, ids].add(of_columns.astype(d_kernel.dtype))
    if d_bias is not None:
        of_bias = jnp.sum(grad, axis=range(grad.ndim - 1))
        d_bias = d_bias.at[ids].add(of_bias.astype(d_bias.dtype))
    return d_hidden, HeadGradients(d_kernel, d_bias)


def split(x: Array, tiling: tuple[int, int], axis: int) -> Array:
    """Cuts an axis into tiles, the last filled up with zeros, and puts them first."""
    x = lengthen(x, tiling, axis)
    shape = (*x.shape[:axis], *tiling, *x.shape[axis + 1 :])
    return jnp.moveaxis(x.reshape(shape), axis, 0)


def lengthen(x: Array, tiling: tuple[int, int], axis: int) -> Array:
    """Fills an axis up with zeros to a whole number of tiles."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, math.prod(tiling) - x.shape[axis])
    return jnp.pad(x, widths)


def join(tiles: Array, length: int, axis: int) -> Array:
    """Undoes `split`: the first axis goes back to where it was."""
    x = jnp.moveaxis(tiles, 0, axis)
    merged = math.prod(x.shape[axis : axis + 2])
    x = x.reshape(*x.shape[:axis], merged, *x.shape[axis + 2 :])
    return jax.lax.slice_in_dim(x, 0, length, axis=axis)


def zeros_like(shape: tuple[int, ...], dtype, like: Array) -> Array:
    """Zeros that vary over the same axes of a `shard_map` as another array does."""
    return jnp.zeros(shape, dtype) + _zero(like).astype(dtype)


def vary_like(tree: Any, like: Array) -> Any:
    """A pytree of float arrays that vary over the `shard_map` axes of ``like``.

    The transpose of this step sums their gradient over those axes.
    """
    return jax.tree.map(lambda x: x + _zero(like).astype(x.dtype), tree)


def _zero(like: Array) -> Float32[Array, ""]:
    """A 0 which XLA knows to be 0, and which shares the axes of ``like``."""
    return jnp.sum(like[..., :0].astype(jnp.float32))

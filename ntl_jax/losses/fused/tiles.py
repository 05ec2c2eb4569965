"""One tile of a fused head: its logits, what is read off them, and their gradient.

A tile is some tokens times all columns of the kernel, or all tokens times some columns.
It is the only place where logits exist.
"""

import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Int

from ntl_jax.kernels.logit_stats.dispatch import AxisName, logit_stats, logit_stats_vjp
from ntl_jax.kernels.logit_stats.reference import MASKED_LOGIT, ColumnCotangents
from ntl_jax.losses.stats import NumberStats
from ntl_jax.numbers.vocab import NumberVocab

Backward = Literal["tokens", "columns"]

LANES = 128  # columns come in multiples of this, as matrix units like them


class Head(NamedTuple):
    """The static part of a head: hashable, never traced."""

    vocab: NumberVocab
    logit_scale: float
    soft_cap: float | None
    ignore_index: int
    tile_tokens: int
    row_groups: int = 1
    backward: Backward = "tokens"
    logits_dtype: Any = None
    axis_name: AxisName = None

    def shards(self) -> int:
        """How many devices of a `shard_map` share out the columns."""
        return 1 if self.axis_name is None else jax.lax.axis_size(self.axis_name)

    def sum_shards(self, x: Array) -> Array:
        """The sum over these devices, in float32, in the dtype of x."""
        if self.axis_name is None:
            return x
        return jax.lax.psum(x.astype(jnp.float32), self.axis_name).astype(x.dtype)

    def places(self, columns: int) -> tuple[Array, Array | None]:
        """Where the number tokens stand in this device's columns, and which do so.

        The place of the others is ``columns``, which is none; None where all do.
        """
        ids = jnp.asarray(self.vocab.token_ids)
        if self.axis_name is None:
            return ids, None
        places = ids - jax.lax.axis_index(self.axis_name) * columns
        here = (places >= 0) & (places < columns)
        return jnp.where(here, places, columns), here

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
        log_sum: the log of the sum of exp(z - top).
        label_logit: the logit of the label, less top.
        logit_sum: the sum of z - top.
    """

    top: Float32[Array, "*B"]
    log_sum: Float32[Array, "*B"]
    label_logit: Float32[Array, "*B"]
    logit_sum: Float32[Array, "*B"]

    def stats(self, number_logits: Float32[Array, "*B K"]) -> NumberStats:
        """These sums as NumberStats; the number logits are not less top yet."""
        numbers = number_logits - self.top[..., None]
        return NumberStats(
            self.log_sum, self.label_logit, numbers, self.logit_sum, self.top
        )


def aligned(
    head: Head, kernel: Float[Array, "D V"], bias: Float[Array, "V"] | None, dtype
) -> tuple[Float[Array, "D C"], Float[Array, "C"] | None]:
    """The kernel in the dtype of products, in whole lanes, and the bias likewise.

    On a GPU a product with an odd number of bfloat16 columns is several times slower.
    """
    kernel = kernel.astype(dtype)
    missing = -kernel.shape[1] % LANES
    if missing and jnp.dtype(dtype).itemsize == 2 and head.axis_name is None:
        kernel = jnp.pad(kernel, ((0, 0), (0, missing)))
        bias = None if bias is None else jnp.pad(bias, (0, missing))
    return kernel, bias


def product(a: Array, b: Array, axes, dtype=jnp.float32) -> Array:
    """`jnp.tensordot`; exact for float32, on the matrix unit for bfloat16.

    The operands' dtype is what is multiplied; sums are float32 for either, and rounded
    once where ``dtype`` is another.
    """
    exact = a.dtype == jnp.float32
    precision = jax.lax.Precision.HIGHEST if exact else jax.lax.Precision.DEFAULT
    return jnp.tensordot(a, b, axes, precision=precision, preferred_element_type=dtype)


def logits_of(
    head: Head,
    hidden: Float[Array, "*B D"],
    kernel: Float[Array, "D C"],
    bias: Float[Array, "C"] | None,
) -> Float[Array, "*B C"]:
    """Scaled and capped logits of some columns, in the head's dtype for logits."""
    dtype = head.logits_dtype or hidden.dtype
    if bias is None and head.logit_scale == 1 and head.soft_cap is None:
        return product(hidden, kernel, 1, dtype)
    z = product(hidden, kernel, 1)
    if bias is not None:
        z += jnp.expand_dims(bias.astype(jnp.float32), range(z.ndim - 1))
    z *= head.logit_scale
    if head.soft_cap is not None:
        z = head.soft_cap * jnp.tanh(z / head.soft_cap)
    return jnp.maximum(z, MASKED_LOGIT).astype(dtype)


def number_logits_of(
    head: Head,
    hidden: Float[Array, "*B D"],
    kernel: Float[Array, "D V"],
    bias: Float[Array, "V"] | None,
) -> Float32[Array, "*B K"]:
    """The logits of the number tokens: a matmul with K columns."""
    places, here = head.places(kernel.shape[1])
    columns = jnp.take(kernel, places, axis=1, mode="clip").astype(hidden.dtype)
    bias = None if bias is None else jnp.take(bias, places, mode="clip")
    z = logits_of(head, hidden, columns, bias).astype(jnp.float32)
    return z if here is None else head.sum_shards(where_last(here, z))


def where_last(here: Bool[Array, "K"], x: Array) -> Array:
    """x [*B, K] where ``here``, 0 elsewhere."""
    return jnp.where(jnp.expand_dims(here, range(x.ndim - 1)), x, jnp.zeros_like(x))


def sums_of(head: Head, z: Float[Array, "*B V"], labels: Int[Array, "*B"]) -> LogitSums:
    """Reads a tile with all columns; ``labels`` are in [0, V)."""
    sums = logit_stats(head.vocab.vocab_size, None, head.axis_name, z, labels)
    label_logit = sums.label_logit - sums.top
    return LogitSums(sums.top, jnp.log(sums.exp_sum), label_logit, sums.logit_sum)


def is_live(cotangent: NumberStats) -> Bool[Array, "*B"]:
    """Where any cotangent is not 0; ``number_logits`` may be None."""
    live = (cotangent.log_sum != 0) | (cotangent.label_logit != 0)
    live |= cotangent.logit_sum != 0
    if cotangent.number_logits is None:
        return live
    return live | jnp.any(cotangent.number_logits != 0, axis=-1)


def gradient_of(
    head: Head,
    z: Float[Array, "*B C"],
    labels: Int[Array, "*B"],
    sums: LogitSums,
    cotangent: NumberStats,
    *,
    first: int | Int[Array, ""] = 0,
    padded: bool = True,
) -> Float[Array, "*B C"]:
    """The gradient of a tile's matrix product (and of the bias) from that of the stats.

    Args:
        head: the head.
        z: the logits of the columns from ``first`` on.
        labels: [*B], in [0, V).
        sums: of the same tokens.
        cotangent: of their NumberStats, without that of ``number_logits``, for which
            `add_number_gradients` is.
        first: the first column of the tile.
        padded: whether any column of the tile may be padding.

    Returns:
        [*B, C] in the dtype of z, exactly 0 in padded columns and where all cotangents
        are 0.
    """
    columns, real = z.shape[-1], head.vocab.vocab_size
    if not isinstance(first, int):  # from here on the first column is 0
        if padded:
            beyond = first + jnp.arange(columns) >= real
            beyond = jnp.expand_dims(beyond, range(z.ndim - 1))
            z = jnp.where(beyond, jnp.asarray(MASKED_LOGIT, z.dtype), z)
        labels, real = labels - first, columns
    none = jnp.zeros((*labels.shape, 0), jnp.float32)
    cotangents = ColumnCotangents(
        cotangent.log_sum, cotangent.label_logit, cotangent.logit_sum, none
    )
    grad = logit_stats_vjp(
        real,
        None,
        head.axis_name,
        z,
        labels,
        sums.top,
        sums.log_sum,
        cotangents,
        in_place=True,
    )
    return through_head(head, z, grad)


def through_head(head: Head, z: Array, grad: Array) -> Array:
    """From the gradient of the logits z to that of the matrix product."""
    if head.soft_cap is None and head.logit_scale == 1:
        return grad
    wide = grad.astype(jnp.float32) * head.logit_scale
    if head.soft_cap is not None:
        slope = 1 - (z.astype(jnp.float32) / head.soft_cap) ** 2
        wide = jnp.where(wide == 0, 0.0, wide * slope)  # z may be NaN where it is 0
    return wide.astype(grad.dtype)


def float32_sum(x: Array, axis) -> Array:
    """A sum in float32, whatever the dtype."""
    return jnp.sum(x.astype(jnp.float32), axis=axis)


def over_tokens(
    a: Float[Array, "*B I"], b: Float[Array, "*B J"], dtype=jnp.float32
) -> Float[Array, "I J"]:
    """sum_n a[n, i] b[n, j] over all tokens n, in float32 and then in ``dtype``."""
    # Flat, because XLA for CPUs refuses some bfloat16 products over two axes.
    a, b = a.reshape(-1, a.shape[-1]), b.reshape(-1, b.shape[-1])
    return product(a, b, ((0,), (0,)), dtype)


def hidden_gradient(
    grad: Float[Array, "*B C"], kernel: Float[Array, "D C"]
) -> Float32[Array, "*B D"]:
    """The gradient of the hidden states from that of the matrix product."""
    return product(grad.astype(kernel.dtype), kernel, ((grad.ndim - 1,), (1,)))


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

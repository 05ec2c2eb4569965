"""NumberStats straight from hidden states: the head and the losses in one.

A head with V = 128k columns makes more logits than a device holds, and the losses want
only the NumberStats. Here tokens are taken a tile at a time through one matrix product
with all columns, and the tile is read and forgotten. The gradient makes the tile again:
four matrix products in all where the dense path has three.
"""

from functools import partial
from typing import cast

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from ntl_jax.kernels.logit_stats.dispatch import AxisName
from ntl_jax.losses.fused import tiles
from ntl_jax.losses.fused.gradients import (
    GroupedGradients,
    HeadGradients,
    add_number_gradients,
)
from ntl_jax.losses.fused.head import check_head, make_head
from ntl_jax.losses.fused.tiles import Backward, Head, LogitSums
from ntl_jax.losses.stats import NumberStats
from ntl_jax.losses.targets import clip_labels
from ntl_jax.numbers.vocab import NumberVocab
from ntl_jax.sharding.auto_axes import on_auto_axes

_ALIGNMENT = 8  # bfloat16 columns that a matrix unit takes at once


@on_auto_axes(labels=2)
def stats_from_hidden(
    hidden: Float[Array, "*B D"],
    kernel: Float[Array, "D V"],
    labels: Int[Array, "*B"],
    vocab: NumberVocab,
    *,
    bias: Float[Array, "V"] | None = None,
    logit_scale: float = 1.0,
    soft_cap: float | None = None,
    ignore_index: int = -100,
    tile_tokens: int = 4096,
    row_groups: int = 1,
    backward: Backward = "tokens",
    logits_dtype: DTypeLike | None = None,
    axis_name: AxisName = None,
) -> NumberStats:
    """`stats_from_logits` of a head's logits, which never exist all at once.

    z = c tanh(s (h W + b) / c), or s (h W + b) without a cap

    Matrix products take their operands in the dtype of ``hidden`` (the kernel is cast
    once) and add up in float32; a tile's logits are then rounded to that dtype, as the
    dense path has them. With float32 hidden states all is exact float32.

    The gradient takes any cotangent, goes to hidden, kernel and bias, in their dtypes,
    and is summed in float32. A position whose cotangents are all 0 gives exactly 0 to
    each, whatever its hidden state holds.

    Tiles are cut along the last axis of labels, across all rows of the others. A batch
    that is spread over devices along an earlier axis stays so; ``tile_tokens`` then
    counts the tokens of all devices. Columns of the kernel may be spread over them, and
    its rows over axes that the batch is spread over too: over others, partial logits
    would have to be summed.

    Args:
        hidden: [*B, D] of any floating dtype.
        kernel: [D, V]. Columns from ``vocab.vocab_size`` on are padding: they have no
            probability and no gradient.
        labels: token ids [*B]. Ids outside [0, V) are clipped.
        vocab: the number tokens.
        bias: [V]. So have columns with a bias of -inf.
        logit_scale: s. T5 with tied embeddings has D**-0.5, Granite one over its
            ``logits_scaling``.
        soft_cap: c > 0, or None.
        ignore_index: the label that counts nothing.
        tile_tokens: tokens a tile, at least one a row. More are faster up to some
            thousands and take ``4 tile_tokens V`` bytes of memory and more.
        row_groups: how many devices share axis 0 of hidden. Each then sums the kernel's
            gradient over its own tiles, and they meet once instead of once a tile.
            Leave it at 1 on one device and inside a `shard_map`.
        backward: how the gradient is cut. "tokens" as the forward pass: the gradient of
            the kernel is summed over the tiles in a float32 copy. "columns" takes all
            tokens and some columns at a time, so that the kernel's gradient is written
            once, in its own dtype, and a float32 gradient of hidden is kept instead:
            less memory where the kernel is bfloat16 and larger than the hidden states.
            It slices the kernel by columns, which must not be spread over devices. The
            forward pass then takes half as many tokens again at a time.
        logits_dtype: dtype of a tile's logits and of their gradient; that of hidden
            where None. float32 under bfloat16 hidden states spares a loss the error of
            up to 2^-9 of the label's logit, and takes a tenth longer.
        axis_name: inside ``shard_map``, the mesh axis (or axes, major first) that the
            kernel's columns are sharded over: kernel and bias are then this device's,
            the stats and the gradient of hidden those of the whole head. Under
            ``check_vma=False`` differentiate inside, as for `stats_from_logits`.

    Returns:
        NumberStats over [*B], float32.

    Raises:
        TypeError: for integer hidden states or kernels, or floating labels.
        ValueError: if shapes differ, the kernel has too few columns, or an option is
            out of its range.

    >>> vocab = NumberVocab.from_mapping({"a": 0, "1": 1, "2": 2}, vocab_size=3)
    >>> hidden, kernel = jnp.ones((4, 8)), jnp.zeros((8, 3))
    >>> stats = stats_from_hidden(hidden, kernel, jnp.array([2, 0, 1, -100]), vocab)
    >>> print(stats.lse.round(4), stats.number_logits.shape)  # log 3
    [1.0986 1.0986 1.0986 1.0986] (4, 2)
    """
    head = make_head(
        vocab,
        logit_scale,
        soft_cap,
        ignore_index,
        tile_tokens,
        row_groups,
        backward,
        logits_dtype,
        axis_name,
    )
    check_head(head, hidden, kernel, labels, bias)
    kernel, bias = tiles.vary_like((kernel, bias), hidden)
    single = hidden.ndim == 1
    if single:
        hidden, labels = hidden[None], labels[None]
    stats = cast(NumberStats, fused_stats(head, hidden, kernel, bias, labels))
    return NumberStats(*(x[0] for x in stats)) if single else stats


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def fused_stats(head, hidden, kernel, bias, labels) -> NumberStats:
    """`stats_from_hidden` of checked arguments, with at least one axis of tokens."""
    return _forward(head, hidden, kernel, bias, labels)[0]


def _forward(head: Head, hidden, kernel, bias, labels):
    labels = clip_labels(labels, head.vocab.vocab_size, ignore_index=head.ignore_index)
    reading = head
    if head.backward == "columns":  # which holds more beside a tile than this does
        reading = head._replace(tile_tokens=max(1, head.tile_tokens * 3 // 2))
    sums = read_sums(reading, hidden, kernel, bias, labels)
    numbers = tiles.number_logits_of(head, hidden, kernel, bias)
    return sums.stats(numbers), (hidden, kernel, bias, labels, sums, numbers)


# Each call outside of `jit` would compile the functions that it makes for its scan, and
# keep them: hence a `jit` here, and below.
@partial(jax.jit, static_argnums=0, inline=True)
def read_sums(head: Head, hidden, kernel, bias, labels) -> LogitSums:
    """The sums over all columns of the logits of all tokens."""
    axis = labels.ndim - 1
    tiling = head.tiling(labels.shape)
    kernel, bias = tiles.aligned(head, kernel, bias, hidden.dtype)

    def read(_, tile):
        h, y = tile
        return None, tiles.sums_of(head, tiles.logits_of(head, h, kernel, bias), y)

    xs = jax.tree.map(lambda x: tiles.split(x, tiling, axis), (hidden, labels))
    _, sums = jax.lax.scan(read, None, xs)
    return jax.tree.map(lambda x: tiles.join(x, labels.shape[axis], axis), sums)


def _backward(head: Head, residuals, cotangent: NumberStats):
    hidden, kernel, bias, labels, sums, numbers = residuals
    # A NaN in a hidden state that counts nothing must not reach the kernel: 0 * NaN.
    live = tiles.is_live(cotangent)[..., None]
    hidden = jnp.where(live, hidden, jnp.zeros((), hidden.dtype))
    by = _by_tokens if head.backward == "tokens" else _by_columns
    rest = cotangent._replace(number_logits=None, top=None)
    d_hidden, gradients = by(head, hidden, kernel, bias, labels, sums, rest)
    d_hidden, gradients = add_number_gradients(
        head, d_hidden, gradients, hidden, kernel, numbers, cotangent.number_logits
    )
    return d_hidden, *cast_gradients(gradients, kernel, bias), None


fused_stats.defvjp(_forward, _backward)


def cast_gradients(
    gradients: HeadGradients, kernel: Array, bias: Array | None
) -> HeadGradients:
    """In the dtypes of the kernel and the bias."""
    of_kernel = gradients.kernel.astype(kernel.dtype)
    if gradients.bias is None or bias is None:
        return HeadGradients(of_kernel, None)
    return HeadGradients(of_kernel, gradients.bias.astype(bias.dtype))


@partial(jax.jit, static_argnums=0, inline=True)
def _by_tokens(head: Head, hidden, kernel, bias, labels, sums, cotangent):
    """Gradients of hidden, kernel and bias, some tokens at a time."""
    axis = labels.ndim - 1
    tiling = head.tiling(labels.shape)
    columns = kernel.shape[1]
    kernel, bias = tiles.aligned(head, kernel, bias, hidden.dtype)

    def pull(gradients, tile):
        h, *of_tokens = tile
        z = tiles.logits_of(head, h, kernel, bias)
        grad = tiles.gradient_of(head, z, *of_tokens)
        d_hidden = tiles.hidden_gradient(grad, kernel).astype(h.dtype)
        return gradients.add(h, grad), d_hidden

    xs = jax.tree.map(
        lambda x: tiles.split(x, tiling, axis), (hidden, labels, sums, cotangent)
    )
    start = GroupedGradients.zeros(head, kernel, bias, kernel)
    gradients, d_hidden = jax.lax.scan(pull, start, xs)
    return tiles.join(d_hidden, labels.shape[axis], axis), gradients.summed(columns)


@partial(jax.jit, static_argnums=0, inline=True)
def _by_columns(head: Head, hidden, kernel, bias, labels, sums, cotangent):
    """Gradients of hidden, kernel and bias, some columns at a time."""
    columns = kernel.shape[1]
    padded = columns > head.vocab.vocab_size
    blocks, width = _column_blocks(columns, head.tiling(labels.shape)[0])

    def block_of(x, first):
        return jax.lax.dynamic_slice_in_dim(x, first, width, axis=x.ndim - 1)

    def pull(carry, i):
        d_hidden, d_kernel, d_bias = carry
        first = jnp.minimum(i * width, columns - width)
        weight = block_of(kernel, first).astype(hidden.dtype)
        of_block = None if bias is None else block_of(bias, first)
        z = tiles.logits_of(head, hidden, weight, of_block)
        grad = tiles.gradient_of(
            head, z, labels, sums, cotangent, first=first, padded=padded
        )
        if columns % width:
            # The last block is moved left to fit. What it shares with the block before
            # must not reach the hidden states twice.
            own = first + jnp.arange(width) >= i * width
            weight = jnp.where(own, weight, jnp.zeros((), weight.dtype))
        d_hidden += tiles.hidden_gradient(grad, weight)
        of_kernel = tiles.over_tokens(hidden, grad.astype(hidden.dtype), kernel.dtype)
        d_kernel = jax.lax.dynamic_update_slice_in_dim(
            d_kernel, of_kernel, first, axis=1
        )
        if bias is not None:
            of_bias = tiles.float32_sum(grad, range(labels.ndim)).astype(bias.dtype)
            d_bias = jax.lax.dynamic_update_slice_in_dim(d_bias, of_bias, first, axis=0)
        return (d_hidden, d_kernel, d_bias), None

    start = (
        tiles.zeros_like(hidden.shape, jnp.float32, hidden),
        tiles.zeros_like(kernel.shape, kernel.dtype, hidden),
        None if bias is None else tiles.zeros_like(bias.shape, bias.dtype, hidden),
    )
    order = jnp.arange(blocks, dtype=jnp.int32)
    (d_hidden, d_kernel, d_bias), _ = jax.lax.scan(pull, start, order, reverse=True)
    return d_hidden.astype(hidden.dtype), HeadGradients(d_kernel, d_bias)


def _column_blocks(columns: int, wanted: int) -> tuple[int, int]:
    """(number of blocks, columns in each): blocks as large as the tiles of tokens.

    In equal parts where some number of blocks near the wanted one gives them, else in
    whole lanes, the last block overlapping the one before.
    """
    for blocks in range(wanted, min(2 * wanted, columns) + 1):
        if columns % (blocks * _ALIGNMENT) == 0:
            return blocks, columns // blocks
    width = -(-columns // wanted)
    width = min(columns, -(-width // tiles.LANES) * tiles.LANES)
    return -(-columns // width), width

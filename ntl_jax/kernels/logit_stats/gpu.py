"""`logit_stats` and `logit_stats_vjp` as Pallas kernels for NVIDIA GPUs.

The logits are read once forward, with a running maximum, and once backward. XLA's own
programs read them twice forward, and do not reach the speed of memory on bfloat16.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Float, Float32, Int, Int32

from ntl_jax.kernels.logit_stats.reference import (
    MASKED_LOGIT,
    ColumnCotangents,
    ColumnSums,
    FirstColumn,
    Ids,
)

# The fastest of those tried on an H100 (block 1024 to 16384, 1 to 16 warps), over
# 32128, 50257 and 128256 columns of bfloat16 and float32.
BLOCK = 2048
_READ_WARPS = 1
_WRITE_WARPS = 4
_LARGEST = 2**31  # the kernels count elements in int32


def fits(shape: tuple[int, ...], dtype) -> bool:
    """Whether the kernels take logits of this shape and dtype."""
    small = jnp.dtype(dtype).itemsize <= 4
    return small and shape[-1] >= BLOCK and 0 < math.prod(shape) < _LARGEST - BLOCK


def logit_stats(
    logits: Float[Array, "*B C"],
    labels: Int[Array, "*B"],
    token_ids: Ids,
    first_column: FirstColumn = 0,
    *,
    vocab_size: int,
    interpret: bool = False,
) -> ColumnSums:
    """As `ntl_jax.kernels.logit_stats.reference.logit_stats`."""
    shape, columns = labels.shape, logits.shape[-1]
    tokens = logits.size // columns
    numbers = len(token_ids)
    padded = pl.next_power_of_2(max(numbers, 1))
    places = jnp.asarray(token_ids) - first_column
    places = jnp.pad(places, (0, padded - numbers), constant_values=-1)
    like = partial(_like, logits)
    sums = pl.pallas_call(
        partial(_read_kernel, columns=columns, vocab_size=vocab_size, numbers=numbers),
        grid=(tokens,),
        out_shape=[like((tokens,)) for _ in range(4)] + [like((tokens, padded))],
        compiler_params=plgpu.CompilerParams(num_warps=_READ_WARPS, num_stages=2),
        interpret=interpret,
        name="ntl_read_columns",
    )(
        logits.reshape(tokens, columns),
        labels.reshape(tokens).astype(jnp.int32),
        _scalar(first_column),
        places,
    )
    top, exp_sum, label_logit, logit_sum = (x.reshape(shape) for x in sums[:4])
    number_logits = sums[4][:, :numbers].reshape(*shape, numbers)
    return ColumnSums(top, exp_sum, label_logit, logit_sum, number_logits)


def _read_kernel(
    z_ref,
    label_ref,
    first_ref,
    places_ref,
    top_ref,
    exp_sum_ref,
    label_logit_ref,
    logit_sum_ref,
    number_ref,
    *,
    columns: int,
    vocab_size: int,
    numbers: int,
):
    """One position: a running maximum, and sums that follow it."""
    token = pl.program_id(0)
    first = first_ref[0]
    real = jnp.clip(vocab_size - first, 0, columns)

    def add(carry, i, here):
        top, exp_sum, logit_sum = carry
        z = _load(z_ref.at[token, pl.ds(i * BLOCK, BLOCK)], here)
        z = jnp.maximum(z.astype(jnp.float32), MASKED_LOGIT)
        total = jnp.sum(z)  # what is not here reads as 0
        if here is not None:
            z = jnp.where(here, z, MASKED_LOGIT)
        higher = jnp.maximum(top, jnp.max(z))
        e = jnp.exp(z - higher)
        if here is not None:
            e = jnp.where(here, e, 0.0)
        lower = top - higher
        exp_sum = exp_sum * jnp.exp(lower) + jnp.sum(e)
        # Relative to the maximum block by block: an operation per logit costs a tenth.
        seen = i * BLOCK
        count = jnp.asarray(BLOCK if here is None else real - seen, jnp.float32)
        logit_sum += seen.astype(jnp.float32) * lower + (total - count * higher)
        return higher, exp_sum, logit_sum

    start = (jnp.float32(MASKED_LOGIT), jnp.float32(0), jnp.float32(0))
    whole = real // BLOCK  # blocks that need no mask, which is half of the arithmetic
    sums = jax.lax.fori_loop(0, whole, lambda i, c: add(c, i, None), start)
    rest = whole * BLOCK + jnp.arange(BLOCK) < real
    top, exp_sum, logit_sum = add(sums, whole, rest)
    top_ref[token] = top
    exp_sum_ref[token] = exp_sum
    logit_sum_ref[token] = logit_sum
    label = label_ref[token] - first
    inside = (label >= 0) & (label < columns)
    z = z_ref[token, jnp.clip(label, 0, columns - 1)].astype(jnp.float32)
    label_logit_ref[token] = jnp.where(inside, jnp.maximum(z, MASKED_LOGIT), 0.0)
    if numbers:
        places = places_ref[...]
        inside = (places >= 0) & (places < columns)
        z = plgpu.load(z_ref.at[token, places], mask=inside, other=0)
        z = jnp.maximum(z.astype(jnp.float32), MASKED_LOGIT)
        number_ref[token, :] = jnp.where(inside, z, 0.0)


def logit_stats_vjp(
    logits: Float[Array, "*B C"],
    labels: Int[Array, "*B"],
    top: Float32[Array, "*B"],
    log_sum: Float32[Array, "*B"],
    cotangents: ColumnCotangents,
    number_of_column: Ids,
    first_column: FirstColumn = 0,
    *,
    vocab_size: int,
    span: tuple[int, int],
    padded: bool,
    in_place: bool = False,
    interpret: bool = False,
) -> Float[Array, "*B C"]:
    """As `ntl_jax.kernels.logit_stats.reference.logit_stats_vjp`.

    Further args:
        span: the least and the largest number token.
        padded: whether any column may be padding.
        in_place: whether to write over the logits.
    """
    columns = logits.shape[-1]
    tokens = logits.size // columns
    numbers = cotangents.number_logits.shape[-1]
    silent = cotangents.log_sum == 0  # at NaN too
    scale = jnp.where(silent, 0.0, cotangents.log_sum * jnp.exp(-log_sum))
    scalars = (labels, top, scale, *cotangents[1:3])
    gradient = pl.pallas_call(
        partial(
            _write_kernel,
            tokens=tokens,
            columns=columns,
            vocab_size=vocab_size,
            numbers=numbers,
            span=span,
            padded=padded,
        ),
        grid=(pl.cdiv(tokens * columns, BLOCK),),
        out_shape=_like(logits, (tokens * columns,), logits.dtype),
        compiler_params=plgpu.CompilerParams(num_warps=_WRITE_WARPS, num_stages=1),
        input_output_aliases={0: 0} if in_place else {},
        interpret=interpret,
        name="ntl_write_columns",
    )(
        logits.reshape(-1),
        _scalar(first_column),
        jnp.asarray(number_of_column),
        cotangents.number_logits.reshape(-1) if numbers else jnp.zeros(1),
        *(x.reshape(tokens) for x in scalars),
    )
    return gradient.reshape(logits.shape)


def _write_kernel(
    z_ref,
    first_ref,
    source_ref,
    d_number_ref,
    label_ref,
    top_ref,
    scale_ref,
    d_label_ref,
    d_sum_ref,
    grad_ref,
    *,
    tokens: int,
    columns: int,
    vocab_size: int,
    numbers: int,
    span: tuple[int, int],
    padded: bool,
):
    """One aligned stretch of the flat logits: columns of one position, or of two."""
    start = pl.multiple_of(pl.program_id(0) * BLOCK, BLOCK)
    token = start // columns
    first = first_ref[0]
    flat = start + jnp.arange(BLOCK)

    def write(of_token, row, mask):
        raw = _load(z_ref.at[pl.ds(start, BLOCK)], mask)
        raw = raw.astype(jnp.float32)
        scale = of_token(scale_ref)
        # Not scale * exp alone: where the logits hold NaN or inf, 0 * exp is NaN.
        grad = jnp.where(scale == 0, 0.0, scale * jnp.exp(raw - of_token(top_ref)))
        grad += of_token(d_sum_ref)
        label = row * columns + of_token(label_ref) - first
        inside = (label >= row * columns) & (label < (row + 1) * columns)
        label = jnp.where(inside, label, -1)
        grad += jnp.where(flat == label, of_token(d_label_ref), 0.0)
        if numbers:
            grad += of_numbers(row, mask)
        grad = jnp.where(raw <= MASKED_LOGIT, 0.0, grad)
        if padded:
            grad = jnp.where(flat - row * columns >= vocab_size - first, 0.0, grad)
        grad = grad.astype(grad_ref.dtype)
        plgpu.store(grad_ref.at[pl.ds(start, BLOCK)], grad, mask=mask)

    def of_numbers(row, mask):
        """The numbers' part: two loads an element, which most stretches can skip."""

        def load():
            source = source_ref.at[flat - row * columns]
            source = _load(source, mask, other=numbers)
            d_number = d_number_ref.at[row * numbers + source]
            return plgpu.load(d_number, mask=source < numbers, other=0.0)

        low = first + start - token * columns
        high = low + BLOCK - 1
        some = ((low <= span[1]) & (high >= span[0])) | (high - columns >= span[0])
        return jax.lax.cond(some, load, partial(jnp.zeros, BLOCK, jnp.float32))

    one = start + BLOCK <= (token + 1) * columns

    @pl.when(one)
    def _():
        write(lambda ref: ref[token], token, None)

    @pl.when(jnp.logical_not(one))
    def _():
        after = jnp.minimum(token + 1, tokens - 1)
        is_after = flat >= (token + 1) * columns
        row = jnp.where(is_after, after, token)
        mask = flat < tokens * columns
        write(lambda ref: jnp.where(is_after, ref[after], ref[token]), row, mask)


def _load(ref, mask, other=0):
    return plgpu.load(ref, mask=mask, other=None if mask is None else other)


def _scalar(first_column: FirstColumn) -> Int32[Array, "1"]:
    return jnp.asarray(first_column, jnp.int32).reshape(1)


def _like(logits: Array, size: tuple[int, ...], dtype=jnp.float32):
    """An output that varies over the mesh axes of ``shard_map`` that the logits do."""
    varying = jax.typeof(logits).manual_axis_type
    return jax.ShapeDtypeStruct(size, dtype, manual_axis_type=varying)

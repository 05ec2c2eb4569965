"""`read_columns` and `write_columns` as Pallas kernels for NVIDIA GPUs.

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

from ntl_jax.losses.columns import (
    MASKED_LOGIT,
    ColumnCotangents,
    ColumnSums,
    FirstColumn,
    Ids,
)

# The fastest of those tried on an H100 (block 1024 to 16384, 2 to 16 warps), over
# 32128, 50257 and 128256 columns of bfloat16 and float32.
BLOCK = 2048
_READ_WARPS = 2
_WRITE_WARPS = 4
_LARGEST = 2**31  # the kernels count elements in int32


def fits(shape: tuple[int, ...], dtype) -> bool:
    """Whether the kernels take logits of this shape and dtype."""
    small = jnp.dtype(dtype).itemsize <= 4
    return small and shape[-1] >= BLOCK and 0 < math.prod(shape) < _LARGEST - BLOCK


def read_columns(
    logits: Float[Array, "*B C"],
    labels: Int[Array, "*B"],
    token_ids: Ids,
    first_column: FirstColumn = 0,
    *,
    vocab_size: int,
    interpret: bool = False,
) -> ColumnSums:
    """As `ntl_jax.losses.columns.read_columns`."""
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
    real = jnp.minimum(columns, vocab_size - first)

    def step(i, carry):
        top, exp_sum, logit_sum = carry
        column = i * BLOCK + jnp.arange(BLOCK)
        here = column < real
        z = plgpu.load(z_ref.at[token, pl.ds(i * BLOCK, BLOCK)], mask=here, other=0)
        z = jnp.maximum(z.astype(jnp.float32), MASKED_LOGIT)
        logit_sum += jnp.sum(jnp.where(here, z, 0.0))
        z = jnp.where(here, z, MASKED_LOGIT)
        higher = jnp.maximum(top, jnp.max(z))
        exp_sum = exp_sum * jnp.exp(top - higher)
        # Padding would count where every logit is MASKED_LOGIT, as it does in XLA's
        # read: the columns that this block only pretends to have do not.
        e = jnp.where(column < columns, jnp.exp(z - higher), 0.0)
        return higher, exp_sum + jnp.sum(e), logit_sum

    start = (jnp.float32(MASKED_LOGIT), jnp.float32(0), jnp.float32(0))
    blocks = pl.cdiv(columns, BLOCK)
    top, exp_sum, logit_sum = jax.lax.fori_loop(0, blocks, step, start)
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


def write_columns(
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
    interpret: bool = False,
) -> Float[Array, "*B C"]:
    """As `ntl_jax.losses.columns.write_columns`; span is the least and largest id."""
    columns = logits.shape[-1]
    tokens = logits.size // columns
    numbers = cotangents.number_logits.shape[-1]
    scalars = (labels, top, log_sum, *cotangents[:3])
    gradient = pl.pallas_call(
        partial(
            _write_kernel,
            tokens=tokens,
            columns=columns,
            vocab_size=vocab_size,
            numbers=numbers,
            span=span,
        ),
        grid=(pl.cdiv(tokens * columns, BLOCK),),
        out_shape=_like(logits, (tokens * columns,), logits.dtype),
        compiler_params=plgpu.CompilerParams(num_warps=_WRITE_WARPS, num_stages=1),
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
    log_sum_ref,
    d_lse_ref,
    d_label_ref,
    d_sum_ref,
    grad_ref,
    *,
    tokens: int,
    columns: int,
    vocab_size: int,
    numbers: int,
    span: tuple[int, int],
):
    """One aligned stretch of the flat logits, which holds columns of two positions."""
    start = pl.multiple_of(pl.program_id(0) * BLOCK, BLOCK)
    token = start // columns
    after = jnp.minimum(token + 1, tokens - 1)
    first = first_ref[0]
    flat = start + jnp.arange(BLOCK)
    inside = flat < tokens * columns
    is_after = flat >= (token + 1) * columns
    column = first + flat - jnp.where(is_after, token + 1, token) * columns

    def of_token(ref):
        return jnp.where(is_after, ref[after], ref[token])

    def of_numbers():
        source = plgpu.load(source_ref.at[column - first], mask=inside, other=numbers)
        at = jnp.where(is_after, after, token) * numbers + source
        return plgpu.load(d_number_ref.at[at], mask=source < numbers, other=0.0)

    raw = plgpu.load(z_ref.at[pl.ds(start, BLOCK)], mask=inside, other=0)
    raw = raw.astype(jnp.float32)
    z = jnp.maximum(raw, MASKED_LOGIT)
    d_lse = of_token(d_lse_ref)
    p = jnp.exp(z - of_token(top_ref) - of_token(log_sum_ref))
    grad = jnp.where(d_lse == 0, 0.0, d_lse * p) + of_token(d_sum_ref)
    grad += jnp.where(column == of_token(label_ref), of_token(d_label_ref), 0.0)
    if numbers:
        # Most stretches hold no number: they skip two loads an element.
        low = first + start - token * columns
        high = low + BLOCK - 1
        some = ((low <= span[1]) & (high >= span[0])) | (high - columns >= span[0])
        zero = partial(jnp.zeros, BLOCK, jnp.float32)
        grad += jax.lax.cond(some, of_numbers, zero)
    fixed = (column >= vocab_size) | (raw <= MASKED_LOGIT)
    grad = jnp.where(fixed, 0.0, grad).astype(grad_ref.dtype)
    plgpu.store(grad_ref.at[pl.ds(start, BLOCK)], grad, mask=inside)


def _scalar(first_column: FirstColumn) -> Int32[Array, "1"]:
    return jnp.asarray(first_column, jnp.int32).reshape(1)


def _like(logits: Array, size: tuple[int, ...], dtype=jnp.float32):
    """An output that varies over the mesh axes of ``shard_map`` that the logits do."""
    varying = jax.typeof(logits).manual_axis_type
    return jax.ShapeDtypeStruct(size, dtype, manual_axis_type=varying)

"""Attention by kernels that write no [B, N, T, S] array, dropout and bias included."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32

from ntl_jax.kernels.attention import partition
from ntl_jax.kernels.attention.tiles import Operands, Options, Tiles, default_tiles
from ntl_jax.kernels.dropout import DropoutSite
from ntl_jax.kernels.residuals import name_residual

WIDTHS = (16, 32, 64, 128)


def flash_attention(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K H"],
    *,
    scale: float,
    bias: Float32[Array, "#B #N #T #S"] | None = None,
    mask: Bool[Array, "#B 1 #T #S"] | None = None,
    causal: bool = False,
    dropout: DropoutSite | None = None,
    tiles: Tiles | None = None,
    interpret: bool = False,
) -> Float[Array, "B T N H"]:
    """As `dispatch.attend`, on NVIDIA GPUs.

    softmax(scale * q kᵀ + bias) v, in float32 inside. Dropout drops the same
    probabilities that `attend` drops. Nothing depends on the order in which programs
    finish: two runs give the same bits.

    Args:
        q: queries, float32 or bfloat16; H is 16, 32, 64 or 128.
        k: keys, K heads; query head n reads key head n // (N / K).
        v: values, as the keys.
        scale: what the scores are multiplied by.
        bias: added to the scaled scores; it has a gradient, summed over the axes that
            are 1.
        mask: true where a query sees a key, the same for all heads. A query that sees
            nothing gets the mean of all values, and no gradient flows through it.
        causal: whether queries see no key after themselves, besides what the mask
            says; tiles that nobody sees are skipped. T is S.
        dropout: dropout of the probabilities.
        tiles: how much a kernel works on at a time; None: `default_tiles`.
        interpret: run the kernels by Pallas' interpreter, on any device and slowly.

    Returns:
        [B, T, N, H] in the queries' dtype.

    Raises:
        ValueError: shapes, dtypes or options that the kernels do not take.
    """
    problem = unfit(q, k, scale=scale, mask=mask, dropout=dropout)
    if problem:
        raise ValueError(f"attention by Triton kernels {problem}")
    (batch, length, heads, width), sources = q.shape, k.shape[1]
    if bias is not None:
        shape = (bias.shape[0], heads, length, sources)
        bias = jnp.broadcast_to(bias.astype(jnp.float32), shape)
    hashes = None
    if dropout is not None and dropout.active:
        hashes = (*dropout.row_hashes(batch), jnp.zeros(batch, jnp.uint32))
    options = Options(
        scale=float(scale),
        causal=causal,
        rate=dropout.rate if dropout is not None and hashes is not None else 0.0,
        tiles=default_tiles(width, q.dtype.itemsize) if tiles is None else tiles,
        interpret=interpret,
    )
    seen = None if mask is None else _compact(mask, length, sources)
    return _attention(options, q, k, v, bias, seen, hashes)


def unfit(q, k, *, scale, mask=None, dropout=None) -> str | None:
    """Why the kernels do not take these operands, in words, or None if they do."""
    if q.dtype not in (jnp.float32, jnp.bfloat16) or k.dtype != q.dtype:
        return f"takes float32 or bfloat16, alike; q is {q.dtype}, k {k.dtype}"
    if q.shape[3] not in WIDTHS:
        return f"takes heads of width {WIDTHS}; q {q.shape} has {q.shape[3]}"
    if 0 in (*q.shape, *k.shape):
        return f"takes no empty arrays; q is {q.shape}, k {k.shape}"
    if not isinstance(scale, (int, float)):
        return f"takes a scale known at trace time; it is {scale}"
    if mask is not None and mask.shape[1] != 1:
        return f"takes a mask that is alike for all heads; it is {mask.shape}"
    if dropout is not None and not isinstance(dropout, DropoutSite):
        return f"takes a DropoutSite for dropout; it is a {type(dropout).__name__}"
    return None


def _compact(mask, length: int, sources: int):
    """[M, T, S], or [M, S] where queries are alike; in bytes."""
    rows, _, queries, _ = mask.shape
    shape = (rows, sources) if queries == 1 else (rows, length, sources)
    mask = mask[:, 0, 0] if queries == 1 else mask[:, 0]
    return jnp.broadcast_to(mask, shape).astype(jnp.int8)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(options: Options, q, k, v, bias, mask, hashes):
    x = Operands(q, k, v, bias, mask, hashes)
    return partition.forward(x, options)[0]


def _attention_forward(options: Options, q, k, v, bias, mask, hashes):
    x = Operands(q, k, v, bias, mask, hashes)
    out, log_sums = (name_residual(y) for y in partition.forward(x, options))
    return out, (x, out, log_sums)


def _attention_backward(options: Options, residuals, cotangent):
    x, out, log_sums = residuals
    means = jnp.einsum(
        "BTNH,BTNH->BNT", out.astype(jnp.float32), cotangent.astype(jnp.float32)
    )
    gradients = partition.backward(x, cotangent, log_sums, means, options)
    dq, dk, dv, *dbias = gradients
    return dq, dk, dv, dbias[0] if dbias else None, None, None


_attention.defvjp(_attention_forward, _attention_backward)

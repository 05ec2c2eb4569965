"""Attention in plain JAX: what the kernels are compared with."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ntl_jax.kernels.einsum import einsum_float32

MASKED = -1e30

"""Added to a score that must not be seen; finite, so a row with nothing to see stays
finite too."""


def _attend(q, k, v, scale, bias, mask, causal, dropout) -> Float[Array, "B T N H"]:
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
    if dropout is not None:
        weights = dropout(weights)
    if groups == heads:
        return jnp.einsum("BNTS,BSNH->BTNH", weights, v)
    weights = weights.reshape(batch, groups, heads // groups, length, k.shape[1])
    mixed = jnp.einsum("BKGTS,BSKH->BTKGH", weights, v)
    return mixed.reshape(q.shape)

"""What every language model here is made of: linear maps, norms, tables, stacks.

Parameters are float32 and cast to the activations' dtype where they are used.
Matrix products that feed a softmax leave the matrix unit in float32.
"""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Float32, Int

from ntl_jax.kernels.einsum import (
    einsum_float32,
)
from ntl_jax.kernels.platforms import traced_platform
from ntl_jax.models.remat import Gather, Remat, gathered, remat_layer
from ntl_jax.sharding.constrain import constrain
from ntl_jax.sharding.mesh import tensor_size
from ntl_jax.sharding.spmd import sum_over_replicas


class Linear(nnx.Module):
    """`y = x @ kernel`, no bias; kernel [in, out] drawn from N(0, std²).

    ``gather``: how the kernel is gathered before it is used, see `Gather`.
    """

    def __init__(
        self,
        d_in: int,
        d_out: int,
        *,
        std: float,
        rngs: nnx.Rngs,
        gather: Gather = None,
    ):
        draw = jax.random.normal(rngs.params(), (d_in, d_out), jnp.float32)
        self.kernel = nnx.Param(std * draw)
        self.gather: Gather = gather

    def __call__(self, x: Float[Array, "*B I"]) -> Float[Array, "*B O"]:
        kernel = self.kernel[...].astype(x.dtype)
        return x @ gathered(kernel, self.gather)


class Affine(nnx.Module):
    """`y = x @ kernel + bias`; kernel [in, *out] drawn from N(0, std²), bias zero.

    ``gather``: as of `Linear`.
    """

    def __init__(
        self,
        d_in: int,
        *out: int,
        std: float,
        rngs: nnx.Rngs,
        gather: Gather = None,
    ):
        draw = jax.random.normal(rngs.params(), (d_in, *out), jnp.float32)
        self.kernel = nnx.Param(std * draw)
        self.bias = nnx.Param(jnp.zeros(out, jnp.float32))
        self.gather: Gather = gather

    def __call__(self, x: Float[Array, "*B I"]) -> Float[Array, "..."]:
        kernel = self.kernel[...].astype(x.dtype)
        kernel = gathered(kernel, self.gather)
        bias = self.bias[...].astype(x.dtype)
        return jnp.tensordot(x, kernel, axes=1) + jnp.expand_dims(
            bias, range(x.ndim - 1)
        )


class Embedding(nnx.Module):
    """A table [rows, width] drawn from N(0, std²), read by row number."""

    def __init__(self, rows: int, width: int, *, std: float, rngs: nnx.Rngs):
        draw = jax.random.normal(rngs.params(), (rows, width), jnp.float32)
        self.embedding = nnx.Param(std * draw)

    def __call__(self, ids: Int[Array, "*B"], dtype: str) -> Float[Array, "*B D"]:
        table = self.embedding[...]
        rows = _read_cast(table, ids) if table.dtype.itemsize < 4 else table[ids]
        if ids.ndim == 2:
            # Each device reads its part of the hidden dimension for the examples of its
            # whole `fsdp` group, which then trade parts for examples. Otherwise the
            # partitioner sends every state of the batch to every device.
            rows = constrain(rows, "batch", None, "hidden")
        return rows.astype(dtype)


@jax.custom_vjp
def _read_cast(table: Float[Array, "V D"], ids: Int[Array, "*B"]) -> Array:
    """`table[ids]`, of a table that was cast down.

    Its gradient is summed in float32 by each device, and over devices as it is cast: a
    product with the same table has its own summed so too, and XLA sums the two at once.
    """
    return table[ids]


def _read_forward(table, ids):
    return table[ids], (table, ids)


def _read_backward(saved, cotangent):
    table, ids = saved

    def summed(ids, cotangent):
        shape = (table.shape[0], cotangent.shape[-1])
        rows = jax.ShapeDtypeStruct(shape, jnp.float32)
        transpose = jax.linear_transpose(lambda rows: rows[ids], rows)
        return transpose(cotangent.astype(jnp.float32))[0].astype(table.dtype)

    return sum_over_replicas(summed, ids, cotangent), None


_read_cast.defvjp(_read_forward, _read_backward)


class RMSNorm(nnx.Module):
    """`x / sqrt(mean(x²) + eps) * scale`, in float32, no mean taken off, no bias."""

    def __init__(self, width: int, *, eps: float, scale: float = 1.0):
        self.eps = eps
        self.scale = nnx.Param(jnp.full((width,), scale, jnp.float32))

    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        y = x.astype(jnp.float32)
        variance = jnp.mean(jnp.square(y), axis=-1, keepdims=True)
        y = y * jax.lax.rsqrt(variance + self.eps)
        return jnp.multiply(
            y, jnp.expand_dims(self.scale[...], range(y.ndim - 1))
        ).astype(x.dtype)


class LayerNorm(nnx.Module):
    """`(x - mean) / sqrt(variance + eps) * scale + bias`, in float32."""

    def __init__(self, width: int, *, eps: float):
        self.eps = eps
        self.scale = nnx.Param(jnp.ones((width,), jnp.float32))
        self.bias = nnx.Param(jnp.zeros((width,), jnp.float32))

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        y = x.astype(jnp.float32)
        y = y - jnp.mean(y, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(y), axis=-1, keepdims=True)
        y = y * jax.lax.rsqrt(variance + self.eps)
        y = y * self.scale[...][None, None] + self.bias[...][None, None]
        return y.astype(x.dtype)


def stack_layers(make: Callable[[nnx.Rngs], nnx.Module], count: int, rngs: nnx.Rngs):
    """`count` modules of one kind as one module whose leaves are [count, ...]."""
    build = nnx.split_rngs(splits=count)(nnx.vmap(make, in_axes=(0,), out_axes=0))
    return build(rngs)


Unroll = bool | Literal["auto"]
"""Whether layers are written out one after another, which takes longer to compile and
leaves out the copies that a loop makes of what the backward pass keeps. "auto": written
out for GPUs, where something is kept."""


def check_unroll(unroll: Unroll) -> None:
    """Raises ValueError for what is no `Unroll`."""
    if unroll not in (False, True, "auto"):
        raise ValueError(f"unroll_layers is {unroll!r}; choose False, True or 'auto'")


def check_remat(remat: Remat) -> None:
    """Raises ValueError for what is no `Remat`."""
    if remat not in (False, True, "matmuls", "gathered"):
        raise ValueError(
            f"remat is {remat!r}; choose False, True, 'matmuls' or 'gathered'"
        )


def run_layers(layers, count: int, step, carry, *, unroll: Unroll, remat: Remat):
    """Runs stacked layers one after another.

    Args:
        layers: a module from `stack_layers`.
        count: how many layers it stacks.
        step: `(layer, index, carry) -> carry`; the index is traced.
        carry: what the first layer is given.
        unroll: whether to write the layers out one after another; see `Unroll`.
        remat: what of each layer is computed again in the backward pass instead of
            being kept; see `Remat`.

    Returns:
        What the last layer gave.
    """
    graph, params = nnx.split(layers)
    if unroll == "auto":
        unroll = traced_platform() == "gpu" and remat is not True

    def body(carry, item):
        index, layer = item
        return step(nnx.merge(graph, layer), index, carry), None

    body = remat_layer(body, remat, prevent_cse=unroll)
    items = (jnp.arange(count, dtype=jnp.int32), params)
    return jax.lax.scan(body, carry, items, unroll=unroll)[0]


_LANES = 128  # columns come in multiples of this, as matrix units like them


def head_logits(
    hidden: Float[Array, "B T D"],
    weight: Float[Array, "D V"] | Float[Array, "V D"],
    *,
    tied: bool,
    aligned: bool,
) -> Float32[Array, "B T C"]:
    """Float32 products of hidden states with a head's columns.

    Args:
        hidden: states.
        weight: a kernel, or a table of embeddings where ``tied``.
        tied: which of the two.
        aligned: whether C may be larger than V, where that is faster: on a GPU a
            product with an odd number of bfloat16 columns takes several times as long.
            The logits of the columns beyond V are 0.
    """
    weight = weight.astype(hidden.dtype)
    missing = -weight.shape[not tied] % _LANES
    if aligned and missing and tensor_size() == 1 and hidden.dtype.itemsize == 2:
        weight = jnp.pad(
            weight, ((0, missing), (0, 0)) if tied else ((0, 0), (0, missing))
        )
    logits = einsum_float32("BTD,VD->BTV" if tied else "BTD,DV->BTV", hidden, weight)
    return constrain(logits, "batch", ..., "vocab")

"""Attention's kernels on operands that may be sharded, and under `vmap`.

The batch may be sharded, and heads where the key heads divide. A bias that examples
share has its gradient summed over the devices that share the batch. Under `vmap` the
models' batches are one longer batch.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ntl_jax.kernels.attention import gpu
from ntl_jax.kernels.attention.tiles import Operands, Options
from ntl_jax.sharding.spmd import Axes, merge_batches, psum, shardable


def forward(x: Operands, options: Options) -> tuple[Array, Array]:
    """As `gpu.forward`, of operands that may be sharded."""
    leaves, tree = jax.tree.flatten(x)
    out, log_sums = _program(_forward, tree, options)(*leaves)
    return out, log_sums


def backward(x: Operands, cotangent, log_sums, means, options: Options):
    """As `gpu.backward`, of operands that may be sharded."""
    leaves, tree = jax.tree.flatten((x, cotangent, log_sums, means))
    return _program(_backward, tree, options)(*leaves)


def _forward(axes: Axes, options: Options, x: Operands):
    return gpu.forward(_with_first_place(x, axes), options)


def _backward(axes: Axes, options: Options, given):
    x, cotangent, log_sums, means = given
    x = _with_first_place(x, axes)
    out = gpu.backward(x, cotangent, log_sums, means, options)
    if axes.get("c") == ():  # one bias for all rows
        return *out[:3], psum(out[3], axes["b"])
    return out


@lru_cache(maxsize=256)
def _program(run: Callable, tree: Any, options: Options) -> Callable:
    """`run(axes, options, operands)` of flat operands."""

    def flat(axes: Axes, *leaves):
        return run(axes, options, jax.tree.unflatten(tree, leaves))

    def rule(*leaves) -> str:
        given = jax.tree.unflatten(tree, leaves)
        backwards = not isinstance(given, Operands)
        return _rule(given[0] if backwards else given, backwards)

    return shardable(
        flat, rule, batch="bcm", tensor="nk", partly=True, vmap=merge_batches
    )


def _rule(x: Operands, backwards: bool) -> str:
    """Which dimensions of operands and results are one; see `shardable`."""
    # Heads in groups have a letter of their own, although key heads are sharded as they
    # are: told so, the partitioner splits a mesh axis in two where groups are few.
    heads = "k" if x.q.shape[2] == x.k.shape[2] else "n"
    batch, q = x.q.shape[0], f"b t {heads} h"
    operands = [q, "b s k h", "b s k h"]
    if x.bias is not None:
        rows = "b" if x.bias.shape[0] == batch else "c"
        operands.append(f"{rows} {heads} t s")
    if x.mask is not None:
        rows = "b" if x.mask.shape[0] == batch else "m"
        operands.append(f"{rows} t s" if x.mask.ndim == 3 else f"{rows} s")
    operands += ["b"] * 3 * (x.hashes is not None)
    results = [q, f"b {heads} t"]
    if backwards:
        results = operands[: 3 if x.bias is None else 4]
        operands += [q, *[f"b {heads} t"] * 2]
    return f"{', '.join(operands)} -> {', '.join(results)}"


def _with_first_place(x: Operands, axes: Axes) -> Operands:
    """Operands of which dropout knows how many heads lie on the devices before."""
    names = axes["k"]
    if x.hashes is None or not names:
        return x
    first, second, begin = x.hashes
    places = x.q.shape[1] * x.q.shape[2] * x.k.shape[1]
    device = jax.lax.axis_index(names[0] if len(names) == 1 else names)
    begin = begin + device.astype(jnp.uint32) * np.uint32(places % 2**32)
    return x._replace(hashes=(first, second, begin))

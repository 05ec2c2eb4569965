"""A number for the content of each array, the same however the array is spread out."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_SHOWN = 5  # differences


def digests(tree: Any) -> dict[str, str]:
    """The dtype, shape and digest of every array, by its path.

    Each element's bits are mixed with its place, and the results added up modulo 2^32:
    on the devices, each its own shards, so that no array is gathered. Change one
    element, and the digest surely changes; any other change goes unseen once in 2^32.

    Returns:
        Texts as ``float32[8,16] 1f3a90bc``.
    """
    # One by one: simulated devices end the process where many programs with sums over
    # devices wait for each other.
    sums = [int(_digest(leaf)) for leaf in jax.tree.leaves(tree)]
    return {
        name: f"{kind} {number:08x}"
        for (name, kind), number in zip(kinds(tree).items(), sums, strict=True)
    }


def compile_digests(tree: Any) -> None:
    """Compiles what `digests` will run, for arrays of these shapes and shardings."""
    for leaf in jax.tree.leaves(tree):
        _digest.lower(leaf).compile()  # of those alike once


def kinds(tree: Any) -> dict[str, str]:
    """The dtype and shape of every array, or of what describes one, by its path.

    >>> kinds({"a": [jax.ShapeDtypeStruct((8, 16), jnp.float32)]})
    {'a/0': 'float32[8,16]'}
    """
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): (
            f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"
        )
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def differences(saved: dict[str, str], asked: dict[str, str]) -> list[str]:
    """A line for each array that `kinds` says something else of, but for too many.

    >>> differences({"a": "float32[8]"}, {"a": "float32[9]"})
    ['a: float32[8] saved, float32[9] asked for']
    """
    names = sorted(name for name in saved | asked if saved.get(name) != asked.get(name))
    lines = [
        f"{name}: {saved.get(name, 'nothing')} saved, "
        f"{asked.get(name, 'nothing')} asked for"
        for name in names[:_SHOWN]
    ]
    more = len(names) - len(lines)
    return lines + [f"and {more} more"] * (more > 0)


@jax.jit
def _digest(array: jax.Array) -> jax.Array:
    """u32 []: the sum of the mixed elements."""
    array = jnp.asarray(array)
    if array.dtype == jnp.bool_:
        array = array.astype(jnp.uint8)
    unsigned = jnp.dtype(f"uint{8 * array.dtype.itemsize}")
    bits = jax.lax.bitcast_convert_type(array, unsigned).astype(jnp.uint32)
    place = jnp.zeros(array.shape, jnp.uint32)
    for axis, _ in enumerate(array.shape):
        stride = np.uint32(math.prod(array.shape[axis + 1 :]) % 2**32)
        place += jax.lax.broadcasted_iota(jnp.uint32, array.shape, axis) * stride
    return jnp.sum(_mixed(bits ^ _mixed(place + np.uint32(1))), dtype=jnp.uint32)


def _mixed(x: jax.Array) -> jax.Array:
    """A bijection of 32 bits; source: MurmurHash3's finaliser (Appleby)."""
    x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
    return x ^ (x >> 16)

"""A checksum of each array, the same however the array is sharded."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_SHOWN = 5  # differences


def digests(tree: Any) -> dict[str, str]:
    """The dtype, shape and digest of every array, by its path.

    Each element's bits are hashed with its index, and the hashes summed modulo 2^32 on
    the devices, per shard, so that no array is gathered. A change of one element always
    changes the digest; any other change is missed with probability 2^-32.

    Returns:
        Texts such as ``float32[8,16] 1f3a90bc``.
    """
    # One after the other: simulated devices abort the process where many programs that
    # sum over devices wait for each other.
    sums = [int(_digest(leaf)) for leaf in jax.tree.leaves(tree)]
    return {
        name: f"{kind} {number:08x}"
        for (name, kind), number in zip(kinds(tree).items(), sums, strict=True)
    }


def check_digest_texts(content: Any) -> dict[str, str]:
    """The checksums of a checkpoint, from its JSON file.

    Raises:
        ValueError: the file holds anything but one text per array.
    """
    if isinstance(content, dict) and all(isinstance(v, str) for v in content.values()):
        return content
    raise ValueError("its checksums are not one text per array")


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
    """One line per array whose `kinds` differ, for the first few.

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
    """u32 []: the sum of the hashed elements."""
    array = jnp.asarray(array)
    if array.dtype == jnp.bool_:
        array = array.astype(jnp.uint8)
    unsigned = jnp.dtype(f"uint{8 * array.dtype.itemsize}")
    bits = jax.lax.bitcast_convert_type(array, unsigned).astype(jnp.uint32)
    index = jnp.zeros(array.shape, jnp.uint32)
    for axis, _ in enumerate(array.shape):
        stride = np.uint32(math.prod(array.shape[axis + 1 :]) % 2**32)
        index += jax.lax.broadcasted_iota(jnp.uint32, array.shape, axis) * stride
    return jnp.sum(_hash(bits ^ _hash(index + np.uint32(1))), dtype=jnp.uint32)


def _hash(x: jax.Array) -> jax.Array:
    """A bijection of 32 bits; source: MurmurHash3's finaliser (Appleby)."""
    x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
    return x ^ (x >> 16)

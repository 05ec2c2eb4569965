"""Digests: alike on every mesh, and changed by any change."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from ntl_jax.sharding.mesh import make_mesh
from train.checkpointing.digests import digests

VALUES = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)


def digest(array) -> str:
    return digests({"x": array})["x"]


def test_where_an_array_lies_does_not_matter():
    mesh = make_mesh(2, 2, 2)
    whole = digest(VALUES)
    for spec in (("data", "tensor"), ("tensor", None), (("data", "fsdp"), "tensor")):
        spread = jax.device_put(VALUES, NamedSharding(mesh, PartitionSpec(*spec)))
        assert len(spread.sharding.device_set) == 8
        assert digest(spread) == whole
    assert whole.startswith("float32[8,6] ")


@pytest.mark.parametrize("place", [0, 17, 47])
@pytest.mark.parametrize("bit", [0, 15, 31])
def test_every_bit_counts(place, bit):
    flipped = VALUES.copy()
    flipped.view(np.uint32).reshape(-1)[place] ^= np.uint32(1) << np.uint32(bit)
    assert digest(flipped) != digest(VALUES)


def test_places_and_signs_of_zero_count():
    assert digest(VALUES[::-1]) != digest(VALUES)
    assert digest(VALUES.T) != digest(VALUES)
    zeros = np.zeros((8, 6), np.float32)
    assert digest(zeros) != digest(-zeros)


@pytest.mark.parametrize("dtype", ["bfloat16", "int32", "uint8", "bool"])
def test_dtypes_differ(dtype):
    ones = jnp.ones((8, 6), dtype)
    changed = ones.at[3, 2].set(jnp.zeros((), dtype))
    assert digest(ones).startswith(f"{dtype}[8,6] ")
    assert digest(ones) != digest(changed)


def test_scalars_and_names():
    found = digests({"a": {"b": jnp.int32(7)}, "c": jnp.float32(7)})
    assert set(found) == {"a/b", "c"}
    assert found["a/b"].startswith("int32[] ")

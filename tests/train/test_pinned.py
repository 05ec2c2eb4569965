"""Pinned host memory for a GPU's checkpoints; what a GPU does is put in its place."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train.checkpointing.pinned import host_share, reserve_pinned
from train.config import ConfigError

TREE = {
    "params": jax.ShapeDtypeStruct((24, 1024, 16384), jnp.float32),
    "moments": [jax.ShapeDtypeStruct((24, 1024, 16384), jnp.bfloat16)],
    "step": jax.ShapeDtypeStruct((), jnp.int32),
}
BYTES = 24 * 1024 * 16384 * 6 + 4


@pytest.fixture
def on_gpu(monkeypatch):
    """What is put, and how, on one device that says that it is a GPU."""
    put = []
    gpu = types.SimpleNamespace(platform="gpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [gpu])
    monkeypatch.setattr(
        jax.sharding, "SingleDeviceSharding", lambda device, memory_kind: memory_kind
    )
    monkeypatch.setattr(jax, "device_put", lambda *of: put.append(of))
    return put


def test_a_block_of_the_size_of_all_arrays_is_pinned(on_gpu):
    reserve_pinned(TREE)
    [(block, kind)] = on_gpu
    assert kind == "pinned_host"
    assert BYTES <= block.nbytes < BYTES + 2**21


def test_hosts_that_hold_the_same_share_the_writing(monkeypatch):
    whole = host_share(TREE)
    assert BYTES <= whole < BYTES + 2**16
    monkeypatch.setattr(jax, "device_count", lambda: 4 * jax.local_device_count())
    assert host_share(TREE) == whole // 4


def test_no_room_names_the_size_and_the_variable(on_gpu, monkeypatch):
    def refuse(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of host memory\nmore")

    monkeypatch.setattr(jax, "device_put", refuse)
    told = r"through 3 GB .*\(RESOURCE_EXHAUSTED: Out of host memory\).*LIMIT_GB=11 "
    with pytest.raises(ConfigError, match=told):
        reserve_pinned(TREE)


def test_nothing_is_pinned_without_a_gpu(monkeypatch):
    monkeypatch.setattr(np, "empty", None)
    reserve_pinned(TREE)

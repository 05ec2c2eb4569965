"""Pinned host memory, through which a GPU's arrays are saved."""

import math
from typing import Any

import jax
import numpy as np

from train.config import ConfigError

_ROW = 2**20  # bytes; one axis alone would be too long
_SLACK = 2**12  # bytes an array: each begins at a multiple of some


def reserve_pinned(tree: Any) -> None:
    """Pins the memory that this host's share of a copy of `tree` takes; for GPUs only.

    Orbax copies a GPU's arrays to pinned host memory, and the steps wait for it. To pin
    memory for the first time takes most of that, up to a second for each GiB; but JAX
    keeps what it has pinned once. So what is pinned and given back here is there for
    every copy that follows.

    Args:
        tree: of arrays, or what describes them.

    Raises:
        ConfigError: there is no such room.
    """
    device = jax.local_devices()[0]
    if device.platform != "gpu":
        return
    size = host_share(tree)
    block = np.empty((-(-size // _ROW), _ROW), np.uint8)
    pinned = jax.sharding.SingleDeviceSharding(device, memory_kind="pinned_host")
    try:
        jax.block_until_ready(jax.device_put(block, pinned))
    except jax.errors.JaxRuntimeError as error:
        gigabytes = math.ceil(size / 1e9)
        raise ConfigError(
            f"a checkpoint passes through {gigabytes} GB of this host's memory, which "
            f"could not be pinned ({str(error).splitlines()[0][:120]}). JAX pins 64 GB "
            f"unless XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB={gigabytes + 8} allows more; "
            "where the host has no more, take more hosts or a smaller state "
            "(--optimizer)."
        ) from error


def host_share(tree: Any) -> int:
    """Bytes of `tree` that this host saves: of what several hold, each a part."""
    sizes = [
        math.prod(leaf.shape) * leaf.dtype.itemsize + _SLACK
        for leaf in jax.tree.leaves(tree)
    ]
    return sum(sizes) * jax.local_device_count() // jax.device_count()

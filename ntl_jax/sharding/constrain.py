"""Sharding constraints on activations, batches and kernels."""

import math
from types import EllipsisType
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from ntl_jax.sharding.mesh import (
    AXES,
    BATCH_AXES,
    TENSOR_AXIS,
    current_mesh,
    data_shards,
)

Role = Literal["batch", "heads", "vocab", "units", "hidden"] | None
"""What a dimension of an array is. `tensor` shards heads, vocabulary and feed-forward
units, `fsdp` the hidden dimension, and the batch lies over the data-parallel axes that
no other dimension of the array takes."""

_AXES: dict[Any, Any] = {
    "batch": BATCH_AXES,
    "heads": TENSOR_AXIS,
    "vocab": TENSOR_AXIS,
    "units": TENSOR_AXIS,
    "hidden": "fsdp",
    None: (),
}


def constrain(x: jax.Array, *roles: Role | EllipsisType) -> jax.Array:
    """Pins how an array is sharded, by the role of each of its dimensions.

    Left alone, the partitioner may shard hidden states along the hidden dimension, as
    the embedding table under `fsdp` is: every device then has the whole batch, and
    activations are sent around in the place of parameters. Decoding pins its states
    so: those of a step are few, and parameters stay where they are.

    Args:
        x: any array.
        roles: one per dimension; None: not sharded. An ellipsis, or the end, stands for
            all other dimensions, which are not sharded.

    Returns:
        `x`, so sharded; without a mesh (see `on_mesh`) and inside a ``shard_map``, `x`
        as it is. Where sizes do not divide over their devices, heads are not sharded,
        nor is a batch beside heads or a hidden dimension; for any other role, `x` is
        returned as it is.
    """
    mesh = current_mesh()
    if mesh is None:
        return x
    at = roles.index(...) if ... in roles else len(roles)
    first, last = roles[:at], roles[at + 1 :]
    roles = (*first, *(None,) * (x.ndim - len(first) - len(last)), *last)
    axes = dict(_AXES)
    lenient = {"heads"}
    if "hidden" in roles:
        axes["batch"] = "data"
    if "hidden" in roles or "heads" in roles:
        lenient.add("batch")
    spec: list[Any] = []
    for size, role in zip(x.shape, roles, strict=True):
        names = axes[role]
        names = (names,) if isinstance(names, str) else names
        if size % math.prod(mesh.shape[name] for name in names) == 0:
            spec.append(names or None)
        elif role in lenient:
            spec.append(None)
        else:
            return x
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*spec))


def all_gather_kernel(
    kernel: jax.Array, *, tensor_shards: Literal["inputs", "outputs"]
) -> jax.Array:
    """Gathers a kernel in one piece where it is used, and scatters its gradient.

    Left alone, the partitioner may send the activations of the whole batch instead, so
    that each device uses its shard of a kernel that is sharded along its inputs.

    Args:
        kernel: [in, ..., out], sharded along `in` by `fsdp`.
        tensor_shards: the side of the kernel that `tensor` shards.

    Returns:
        `kernel`, sharded by `tensor` alone; without a mesh, and where sizes do not
        divide, as it is.
    """
    mesh = current_mesh()
    if mesh is None:
        return kernel
    fsdp, tensor = mesh.shape["fsdp"], mesh.shape["tensor"]
    if tensor_shards == "inputs":
        divides = kernel.shape[0] % (tensor * fsdp) == 0
        used = PartitionSpec("tensor")
        stored = PartitionSpec(("tensor", "fsdp"))
    else:
        divides = kernel.shape[0] % fsdp == 0 and kernel.shape[-1] % tensor == 0
        rest = (*(None,) * (kernel.ndim - 2), "tensor")
        used = PartitionSpec(None, *rest)
        stored = PartitionSpec("fsdp", *rest)
    if not divides:
        return kernel
    # Sharded first: it is the kernel in this dtype that is to be sent.
    shards = jax.lax.with_sharding_constraint(kernel, stored)
    return jax.lax.with_sharding_constraint(shards, used)


def shard_over_all(x: jax.Array) -> jax.Array:
    """Shards a batch over all devices, so that each has whole examples.

    Args:
        x: [B, ...]; its last axis may be sharded by `tensor`.

    Returns:
        `x`, axis 0 over all devices; where that does not divide, over the
        data-parallel ones.
    """
    mesh = current_mesh()
    if mesh is None or x.shape[0] % mesh.size:
        return constrain(x, "batch")
    return jax.lax.with_sharding_constraint(x, PartitionSpec(AXES))


def column_parts(x: jax.Array) -> int:
    """Into how many parts `constrain(x, "batch", ..., "vocab")` splits `x`."""
    mesh = current_mesh()
    if mesh is None or x.ndim < 2 or x.shape[0] % data_shards(mesh):
        return 1
    return 1 if x.shape[-1] % mesh.shape["tensor"] else mesh.shape["tensor"]


def split_rows(batch: Any, parts: int) -> Any:
    """Splits a batch into parts, each sharded over all data-parallel devices.

    No example changes its device: a part takes an equal share of each device's.

    Args:
        batch: a tree of arrays [B, ...], sharded as `batch_sharding` says.
        parts: how many; it divides the examples per device.

    Returns:
        The tree with arrays [parts, B / parts, ...], to be scanned over.

    >>> split_rows(jnp.arange(6), 3)  # on one device
    Array([[0, 1],
           [2, 3],
           [4, 5]], dtype=int32)
    """
    mesh = jax.sharding.get_abstract_mesh()
    devices = 1 if mesh.empty else data_shards(mesh)

    def split(x: jax.Array) -> jax.Array:
        if x.shape[0] % (devices * parts):
            raise ValueError(
                f"{x.shape[0]} rows do not divide into {parts} parts of equal shares "
                f"of {devices} data-parallel devices: take a multiple of "
                f"{devices * parts} rows."
            )
        by_device = x.reshape(devices, parts, -1, *x.shape[1:])
        pieces = jnp.swapaxes(by_device, 0, 1).reshape(parts, -1, *x.shape[1:])
        if mesh.empty:
            return pieces
        return jax.lax.with_sharding_constraint(pieces, PartitionSpec(None, BATCH_AXES))

    return jax.tree.map(split, batch)

"""Mesh axes. Only this package knows their names.

Axes: `data` (replicas), `fsdp` (shards of parameters and optimizer state, and of the
batch too) and `tensor` (heads, feed-forward units, vocabulary).
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

AXES = ("data", "fsdp", "tensor")
BATCH_AXES = ("data", "fsdp")
TENSOR_AXIS = "tensor"


def make_mesh(
    data: int, fsdp: int = 1, tensor: int = 1, *, devices: Sequence[Any] | None = None
) -> Mesh:
    """A mesh of `data x fsdp x tensor` devices.

    Axis types are written out: under JAX's newer default (Explicit) the gather from a
    sharded embedding is an error, while Auto leaves sharding to the partitioner.

    Raises:
        ValueError: if the sizes do not multiply to the number of devices.
    """
    shape = (data, fsdp, tensor)
    devices = jax.devices() if devices is None else devices
    if np.prod(shape) != len(devices):
        raise ValueError(
            f"a mesh of {' x '.join(map(str, shape))} (data x fsdp x tensor) needs "
            f"{np.prod(shape)} devices, but there are {len(devices)}."
        )
    return jax.make_mesh(
        shape, AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=devices
    )


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Axis 0 of a batch over all data-parallel devices."""
    return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def replicated(mesh: Mesh) -> NamedSharding:
    """The whole of an array on every device."""
    return NamedSharding(mesh, PartitionSpec())


def mesh_of(tree: Any) -> Mesh | None:
    """The mesh that a tree of parameters is sharded over.

    Args:
        tree: arrays sharded as `param_shardings` says, or anything else.

    Returns:
        None for arrays on one device, or on a mesh of other axes.
    """
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer):
            mesh = getattr(leaf.sharding, "mesh", None)
            ours = isinstance(mesh, Mesh) and _is_ours(mesh) and mesh.size > 1
            return mesh if ours else None
    return None


@contextlib.contextmanager
def on_mesh(mesh: Mesh | None) -> Iterator[None]:
    """What is traced inside knows the mesh, so that `constrain` shards arrays over it.

    To be entered inside the function that `jit` compiles. None leaves what is known.
    """
    if mesh is None:
        yield
        return
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        yield


def _is_ours(mesh: Mesh | AbstractMesh) -> bool:
    return set(AXES) <= set(mesh.axis_names)


def current_mesh() -> AbstractMesh | None:
    """The mesh of `on_mesh`; None outside, inside a `shard_map`, and on one device."""
    mesh = jax.sharding.get_abstract_mesh()
    several = _is_ours(mesh) and mesh.size > 1
    return mesh if several and not mesh.manual_axes else None


def data_size() -> int:
    """How many replicas `data` makes of the parameters; 1 without a mesh."""
    mesh = current_mesh()
    return 1 if mesh is None else mesh.shape["data"]


def fsdp_size() -> int:
    """How many shards `fsdp` makes of the hidden dimension; 1 without a mesh."""
    mesh = current_mesh()
    return 1 if mesh is None else mesh.shape["fsdp"]


def tensor_size(mesh: Mesh | None = None) -> int:
    """How many shards `tensor` makes, of the current mesh if none is given; or 1."""
    known = current_mesh() if mesh is None else mesh
    return 1 if known is None else known.shape[TENSOR_AXIS]


def data_shards(mesh: Mesh | AbstractMesh) -> int:
    """How many devices a batch is sharded over."""
    return math.prod(mesh.shape[axis] for axis in BATCH_AXES)

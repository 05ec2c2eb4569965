"""Mesh axes. Only this file, `by_device` and `partition_rules` know their names.

Axes: `data` (replicas), `fsdp` (shards of parameters and optimizer state that also
share out the batch) and `tensor` (heads, feed-forward units, vocabulary).
"""

import contextlib
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from ntl_jax.partition_rules import RULES

AXES = ("data", "fsdp", "tensor")
BATCH_AXES = ("data", "fsdp")
TENSOR_AXIS = "tensor"


def make_mesh(
    data: int, fsdp: int = 1, tensor: int = 1, *, devices: Sequence[Any] | None = None
) -> Mesh:
    """A mesh of `data x fsdp x tensor` devices.

    Axis types are written out: under JAX's newer default (Explicit) the gather from a
    sharded embedding is an error, while Auto leaves layouts to the partitioner.

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
    """Splits axis 0 of a batch over all data-parallel devices."""
    return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def mesh_of(tree: Any) -> Mesh | None:
    """The mesh that a tree of parameters lies on.

    Args:
        tree: arrays, or anything else: only arrays laid out by `param_shardings` tell.

    Returns:
        None for arrays on one device, or laid out along other axes than these.
    """
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer):
            mesh = getattr(leaf.sharding, "mesh", None)
            ours = isinstance(mesh, Mesh) and _is_ours(mesh) and mesh.size > 1
            return mesh if ours else None
    return None


@contextlib.contextmanager
def on_mesh(mesh: Mesh | None) -> Iterator[None]:
    """What is traced inside knows the mesh, so that `keep_rows` lays out arrays on it.

    To be entered inside the function that `jit` compiles. None leaves what is known.
    """
    if mesh is None:
        yield
        return
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        yield


def _is_ours(mesh: Mesh | AbstractMesh) -> bool:
    return set(AXES) <= set(mesh.axis_names)


def known_mesh() -> AbstractMesh | None:
    """The mesh of `on_mesh`; None outside, inside a `shard_map`, and on one device."""
    mesh = jax.sharding.get_abstract_mesh()
    several = _is_ours(mesh) and mesh.size > 1
    return mesh if several and not mesh.manual_axes else None


def keep_rows(x: jax.Array, columns: bool = False) -> jax.Array:
    """Pins a batch of activations to the layout that the batch itself has.

    Left alone, the partitioner may cut hidden states along their width instead, as the
    embedding table under `fsdp` is cut: then every device has every row, and the
    activations are sent around in the place of the parameters.

    Args:
        x: [B, ...], rows of a batch.
        columns: whether the last axis, one of vocabulary columns, is cut by `tensor`.

    Returns:
        `x`, axis 0 over the data-parallel devices and no other axis cut, but for the
        last one's columns. Without a mesh (see `on_mesh`), inside a `shard_map`, and
        where the rows or columns do not divide over the devices: `x` as it is.
    """
    mesh = known_mesh()
    if mesh is None:
        return x
    last = "tensor" if columns else None
    if x.shape[0] % data_shards(mesh) or (last and x.shape[-1] % mesh.shape[last]):
        return x
    spec = [BATCH_AXES, *[None] * (x.ndim - 1)]
    if last:
        spec[-1] = last
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*spec))


def keep_cut(x: jax.Array) -> jax.Array:
    """Pins what is read from a table to the cut of the table's width.

    Each device reads its part of the width for the rows of all devices of its `fsdp`
    group, which then trade parts for rows. Without this the partitioner sends every
    row of the whole batch to every device.

    Decoding keeps all its states so: the few rows of a step are sent around, and the
    parameters stay where they are.

    Args:
        x: [B, T, D], read from a table [V, D] by the ids of a batch.

    Returns:
        `x`, rows over `data`, if they divide, and width over `fsdp`; without a mesh,
        and where the width does not divide, `x` as it is.
    """
    mesh = known_mesh()
    if mesh is None or x.ndim != 3:
        return x
    if x.shape[-1] % mesh.shape["fsdp"]:
        return x
    rows = None if x.shape[0] % mesh.shape["data"] else "data"
    return jax.lax.with_sharding_constraint(x, PartitionSpec(rows, None, "fsdp"))


def keep_gathered(
    kernel: jax.Array, *, tensor_cuts: Literal["inputs", "outputs"]
) -> jax.Array:
    """Gathers a kernel in one piece where it is used, and cuts its gradient up.

    Left alone, the partitioner may send the activations of all rows around instead, so
    that each device works with its part of a kernel that is cut along its inputs.

    Args:
        kernel: [in, ..., out], cut along `in` by `fsdp`.
        tensor_cuts: "inputs" or "outputs".

    Returns:
        `kernel`, cut by `tensor` alone; without a mesh, and where sizes do not divide,
        as it is.
    """
    mesh = known_mesh()
    if mesh is None:
        return kernel
    fsdp, tensor = mesh.shape["fsdp"], mesh.shape["tensor"]
    if tensor_cuts == "inputs":
        divides = kernel.shape[0] % (tensor * fsdp) == 0
        used = PartitionSpec("tensor")
        kept = PartitionSpec(("tensor", "fsdp"))
    else:
        divides = kernel.shape[0] % fsdp == 0 and kernel.shape[-1] % tensor == 0
        rest = (*(None,) * (kernel.ndim - 2), "tensor")
        used = PartitionSpec(None, *rest)
        kept = PartitionSpec("fsdp", *rest)
    if not divides:
        return kernel
    # Cut first, for it is the kernel in this dtype that is to be sent.
    cut = jax.lax.with_sharding_constraint(kernel, kept)
    return jax.lax.with_sharding_constraint(cut, used)


def keep_heads(x: jax.Array, *, rows: int, heads: int) -> jax.Array:
    """Pins queries, keys or values: rows as the batch, heads as the projections.

    Args:
        x: of any shape.
        rows: the axis of rows.
        heads: the axis of heads.

    Returns:
        `x`, cut along both axes, or along the one that divides over its devices;
        without a mesh, `x` as it is.
    """
    mesh = known_mesh()
    if mesh is None:
        return x
    spec: list[Any] = [None] * x.ndim
    if x.shape[rows] % data_shards(mesh) == 0:
        spec[rows] = BATCH_AXES
    if x.shape[heads] % mesh.shape["tensor"] == 0:
        spec[heads] = "tensor"
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*spec))


def spread_rows(x: jax.Array) -> jax.Array:
    """Shares out rows over all devices, so that each has the whole of its rows.

    Args:
        x: [B, ...], rows of a batch; columns may be cut by `tensor`.

    Returns:
        `x`, axis 0 over all devices; as `keep_rows` pins it where rows do not divide.
    """
    mesh = known_mesh()
    if mesh is None or x.shape[0] % mesh.size:
        return keep_rows(x)
    return jax.lax.with_sharding_constraint(x, PartitionSpec(AXES))


def column_parts(x: jax.Array) -> int:
    """Into how many parts `keep_rows(x, columns=True)` cuts the columns of `x`."""
    mesh = known_mesh()
    if mesh is None or x.ndim < 2 or x.shape[0] % data_shards(mesh):
        return 1
    return 1 if x.shape[-1] % mesh.shape["tensor"] else mesh.shape["tensor"]


def width_parts() -> int:
    """Into how many parts `fsdp` cuts the width of parameters; 1 without a mesh."""
    mesh = known_mesh()
    return 1 if mesh is None else mesh.shape["fsdp"]


def data_shards(mesh: Mesh | AbstractMesh) -> int:
    """How many devices share out a batch."""
    return math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def split_rows(batch: Any, parts: int) -> Any:
    """Cuts a batch into parts that each are spread over all data-parallel devices.

    No row changes its device: a part takes the same share of each device's rows.

    Args:
        batch: a tree of arrays [B, ...], laid out as `batch_sharding` says.
        parts: how many; it divides each device's rows.

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


def reduced_sharding(
    sharding: NamedSharding, shape: tuple[int, ...], reduced: tuple[int, ...]
) -> NamedSharding:
    """How to lay out an optimizer's moment that may lack one axis of its parameter.

    Args:
        sharding: of the parameter.
        shape: of the parameter.
        reduced: of the moment.

    Returns:
        The parameter's sharding, without the axis that the moment lacks (of two axes of
        one length, the later one); replicated where the shapes are no such pair.
    """
    spec = tuple(sharding.spec) + (None,) * (len(shape) - len(sharding.spec))
    if reduced == shape:
        return sharding
    for axis in reversed(range(len(shape))):
        if reduced == shape[:axis] + shape[axis + 1 :]:
            left = spec[:axis] + spec[axis + 1 :]
            return NamedSharding(sharding.mesh, PartitionSpec(*left))
    return NamedSharding(sharding.mesh, PartitionSpec())


def param_shardings(config: Any, params: Any, mesh: Mesh) -> Any:
    """A NamedSharding for every parameter, by the rules of the config's model.

    Args:
        config: the model's config; its class chooses the rule table.
        params: nested dict of arrays or shapes.
        mesh: from `make_mesh`.

    Raises:
        ValueError: lists every leaf that no rule or more than one rule matches, and
            every axis that the mesh does not divide.
    """
    rules = RULES[type(config).__name__]
    problems: list[str] = []

    def sharding(path: jax.tree_util.KeyPath, leaf: Any) -> NamedSharding:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        specs = [spec for pattern, spec in rules if re.fullmatch(pattern, name)]
        if len(specs) != 1:
            problems.append(f"{name}: {len(specs)} rules match, not one")
            return NamedSharding(mesh, PartitionSpec())
        for size, cut in zip(leaf.shape, specs[0], strict=False):
            axes = (cut,) if isinstance(cut, str) else cut or ()
            parts = math.prod(mesh.shape[axis] for axis in axes)
            if size % parts:
                problems.append(
                    f"{name} {leaf.shape}: {size} does not divide over the {parts} "
                    f"devices of {' x '.join(map(repr, axes))}"
                )
        return NamedSharding(mesh, specs[0])

    shardings = jax.tree_util.tree_map_with_path(sharding, params)
    if problems:
        raise ValueError(
            "these parameters cannot be laid out on the mesh; change the rules or the "
            "mesh, or pad an odd vocabulary by config.pad_vocab():\n  "
            + "\n  ".join(problems)
        )
    return shardings

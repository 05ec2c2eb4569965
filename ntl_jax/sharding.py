"""Mesh axes and partition rules: the only file that knows axis names.

Axes: `data` (replicas), `fsdp` (shards of parameters and optimizer state that also
share out the batch) and `tensor` (heads, feed-forward units, vocabulary).
"""

import contextlib
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

AXES = ("data", "fsdp", "tensor")
BATCH_AXES = ("data", "fsdp")


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


@contextlib.contextmanager
def on_mesh(mesh: Mesh) -> Iterator[None]:
    """What is traced inside knows the mesh, so that `keep_rows` lays out arrays on it.

    To be entered inside the function that `jit` compiles.
    """
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        yield


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
    mesh = jax.sharding.get_abstract_mesh()
    if not set(AXES) <= set(mesh.axis_names) or mesh.manual_axes:
        return x
    last = "tensor" if columns else None
    if x.shape[0] % data_shards(mesh) or (last and x.shape[-1] % mesh.shape[last]):
        return x
    between = (None,) * (x.ndim - 2)
    spec = PartitionSpec(BATCH_AXES, *between, last)
    return jax.lax.with_sharding_constraint(x, spec)


def keep_cut(x: jax.Array) -> jax.Array:
    """Pins what is read from a table to the cut of the table's width.

    Each device reads its part of the width for the rows of all devices of its `fsdp`
    group, which then trade parts for rows. Without this the partitioner sends every
    row of the whole batch to every device.

    Args:
        x: [B, T, D], read from a table [V, D] by the ids of a batch.

    Returns:
        `x`, rows over `data` and width over `fsdp`; as it is where `keep_rows` says.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if not set(AXES) <= set(mesh.axis_names) or mesh.manual_axes or x.ndim != 3:
        return x
    if x.shape[0] % mesh.shape["data"] or x.shape[-1] % mesh.shape["fsdp"]:
        return x
    return jax.lax.with_sharding_constraint(x, PartitionSpec("data", None, "fsdp"))


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


# Input projections are split (fsdp, tensor) and output projections (tensor, fsdp). With
# every stack laid out alike, the partitioner has been seen to return wrong gradients
# under an unchanged loss; tests therefore compare every gradient leaf.
_IN = PartitionSpec(None, "fsdp", "tensor")
_OUT = PartitionSpec(None, "tensor", "fsdp")
_REPLICATED = PartitionSpec()

Rules = Sequence[tuple[str, PartitionSpec]]

T5_RULES: Rules = (
    (r"shared/embedding", PartitionSpec("tensor", "fsdp")),  # [V, D]
    (r"lm_head/kernel", PartitionSpec("fsdp", "tensor")),  # [D, V]
    (r"(encoder|decoder)/relative_bias/embedding", PartitionSpec(None, "tensor")),
    (r"(encoder|decoder)/layers/(cross_)?attention/[qkv]/kernel", _IN),
    (r"(encoder|decoder)/layers/(cross_)?attention/o/kernel", _OUT),
    (r"(encoder|decoder)/layers/mlp/wi(_0|_1)?/kernel", _IN),
    (r"(encoder|decoder)/layers/mlp/wo/kernel", _OUT),
    (r"(encoder|decoder)/layers/\w+/norm/scale", _REPLICATED),
    (r"(encoder|decoder)/final_norm/scale", _REPLICATED),
)

T5_REGRESSION_RULES: Rules = (
    *T5_RULES,
    (r"head/dense/kernel", PartitionSpec("fsdp", "tensor")),  # [D, D]
    (r"head/out/kernel", PartitionSpec("tensor", None)),  # [D, 1]
    (r"head/(dense|out)/bias", _REPLICATED),
)

_POSITIONS = (r"positions/embedding", PartitionSpec(None, "fsdp"))  # [P, D]
_NUMBER_HEAD: Rules = (
    (r"number_head/wi/kernel", PartitionSpec("fsdp", "tensor")),  # [D, H]
    (r"number_head/wo/kernel", PartitionSpec("tensor", None)),  # [H, 1]
    (r"number_head/w[io]/bias", _REPLICATED),
)
XVAL_RULES: Rules = (*T5_RULES, _POSITIONS, *_NUMBER_HEAD)

NUMFORMER_RULES: Rules = (
    (r"embed/embedding", PartitionSpec("tensor", "fsdp")),  # [V, D]
    _POSITIONS,
    (r"layers/attention/qkv/kernel", PartitionSpec(None, "fsdp", None, "tensor")),
    (r"layers/mlp/wi/kernel", _IN),
    (r"layers/(attention/o|mlp/wo)/kernel", _OUT),
    (r"layers/(attention/(qkv|o)|mlp/(wi|wo))/bias", _REPLICATED),
    (r"layers/(attention|mlp)/norm/(scale|bias)", _REPLICATED),
    (r"lm_head/wi/kernel", PartitionSpec("fsdp", "tensor")),  # [D, F]
    (r"lm_head/wo/kernel", PartitionSpec("fsdp", "tensor")),  # [F, V]
    *_NUMBER_HEAD,
)

GPT2_RULES: Rules = (
    (r"wte/embedding", PartitionSpec("tensor", "fsdp")),  # [W, D]
    (r"wpe/embedding", PartitionSpec(None, "fsdp")),  # [n_positions, D]
    (r"lm_head/kernel", PartitionSpec("fsdp", "tensor")),  # [D, W]
    # [L, D, 3, N*H]: each of q, k and v is cut by heads.
    (r"layers/attention/qkv/kernel", PartitionSpec(None, "fsdp", None, "tensor")),
    (r"layers/mlp/wi/kernel", _IN),
    (r"layers/(attention/o|mlp/wo)/kernel", _OUT),
    (r"layers/(attention/(qkv|o)|mlp/(wi|wo))/bias", _REPLICATED),
    (r"(layers/(attention|mlp)/norm|final_norm)/(scale|bias)", _REPLICATED),
)

# Experts are cut by units, as dense layers are, and not shared out one by one: no
# token then travels to another device, and no device waits for a popular expert.
GRANITE_RULES: Rules = (
    (r"embed/embedding", PartitionSpec("tensor", "fsdp")),  # [W, D]
    (r"lm_head/kernel", PartitionSpec("fsdp", "tensor")),  # [D, W]
    (r"layers/(attention/[qkv]|mlp/(gate|up))/kernel", _IN),
    (r"layers/(attention/o|mlp/down)/kernel", _OUT),
    (r"layers/(attention|mlp)/\w+/bias", _REPLICATED),
    (r"layers/mlp/router/kernel", PartitionSpec(None, "fsdp")),  # [L, D, E]
    # [L, E, 2, F, D] and [L, E, D, F]
    (r"layers/mlp/gate_up", PartitionSpec(None, None, None, "tensor", "fsdp")),
    (r"layers/mlp/down", PartitionSpec(None, None, "fsdp", "tensor")),
    (r"(layers/(attention|mlp)/norm|final_norm)/scale", _REPLICATED),
)


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
    return NamedSharding(sharding.mesh, _REPLICATED)


_RULES: dict[str, Rules] = {
    "GPT2Config": GPT2_RULES,
    "GraniteConfig": GRANITE_RULES,
    "NumformerConfig": NUMFORMER_RULES,
    "RegressionTransformerConfig": T5_RULES,
    "T5Config": T5_RULES,
    "T5RegressionConfig": T5_REGRESSION_RULES,
    "XvalConfig": XVAL_RULES,
}


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
    rules = _RULES[type(config).__name__]
    problems: list[str] = []

    def sharding(path: jax.tree_util.KeyPath, leaf: Any) -> NamedSharding:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        specs = [spec for pattern, spec in rules if re.fullmatch(pattern, name)]
        if len(specs) != 1:
            problems.append(f"{name}: {len(specs)} rules match, not one")
            return NamedSharding(mesh, _REPLICATED)
        for size, axis in zip(leaf.shape, specs[0], strict=False):
            if axis is not None and size % mesh.shape[axis]:
                problems.append(
                    f"{name} {leaf.shape}: {size} does not divide over the "
                    f"{mesh.shape[axis]} devices of axis {axis!r}"
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

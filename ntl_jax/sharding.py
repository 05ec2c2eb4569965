"""Mesh axes and partition rules: the only file that knows axis names.

Axes: `data` (replicas), `fsdp` (shards of parameters and optimizer state that also
share out the batch) and `tensor` (heads, feed-forward units, vocabulary).
"""

import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

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

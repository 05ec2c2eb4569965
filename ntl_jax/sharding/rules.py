"""Which mesh axes shard which parameter, by its path in the tree of its model."""

import math
import re
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ntl_jax.sharding.mesh import current_mesh

# `fsdp` shards a kernel along its inputs, so that what a device gathers lies in one
# piece: parts of rows would have to be transposed before they are sent, and again for
# the optimizer. With every stack sharded alike, the partitioner has been seen to return
# wrong gradients under an unchanged loss; tests therefore compare every leaf.
_IN = PartitionSpec(None, "fsdp", "tensor")
# Of the kernels that project back to the residual stream, [L, in, D].
_OUTPUTS = PartitionSpec(None, ("tensor", "fsdp"))
# Of the same where states are few: a device then computes its part of all of them.
_OUTPUTS_IN_DECODING = PartitionSpec(None, "tensor", "fsdp")
_REPLICATED = PartitionSpec()

Rules = Sequence[tuple[str, PartitionSpec]]

T5_RULES: Rules = (
    (r"shared/embedding", PartitionSpec("tensor", "fsdp")),  # [V, D]
    (r"lm_head/kernel", PartitionSpec("fsdp", "tensor")),  # [D, V]
    (r"(encoder|decoder)/relative_bias/embedding", PartitionSpec(None, "tensor")),
    (r"(encoder|decoder)/layers/(cross_)?attention/[qkv]/kernel", _IN),
    (r"(encoder|decoder)/layers/(cross_)?attention/o/kernel", _OUTPUTS),
    (r"(encoder|decoder)/layers/mlp/wi(_0|_1)?/kernel", _IN),
    (r"(encoder|decoder)/layers/mlp/wo/kernel", _OUTPUTS),
    (r"(encoder|decoder)/layers/\w+/norm/scale", _REPLICATED),
    (r"(encoder|decoder)/final_norm/scale", _REPLICATED),
)

T5_REGRESSION_RULES: Rules = (
    *T5_RULES,
    (r"head/dense/kernel", PartitionSpec("fsdp", "tensor")),  # [D, D]
    (r"head/out/kernel", PartitionSpec("tensor", None)),  # [D, 1]
    (r"head/(dense|out)/bias", _REPLICATED),
)

NUMFORMER_RULES: Rules = (
    (r"embed/embedding", PartitionSpec("tensor", "fsdp")),  # [V, D]
    (r"positions/embedding", PartitionSpec(None, "fsdp")),  # [P, D]
    (r"layers/attention/qkv/kernel", PartitionSpec(None, "fsdp", None, "tensor")),
    (r"layers/mlp/wi/kernel", _IN),
    (r"layers/(attention/o|mlp/wo)/kernel", _OUTPUTS),
    (r"layers/(attention/(qkv|o)|mlp/(wi|wo))/bias", _REPLICATED),
    (r"layers/(attention|mlp)/norm/(scale|bias)", _REPLICATED),
    # Not by `tensor`: sharded as `wo` is, its gradient was wrong on 2 x 2 x 2 devices.
    (r"lm_head/wi/kernel", PartitionSpec("fsdp")),  # [D, F]
    (r"lm_head/wo/kernel", PartitionSpec("fsdp", "tensor")),  # [F, V]
    (r"number_head/wi/kernel", PartitionSpec("fsdp", "tensor")),  # [D, F]
    (r"number_head/wo/kernel", PartitionSpec("tensor", None)),  # [F, 1]
    (r"number_head/w[io]/bias", _REPLICATED),
)

GPT2_RULES: Rules = (
    (r"wte/embedding", PartitionSpec("tensor", "fsdp")),  # [W, D]
    (r"wpe/embedding", PartitionSpec(None, "fsdp")),  # [n_positions, D]
    (r"lm_head/kernel", PartitionSpec("fsdp", "tensor")),  # [D, W]
    # [L, D, 3, N*H]: each of q, k and v is sharded by heads.
    (r"layers/attention/qkv/kernel", PartitionSpec(None, "fsdp", None, "tensor")),
    (r"layers/mlp/wi/kernel", _IN),
    (r"layers/(attention/o|mlp/wo)/kernel", _OUTPUTS),
    (r"layers/(attention/(qkv|o)|mlp/(wi|wo))/bias", _REPLICATED),
    (r"(layers/(attention|mlp)/norm|final_norm)/(scale|bias)", _REPLICATED),
)

# Experts are sharded along their hidden units, as dense layers are, not one by one: no
# token then travels to another device, and no device waits for a popular expert.
GRANITE_RULES: Rules = (
    (r"embed/embedding", PartitionSpec("tensor", "fsdp")),  # [W, D]
    (r"lm_head/kernel", PartitionSpec("fsdp", "tensor")),  # [D, W]
    (r"layers/(attention/[qkv]|mlp/(gate|up))/kernel", _IN),
    (r"layers/(attention/o|mlp/down)/kernel", _OUTPUTS),
    (r"layers/(attention|mlp)/\w+/bias", _REPLICATED),
    (r"layers/mlp/router/kernel", PartitionSpec(None, "fsdp")),  # [L, D, E]
    # [L, E, 2, F, D] and [L, E, D, F]
    (r"layers/mlp/gate_up", PartitionSpec(None, None, None, "tensor", "fsdp")),
    (r"layers/mlp/down", PartitionSpec(None, None, "fsdp", "tensor")),
    (r"(layers/(attention|mlp)/norm|final_norm)/scale", _REPLICATED),
)

RULES: dict[str, Rules] = {
    "gpt2": GPT2_RULES,
    "granite": GRANITE_RULES,
    "numformer": NUMFORMER_RULES,
    "t5": T5_RULES,
    "t5_regression": T5_REGRESSION_RULES,
}
"""By the `partition_rules` of the model's config."""


def reduced_sharding(
    sharding: NamedSharding, shape: tuple[int, ...], reduced: tuple[int, ...]
) -> NamedSharding:
    """How to shard an optimizer's moment that may lack one axis of its parameter.

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
        config: the model's config; its `partition_rules` names the table.
        params: nested dict of arrays or shapes.
        mesh: from `make_mesh`.

    Raises:
        ValueError: lists every leaf that no rule or more than one rule matches, and
            every axis that the mesh does not divide.
    """
    rules = RULES[config.partition_rules]
    problems: list[str] = []

    def sharding(path: jax.tree_util.KeyPath, leaf: Any) -> NamedSharding:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        specs = [spec for pattern, spec in rules if re.fullmatch(pattern, name)]
        if len(specs) != 1:
            problems.append(f"{name}: {len(specs)} rules match, not one")
            return NamedSharding(mesh, PartitionSpec())
        for size, names in zip(leaf.shape, specs[0], strict=False):
            axes = (names,) if isinstance(names, str) else names or ()
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
            "these parameters cannot be sharded over the mesh; change the rules or the "
            "mesh, or pad an odd vocabulary by config.pad_vocab():\n  "
            + "\n  ".join(problems)
        )
    return shardings


def decoding_layout(config: Any, params: Any) -> Any:
    """Shards output projections along their outputs, once, for all steps of decoding.

    Training gathers them layer by layer. A step of decoding has few states: it sends
    these around and leaves the parameters where they are, each device its part of the
    hidden dimension.

    Args:
        config: the model's config; its `partition_rules` names the table.
        params: nested dict of arrays, sharded as `param_shardings` says.

    Returns:
        `params`, so sharded; without a mesh, as they are.
    """
    mesh = current_mesh()
    if mesh is None:
        return params
    rules = RULES[config.partition_rules]
    patterns = [pattern for pattern, spec in rules if spec == _OUTPUTS]

    def placed(path: jax.tree_util.KeyPath, leaf: jax.Array) -> jax.Array:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if not any(re.fullmatch(pattern, name) for pattern in patterns):
            return leaf
        if leaf.shape[-1] % mesh.shape["fsdp"]:
            return leaf
        shards = jax.lax.with_sharding_constraint(leaf, _OUTPUTS)  # sent in its dtype
        return jax.lax.with_sharding_constraint(shards, _OUTPUTS_IN_DECODING)

    return jax.tree_util.tree_map_with_path(placed, params)

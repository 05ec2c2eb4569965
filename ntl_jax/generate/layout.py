"""How parameters lie on a mesh while answers are decoded: not as in training."""

import re
from typing import Any

import jax

from ntl_jax.sharding.mesh import current_mesh
from ntl_jax.sharding.rules import OUTPUTS, OUTPUTS_IN_DECODING, RULES


def lay_out_for_decoding(config: Any, params: Any) -> Any:
    """Cuts output projections along their outputs, once, for all steps of decoding.

    Training gathers them layer by layer. A step of decoding has few rows: it sends
    their states around and leaves the parameters where they are, each device its part
    of the width (see `keep_cut`).

    Args:
        config: the model's config; its `partition_rules` names the table.
        params: nested dict of arrays, as `param_shardings` cuts them.

    Returns:
        `params`, so laid out; without a mesh, as they are.
    """
    mesh = current_mesh()
    if mesh is None:
        return params
    patterns = [rule for rule, spec in RULES[config.partition_rules] if spec == OUTPUTS]

    def laid_out(path: jax.tree_util.KeyPath, leaf: jax.Array) -> jax.Array:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if not any(re.fullmatch(pattern, name) for pattern in patterns):
            return leaf
        if leaf.shape[-1] % mesh.shape["fsdp"]:
            return leaf
        cut = jax.lax.with_sharding_constraint(leaf, OUTPUTS)  # sent in its own dtype
        return jax.lax.with_sharding_constraint(cut, OUTPUTS_IN_DECODING)

    return jax.tree_util.tree_map_with_path(laid_out, params)

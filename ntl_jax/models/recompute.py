"""What the backward pass keeps of a layer that it otherwise computes again."""

from collections.abc import Callable
from typing import Literal

import jax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array

Remat = bool | Literal["matmuls"]
"""What the backward pass recomputes: nothing, whole layers, or of each layer all but
its products with parameters and what is marked by `kept`, which are kept."""

_KEPT = "ntl_jax.kept"


def kept(x: Array) -> Array:
    """`x`, which ``remat="matmuls"`` keeps, for to compute it again costs too much."""
    return checkpoint_name(x, _KEPT)


def recomputing(step: Callable, remat: Remat, *, prevent_cse: bool) -> Callable:
    """A layer whose backward pass recomputes what `remat` says.

    Args:
        step: a function of arrays.
        remat: what is computed again.
        prevent_cse: as of `jax.checkpoint`; needless inside a scan.
    """
    if not remat:
        return step
    policies, policy = jax.checkpoint_policies, None
    if remat == "matmuls":  # scores and experts have batch axes: not kept
        policy = policies.save_from_both_policies(
            policies.dots_with_no_batch_dims_saveable,
            policies.save_only_these_names(_KEPT),
        )
    return jax.checkpoint(step, prevent_cse=prevent_cse, policy=policy)

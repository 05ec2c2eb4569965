"""Names of residuals, by which rematerialisation knows what to save."""

from collections.abc import Callable
from typing import Any, Literal

import jax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array

EXPENSIVE = "ntl_jax.kept"
"""What takes too long to recompute: attention's outputs, dropout's bits."""
GATHERED = "ntl_jax.gathered"
"""Kernels sharded by `fsdp`, as they were gathered for the forward pass."""


def name_residual(x: Array, name: str = EXPENSIVE) -> Array:
    """`x` under a name that `save_policy` may save.

    Args:
        x: any array.
        name: `EXPENSIVE` or `GATHERED`.
    """
    return checkpoint_name(x, name)


def save_policy(remat: Literal["matmuls", "gathered"]) -> Callable[..., Any]:
    """The policy of `jax.checkpoint` that saves products with parameters and residuals.

    Args:
        remat: "matmuls" saves `EXPENSIVE` residuals, "gathered" `GATHERED` ones too.
    """
    policies = jax.checkpoint_policies
    names = (EXPENSIVE,) if remat == "matmuls" else (EXPENSIVE, GATHERED)
    return policies.save_from_both_policies(
        policies.dots_with_no_batch_dims_saveable,  # no scores, no experts
        policies.save_only_these_names(*names),
    )

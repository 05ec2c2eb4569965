"""Checks that the configs of all models share."""

import math
from typing import Any

from ntl_jax.kernels.attention.dispatch import check_implementation
from ntl_jax.models.layers import check_remat, check_unroll


def check_sizes(config: Any, *fields: str) -> None:
    """Raises ValueError for a field that is no size of an array's axis."""
    for name in fields:
        size = getattr(config, name)
        if type(size) is not int or not 1 <= size < 2**31:
            raise ValueError(
                f"{name} is {size!r}; it must be a whole number >= 1 and < 2**31"
            )


def check_factors(config: Any, *fields: str) -> None:
    """Raises ValueError for a field that is no finite number above 0."""
    for name in fields:
        factor = getattr(config, name)
        if not 0 < factor < math.inf:
            raise ValueError(f"{name} is {factor}; it must be above 0, and finite")


def check_rates(config: Any, *fields: str) -> None:
    """Raises ValueError for a field that is no rate of dropout, in [0, 1)."""
    for name in fields:
        rate = getattr(config, name)
        if not 0.0 <= rate < 1.0:
            raise ValueError(f"{name} is {rate}, outside [0, 1)")


def check_computation(config: Any) -> None:
    """Raises ValueError for a way to compute that there is not."""
    if config.dtype not in ("float32", "bfloat16"):
        why = " (float16's range is too small)" if config.dtype == "float16" else ""
        raise ValueError(
            f"dtype is {config.dtype!r}; choose 'float32' or 'bfloat16'{why}"
        )
    check_unroll(config.unroll_layers)
    check_remat(config.remat)
    check_implementation(config.attention)

"""FLOPs of a traced program's matrix products, loops counted as often as they run."""

import math
from typing import Any

from jax.extend.core import Jaxpr, jaxprs_in_params


def matmul_flops(jaxpr: Jaxpr) -> float:
    """Floating-point operations of every matrix product, two per multiply-add.

    Args:
        jaxpr: of a function, for all devices together.

    A Pallas kernel counts by its `cost_estimate`.

    Raises:
        ValueError: a loop of unknown length holds a matrix product, or a kernel has no
            estimate.

    >>> import jax, jax.numpy as jnp
    >>> a, b = jnp.ones((2, 3)), jnp.ones((3, 4))
    >>> matmul_flops(jax.make_jaxpr(jnp.matmul)(a, b).jaxpr)
    48.0
    """
    return sum((_of_equation(equation) for equation in jaxpr.eqns), 0.0)


def _of_equation(equation: Any) -> float:
    name, params = equation.primitive.name, equation.params
    if name == "dot_general":
        return _of_product(equation)
    if name == "pallas_call" and params["cost_estimate"] is not None:
        return float(params["cost_estimate"].flops)
    inner = [matmul_flops(jaxpr) for jaxpr in jaxprs_in_params(params)]
    if name == "pallas_call" and sum(inner):
        raise ValueError("a Pallas kernel with matrix products gives no cost_estimate.")
    if name == "scan":
        return params["length"] * sum(inner)
    if name == "while" and sum(inner):
        raise ValueError("a while loop with matrix products has no known length.")
    if name == "shard_map":  # inside it shapes are a device's
        sizes = [params["mesh"].shape[axis] for axis in params["newly_manual_axes"]]
        return math.prod(sizes) * sum(inner)
    if name == "cond":
        return max(inner)
    if name in ("ragged_dot", "ragged_dot_general"):
        rows, inner_size = equation.invars[0].aval.shape[-2:]
        return 2.0 * rows * inner_size * equation.outvars[0].aval.shape[-1]
    return sum(inner)


def _of_product(equation: Any) -> float:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape
    return (
        2.0
        * math.prod(equation.outvars[0].aval.shape)
        * math.prod(left[axis] for axis in contracted)
    )

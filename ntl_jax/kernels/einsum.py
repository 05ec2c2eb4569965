"""Products of bfloat16 operands that are summed in float32, gradients too."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _einsum_float32(spec: str, a: Array, b: Array) -> Array:
    return jnp.einsum(spec, a, b, preferred_element_type=jnp.float32)


def _einsum_forward(spec, a, b):
    return _einsum_float32(spec, a, b), (a, b)


def _einsum_backward(spec, operands, cotangent):
    # Left to itself, the transpose is a float32 times bfloat16 product, which
    # GPUs have no unit for: they would convert both sides up and lose the speed.
    a, b = operands
    inputs, out = spec.split("->")
    in_a, in_b = inputs.split(",")
    cotangent = cotangent.astype(a.dtype)
    return (
        jnp.einsum(f"{out},{in_b}->{in_a}", cotangent, b),
        jnp.einsum(f"{out},{in_a}->{in_b}", cotangent, a),
    )


_einsum_float32.defvjp(_einsum_forward, _einsum_backward)


def einsum_float32(spec: str, a: Array, b: Array) -> Float[Array, "..."]:
    """A two-operand `einsum` that accumulates, and returns, in float32.

    Args:
        spec: `"ab,bc->ac"`: every letter stands in two of the three terms.
        a: the first operand, float32 or bfloat16.
        b: the second operand, of `a`'s dtype.

    Returns:
        The product in float32. Its gradients are computed in `a`'s dtype.
    """
    if a.dtype == jnp.float32:  # plain autodiff: forward mode works too
        return jnp.einsum(spec, a, b)
    return _einsum_float32(spec, a, b)

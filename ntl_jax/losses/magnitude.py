"""The absolute value, with PyTorch's gradient."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def magnitude(x: Float[Array, "*B"]) -> Float[Array, "*B"]:
    """|x|, whose gradient at 0 is 0, as PyTorch has it.

    That of ``jnp.abs`` at 0 is 1: a prediction that is right to the last digit would
    be pushed away.

    Args:
        x: of any shape and floating dtype.

    Returns:
        Of the shape and dtype of x, not negative.

    >>> print(jax.grad(jnp.abs)(0.0), jax.grad(magnitude)(jnp.float32(0.0)))
    1.0 0.0
    """
    return x * jax.lax.stop_gradient(jnp.sign(x))

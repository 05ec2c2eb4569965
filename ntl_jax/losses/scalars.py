"""Options of a loss that are one number, plain or traced."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Float32

Scalar = int | float | Float[Array, ""]


def scalar(name: str, value: Scalar) -> Float32[Array, ""]:
    """The option in float32.

    A vector is refused: in the place of a scalar it could be taken for one number a
    token, or for one a position, without a word.

    Args:
        name: what the caller knows it as.
        value: a number, or an array of shape ().

    Returns:
        f32[].

    Raises:
        ValueError: for any other shape.

    >>> print(scalar("sigma", 2))
    2.0
    """
    if jnp.shape(value) != ():
        raise ValueError(
            f"{name} has shape {jnp.shape(value)}, not (): vmap over several."
        )
    return jnp.asarray(value).astype(jnp.float32)

"""What losses on numbers spelled in digits share: the check, and powers of ten."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int

from ntl_jax.number_vocab import NumberVocab

_DECADES = 31  # down to 1e-30


def check_digits(vocab: NumberVocab) -> None:
    """Raises ValueError unless every number token is worth a single digit."""
    is_digit = np.isin(vocab.values, np.arange(10))
    if not is_digit.all():
        first = int(np.argmin(is_digit))
        raise ValueError(
            f"token {vocab.token_ids[first]} is worth {vocab.values[first]:g}, but "
            "this loss puts numbers together from tokens worth one digit, 0 to 9. Use "
            "a tokenizer that splits numbers into digits, and policy='digits'."
        )


def negative_power_of_ten(places: Int[Array, "*B"]) -> Float32[Array, "*B"]:
    """10^-places, correctly rounded; places below 0 count as 0, above 30 as 30.

    Args:
        places: [*B].

    Returns:
        f32[*B] in [1e-30, 1].
    """
    table = 10.0 ** -np.arange(_DECADES, dtype=np.float64)
    index = jnp.clip(places, 0, _DECADES - 1)
    return jnp.asarray(table.astype(np.float32))[index]

"""Checks of shapes, dtypes and options, made while a loss is traced."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int

from ntl_jax.numbers.vocab import NumberVocab


def check_labels(logits: Array, labels: Array, *, name: str = "logits") -> None:
    """Raises unless logits are floats, labels integers and the shapes go together.

    Args:
        logits: [*B, V], or anything else with a last axis of its own.
        labels: [*B].
        name: what the former are called.
    """
    check_floating(name, logits)
    check_integers("labels", labels)
    if logits.ndim == 0 or logits.shape[:-1] != labels.shape:
        raise ValueError(
            f"{name} of shape {logits.shape}: give labels of shape "
            f"{logits.shape[:-1]}, not {labels.shape}."
        )


def check_is_array(name: str, value: Any) -> None:
    """Raises TypeError for a list, a PyTorch tensor, or what else is no array."""
    if not isinstance(value, jax.Array | np.ndarray | np.generic):
        raise TypeError(
            f"{name} must be a JAX or NumPy array, not {type(value).__name__}: take "
            f"jnp.asarray({name})."
        )


def check_floating(name: str, value: Any) -> None:
    """Raises TypeError for what is no array of floating-point numbers."""
    check_is_array(name, value)
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise TypeError(f"{name} must be floating point, not {value.dtype}.")


def check_integers(name: str, value: Any) -> None:
    """Raises TypeError for what is no array of integers."""
    check_is_array(name, value)
    if not jnp.issubdtype(value.dtype, jnp.integer):
        raise TypeError(f"{name} must be integers, not {value.dtype}.")


def check_vocab(vocab: NumberVocab) -> None:
    """Raises TypeError for what is no NumberVocab, such as a tokenizer or a dict."""
    if not isinstance(vocab, NumberVocab):
        raise TypeError(
            f"vocab must be a NumberVocab, not {type(vocab).__name__}: make one by "
            "NumberVocab.from_tokenizer or NumberVocab.from_mapping."
        )


def check_segments(segment_ids: Array | None, labels: Array) -> None:
    """Raises unless segment ids, where given, are integers, one a label."""
    if segment_ids is None:
        return
    check_integers("segment_ids", segment_ids)
    if segment_ids.shape != labels.shape:
        raise ValueError(
            f"segment_ids of shape {segment_ids.shape} do not match labels of "
            f"shape {labels.shape}: give one segment a label."
        )


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

"""Masked numbers and tokens, which an xVal model predicts."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int32

from ntl_jax.tokenization.xval import NumberedIds

IGNORE_INDEX = -100


class MaskedRow(NamedTuple):
    """A row with one number masked.

    Attributes:
        ids: token ids, the mask where the number was.
        values: numbers at [NUM], 1.0 elsewhere, at the mask too.
        labels: the id of [NUM] where the number was, -100 elsewhere.
        label_values: the number where it was, 1.0 elsewhere.
    """

    ids: list[int]
    values: list[float]
    labels: list[int]
    label_values: list[float]


def mask_last_number(row: NumberedIds, *, num_id: int, mask_id: int) -> MaskedRow:
    """Masks the last number of a row: in a question with its answer, the answer.

    Args:
        row: ids and values, as `XvalTokenizer.encode_numbers` gives them.
        num_id: the id of [NUM].
        mask_id: the id that replaces it.

    Returns:
        The masked row and its labels, four lists of equal length.

    Raises:
        ValueError: the row contains no number.

    >>> row = NumberedIds([5, 9, 6, 9, 1], [1.0, 3.5, 1.0, -2.0, 1.0])
    >>> mask_last_number(row, num_id=9, mask_id=7)
    ... # doctest: +NORMALIZE_WHITESPACE
    MaskedRow(ids=[5, 9, 6, 7, 1], values=[1.0, 3.5, 1.0, 1.0, 1.0],
              labels=[-100, -100, -100, 9, -100],
              label_values=[1.0, 1.0, 1.0, -2.0, 1.0])

    Source: *Regress, Don't Guess* (ICML 2025), its xVal baseline. There the sign stays
    in the text; here it is masked with the number.
    """
    ids, values = list(row.ids), list(row.values)
    if num_id not in ids:
        raise ValueError(
            f"a row of {len(ids)} tokens contains no [NUM] (id {num_id}) to mask"
        )
    place = len(ids) - 1 - ids[::-1].index(num_id)
    labels, label_values = [IGNORE_INDEX] * len(ids), [1.0] * len(ids)
    labels[place], label_values[place] = num_id, values[place]
    ids[place], values[place] = mask_id, 1.0
    return MaskedRow(ids, values, labels, label_values)


class MaskedBatch(NamedTuple):
    """Rows with tokens masked at random; for the fields see `MaskedRow`."""

    ids: Int32[np.ndarray, "B T"]
    values: Float32[np.ndarray, "B T"]
    labels: Int32[np.ndarray, "B T"]
    label_values: Float32[np.ndarray, "B T"]


def mask_at_random(
    ids: Int32[np.ndarray, "B T"],
    values: Float32[np.ndarray, "B T"],
    attention_mask: Bool[np.ndarray, "B T"],
    *,
    rate: float,
    mask_id: int,
    rng: np.random.Generator,
) -> MaskedBatch:
    """Masks each token, number or not, with the same probability.

    Args:
        ids: tokens.
        values: numbers at [NUM], 1.0 elsewhere.
        attention_mask: true where a token is not padding, which is never masked.
        rate: the probability, in [0, 1]; xVal's package leaves it to the user.
        mask_id: the id that replaces a token, with the value 1.
        rng: the random generator; `numpy.random.default_rng([seed, step])` makes
            batches a function of the step.

    Returns:
        The masked rows and their labels.

    Raises:
        ValueError: a rate outside [0, 1], or shapes that differ.

    Source: Golkar et al. (2023), the masking of the package xVal.
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"rate is {rate}; it must lie in [0, 1]")
    if not ids.shape == values.shape == attention_mask.shape:
        raise ValueError(
            f"ids {ids.shape}, values {values.shape} and attention_mask "
            f"{attention_mask.shape} must have the same shape"
        )
    hidden = (rng.random(ids.shape) < rate) & attention_mask.astype(bool)
    one = np.float32(1.0)
    return MaskedBatch(
        ids=np.where(hidden, np.int32(mask_id), ids),
        values=np.where(hidden, one, values),
        labels=np.where(hidden, ids, np.int32(IGNORE_INDEX)),
        label_values=np.where(hidden, values, one),
    )

"""The number tokens _d_p_ of the Regression Transformer: digit d at decimal place p.

Source: Born and Manica (2023); places -12 to 19 and their order as in the code of
*Regress, Don't Guess* (ICML 2025).
"""

import re

import numpy as np
from jaxtyping import Float

SMALLEST_PLACE, LARGEST_PLACE = -12, 19
PLACES = range(SMALLEST_PLACE, LARGEST_PLACE + 1)
NUMBER_TOKENS = 10 * len(PLACES)

_TOKEN = re.compile(r"_([0-9])_(-?[0-9]+)_")
_LARGEST_VALUED_PLACE = 17  # 9e17 squared is a float32, and NumberVocab stops at 1e18


def place_tokens() -> list[str]:
    """The 320 tokens in the order of their ids: places outer, digits inner.

    >>> place_tokens()[120:123]
    ['_0_0_', '_1_0_', '_2_0_']
    """
    return [f"_{digit}_{place}_" for place in PLACES for digit in range(10)]


def place_values() -> Float[np.ndarray, "320"]:
    """The value of each token, in the same order: v * 10^p.

    >>> place_values()[[1, 119, 120, 121, 319]]
    array([1.e-12, 9.e-01, 0.e+00, 1.e+00, 9.e+19])
    """
    return np.array([float(f"{v}e{p}") for p in PLACES for v in range(10)])


def read_place_digit(token: str) -> float | None:
    """A `NumberVocab` policy: the digit alone, whatever its place.

    The released code's expected-value and Wasserstein losses compare these values.

    >>> read_place_digit("_4_-1_"), read_place_digit("4")
    (4.0, None)
    """
    match = _TOKEN.fullmatch(token)
    return None if match is None else float(match[1])


def read_place_value(token: str) -> float | None:
    """A `NumberVocab` policy: the digit at its place, v * 10^p.

    The released code's loss on cumulative sums compares these values, and the number
    encodings encode them. Tokens of places 18 and 19 have no value, because its square
    would overflow float32.

    >>> read_place_value("_4_-1_"), read_place_value("_4_18_")
    (0.4, None)
    """
    match = _TOKEN.fullmatch(token)
    if match is None or int(match[2]) > _LARGEST_VALUED_PLACE:
        return None
    return float(f"{match[1]}e{match[2]}")

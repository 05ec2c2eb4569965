"""Number tokens that name digit and place, and what NumberVocab makes of them."""

import numpy as np

from ntl_jax import NumberVocab
from ntl_jax.numbers.place_tokens import (
    place_tokens,
    place_values,
    read_place_digit,
    read_place_value,
)


def vocabulary():
    return {"a": 0} | {token: i for i, token in enumerate(place_tokens(), start=1)}


def test_tokens_and_values_stand_in_one_order():
    tokens, values = place_tokens(), place_values()
    assert len(set(tokens)) == len(tokens) == 320
    assert (tokens[0], tokens[248], tokens[-1]) == ("_0_-12_", "_8_12_", "_9_19_")
    for token, value in zip(tokens, values, strict=True):
        _, digit, place, _ = token.split("_")
        assert value == float(digit + "e" + place)


def test_digits_count_at_every_place():
    vocab = NumberVocab.from_mapping(
        vocabulary(), vocab_size=384, policy=read_place_digit
    )
    assert len(vocab) == 320
    assert np.array_equal(vocab.values, np.tile(np.arange(10.0), 32))


def test_values_count_as_far_as_their_squares_are_float32():
    vocab = NumberVocab.from_mapping(
        vocabulary(), vocab_size=384, policy=read_place_value
    )
    assert len(vocab) == 300
    assert np.array_equal(vocab.values, place_values()[:300].astype(np.float32))
    assert np.isfinite(np.square(vocab.values)).all()


def test_other_tokens_are_no_numbers():
    for token in ("_1_", "1", "_12_0_", "_1_0", "_a_0_", "_1_-_", "_٣_0_", ""):
        assert read_place_digit(token) is None
        assert read_place_value(token) is None

"""Powers of ten to the last bit, and the check that tokens are digits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax import NumberVocab
from ntl_jax.losses.checks import check_digits, negative_power_of_ten


def test_powers_are_correctly_rounded_and_stop_at_both_ends():
    places = np.arange(-3, 60)
    powers = jax.jit(negative_power_of_ten)(jnp.asarray(places))
    expected = [np.float32(10.0 ** -min(max(int(p), 0), 30)) for p in places]
    np.testing.assert_array_equal(powers, np.array(expected, np.float32))


def test_the_first_token_that_is_no_digit_is_named():
    digits = {str(d): d for d in range(10)} | {"a": 10, "0.5": 11, "12": 12}
    check_digits(NumberVocab.from_mapping(digits, vocab_size=13))
    vocab = NumberVocab.from_mapping(digits, vocab_size=13, policy="numbers")
    with pytest.raises(ValueError, match=r"token 11 .*0\.5.*policy='digits'"):
        check_digits(vocab)

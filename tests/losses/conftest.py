"""A vocabulary, a batch, and a way to reach the library's own errors."""

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from ntl_jax import NumberVocab

# Ten digits out of order among other tokens, one of them at id 0; id 11 has no token.
TOKENS = {"5": 0, "a": 1, "0": 2, "9": 3, "b": 4, "1": 5, "4": 6, "2": 7, "8": 8}
TOKENS |= {"3": 9, "7": 10, "6": 12, "c": 13}


@pytest.fixture(scope="session")
def vocab() -> NumberVocab:
    return NumberVocab.from_mapping(TOKENS, vocab_size=14)


@pytest.fixture(scope="session")
def batch() -> tuple[jax.Array, jax.Array, jax.Array]:
    """Logits [2, 6, 14], labels with text, digits and -100, and weights with a 0."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 6, 14)).astype(np.float32) * 2
    labels = np.array([[0, 3, 1, -100, 12, 7], [4, 13, 2, 2, -100, 10]], np.int32)
    weights = rng.uniform(0.5, 2.0, size=labels.shape).astype(np.float32)
    weights[0, 1] = 0.0
    return jnp.asarray(logits), jnp.asarray(labels), jnp.asarray(weights)


@pytest.fixture
def unhooked(monkeypatch):
    """Switches the test-only shape checker off: users meet our errors, not its."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)

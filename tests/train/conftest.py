"""optax mixes dtypes, so the trainer's tests leave JAX's promotion as it comes."""

import jax
import pytest


@pytest.fixture(autouse=True)
def _standard_promotion():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield

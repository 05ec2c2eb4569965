"""top_k by blocks is jax.lax.top_k."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax.generate.top_k import top_k


@pytest.mark.parametrize("columns", [5, 4096, 5001])
@pytest.mark.parametrize("spread", [1e6, 30])  # 30: many are equal
def test_values_and_columns(columns, spread):
    rng = np.random.default_rng(columns)
    x = jnp.asarray(rng.integers(0, spread, (2, 3, columns)), jnp.float32)
    x = x.at[0, 0].set(-jnp.inf).at[0, 1, : columns // 2].set(-1e30)
    for k in (1, 5):
        for ours, theirs in zip(top_k(x, k), jax.lax.top_k(x, k), strict=True):
            np.testing.assert_array_equal(ours, theirs)

"""Strict JAX flags, eight simulated CPU devices, and where the raw data lies."""

import os
import pathlib

import jax
import pytest
from absl import flags

jax.config.update("jax_platforms", os.environ.get("JAX_PLATFORMS", "cpu"))
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
if not flags.FLAGS.is_parsed():
    flags.FLAGS.mark_as_parsed()  # grain reads absl flags that nobody parses here


@pytest.fixture(scope="session")
def data_dir() -> pathlib.Path:
    """The folder of raw data that NTL_DATA_DIR names; skips where there is none."""
    folder = os.environ.get("NTL_DATA_DIR")
    if not folder:
        pytest.skip("NTL_DATA_DIR is not set: no raw data to test on")
    return pathlib.Path(folder)

"""A folder of each family, as this package writes it."""

import pytest

from ntl_jax.hf import save_checkpoint
from tests.hf.folders import random_params
from tests.models.cases import TINY


@pytest.fixture
def written(request, tmp_path):
    """A small model's folder, config and params; T5's, or that of `name`."""
    config, params = random_params(TINY[getattr(request, "param", "t5_v1_0")])
    save_checkpoint(tmp_path, config, params)
    return tmp_path, config, params

"""optax mixes dtypes, so the trainer's tests leave JAX's promotion as it comes."""

import contextlib
import pathlib

import jax
import pytest

from tests.train.helpers import COMPARED
from train.compare import run_comparison


@contextlib.contextmanager
def standard_promotion():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture(autouse=True)
def _standard_promotion():
    with standard_promotion():
        yield


@pytest.fixture(scope="session")
def compared(tmp_path_factory) -> pathlib.Path:
    """The folder of a finished comparison, COMPARED, trained on eight devices."""
    run_dir = tmp_path_factory.mktemp("runs") / "compared"
    with standard_promotion():
        run_comparison(COMPARED, run_dir)
    return run_dir

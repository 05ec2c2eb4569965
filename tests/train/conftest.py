"""optax mixes dtypes, so the trainer's tests leave JAX's promotion as it comes."""

import contextlib
import pathlib

import filelock
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
def compared(tmp_path_factory, worker_id) -> pathlib.Path:
    """The folder of a finished comparison, COMPARED, trained on eight devices.

    The first process that asks for it trains; the others read the same files.
    """
    root = tmp_path_factory.getbasetemp()
    if worker_id != "master":
        root = root.parent
    finished, run_dir = root / "compared", root / f"compared-by-{worker_id}"
    with filelock.FileLock(root / "compared.lock"):
        if not finished.exists():
            with standard_promotion():
                run_comparison(COMPARED, run_dir)
            run_dir.rename(finished)
    return finished

"""optax mixes dtypes, so the trainer's tests leave JAX's promotion as it comes."""

import contextlib
import pathlib

import filelock
import jax
import pytest

from tests.train.fake_bucket import FakeBucket
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
def bucket():
    """A bucket for this process and its children, whose clients read its address once.

    Tests write to folders of their own in it.
    """
    pytest.importorskip("gcsfs")
    with FakeBucket() as served, pytest.MonkeyPatch.context() as environment:
        environment.setenv("STORAGE_EMULATOR_HOST", served.url)
        environment.setenv("TENSORSTORE_GCS_HTTP_URL", served.url)
        environment.setenv("NO_GCE_CHECK", "true")
        yield served


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

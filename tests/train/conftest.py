"""optax mixes dtypes, so the trainer's tests leave JAX's promotion as it comes."""

import contextlib
import os
import pathlib
import re
from collections.abc import Callable

import filelock
import jax
import numpy as np
import pytest

from tests.train.checkpointing.fake_bucket import FakeBucket
from tests.train.helpers import COMPARED, SHALLOW, tiny_task
from tests.train.runs import train
from train.reporting.compare import run_comparison
from train.state import Task, TrainState, init_state


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


@pytest.fixture
def folder(bucket, request) -> str:
    """The name of a folder of the bucket, of this test alone."""
    yield re.sub(r"\W+", "-", request.node.name)
    bucket.refuse_nothing()


@pytest.fixture(scope="session")
def task() -> Task:
    """SHALLOW's, on one device."""
    return tiny_task(SHALLOW)


@pytest.fixture(scope="session")
def states(task) -> list[TrainState]:
    """Its state of step 0, and of a step 1 with other parameters and moments.

    Random ones, which take more room on disk than what says where they lie.
    """
    first = init_state(task)
    draw = np.random.default_rng(0)

    def other(leaf: jax.Array) -> jax.Array:
        if leaf.dtype != np.float32:
            return leaf
        return leaf + draw.normal(size=leaf.shape).astype(np.float32)

    params, moments = jax.tree.map(other, (first.params, first.opt_state))
    return [first, TrainState(first.step + 1, params, moments, first.plateau)]


def made_once(name: str, make: Callable[[pathlib.Path], object], tmp_path_factory):
    """The folder of a finished run.

    The first process that asks for it trains; the others read the same files.
    """
    root, worker = tmp_path_factory.getbasetemp(), os.environ.get("PYTEST_XDIST_WORKER")
    if worker:
        root = root.parent
    finished, run_dir = root / name, root / f"{name}-by-{worker}"
    with filelock.FileLock(root / f"{name}.lock"):
        if not finished.exists():
            make(run_dir)
            run_dir.rename(finished)
    return finished


@pytest.fixture(scope="session")
def compared(tmp_path_factory) -> pathlib.Path:
    """The folder of a finished comparison, COMPARED, trained on eight devices."""

    def compare(run_dir: pathlib.Path) -> None:
        with standard_promotion():
            run_comparison(COMPARED, run_dir)

    return made_once("compared", compare, tmp_path_factory)


@pytest.fixture(scope="session")
def left_alone(tmp_path_factory) -> pathlib.Path:
    """The folder of a run of the command line that nothing stopped."""
    return made_once("left-alone", train, tmp_path_factory)

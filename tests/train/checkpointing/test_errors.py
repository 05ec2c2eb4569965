"""Saves that fail: one error that names the step, and earlier checkpoints stay."""

import contextlib
import errno
import gc
import logging
import pathlib
import resource
import types

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from tests.train.helpers import INTERRUPTED_IO, SHALLOW
from train.checkpointing.checkpointer import Checkpointer
from train.checkpointing.errors import SaveError, barrier, writing_checkpoint
from train.checkpointing.rundir import config_dict

CONFIG = config_dict(SHALLOW)
FOLDER = pathlib.Path("/a")
NO_ROOM = OSError(errno.ENOSPC, "No space left on device")
BY_TENSORSTORE = ValueError(
    'RESOURCE_EXHAUSTED: Error writing "params/0" in OCDBT database: Failed writing: '
    '"/runs/a/d/1": Failed to write 679 bytes to file 8: No space left on device '
    "[os_error_code='28']"
)

pytestmark = INTERRUPTED_IO


@contextlib.contextmanager
def small_files(most: int):
    """No file may grow beyond so many bytes: a quota to threads that write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def check_until(checkpointer: Checkpointer) -> None:
    """Polls, as the loop does after each step."""
    while checkpointer._pending is not None:
        checkpointer.check()


@pytest.mark.parametrize("raised_by", [check_until, Checkpointer.wait, None])
def test_a_save_that_fails_leaves_those_before_it(raised_by, states, tmp_path):
    message = r"step 1 .*\(File too large\).*--resume"
    with Checkpointer(tmp_path, keep=3) as checkpointer:
        checkpointer.save(states[0], CONFIG)
    with (
        pytest.raises(SaveError, match=message),
        small_files(4096),
        Checkpointer(tmp_path, keep=3) as checkpointer,
    ):
        checkpointer.save(states[1], CONFIG)
        if raised_by is not None:
            raised_by(checkpointer)
    with Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.latest_step() == 0
        restored = checkpointer.restore(0, jax.eval_shape(lambda: states[0]))
    jax.tree.map(np.testing.assert_array_equal, restored.params, states[0].params)
    gc.collect()


def test_another_error_says_that_a_save_is_lost_too(
    states, tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr(logging.getLogger("train"), "propagate", True)
    with (
        pytest.raises(KeyError),
        small_files(4096),
        Checkpointer(tmp_path, keep=3) as checkpointer,
    ):
        checkpointer.save(states[0], CONFIG)
        raise KeyError("a bug")
    assert "the checkpoint of step 0 is lost" in caplog.messages
    gc.collect()


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (NO_ROOM, ["/a (No space left on device)", "make room"]),
        (BY_TENSORSTORE, ["/a (No space left on device)", "make room"]),
        (PermissionError(errno.EACCES, "Permission denied"), ["(Permission denied)"]),
        (FileNotFoundError(errno.ENOENT, "No such file"), ["(No such file)"]),
        (
            ValueError("Error writing gs://a: HTTP 403 [http_response_code='403'] [b"),
            ["(Error writing gs://a: HTTP 403)"],
        ),
        (TimeoutError("no barrier"), ["not every host", "no barrier"]),
        (
            jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of host memory\nmore"),
            ["(RESOURCE_EXHAUSTED: Out of host memory)", "HOST_MEMORY_LIMIT_GB"],
        ),
    ],
)
def test_errors_of_files_name_the_step(error, named):
    with pytest.raises(SaveError) as caught, writing_checkpoint(FOLDER, 7):
        raise error
    assert all(part in str(caught.value) for part in ["step 7", *named])


@pytest.mark.parametrize("error", [ValueError("no such leaf"), KeyError("a")])
def test_other_errors_are_left_alone(error):
    with pytest.raises(type(error)) as caught, writing_checkpoint(FOLDER, 7):
        raise error
    assert caught.value is error


def test_a_host_whose_save_failed_waits_for_no_other(monkeypatch):
    waited = []
    others = types.SimpleNamespace(
        get_barrier_sync_fn=lambda: lambda **asked: waited.append(asked)
    )
    monkeypatch.setattr(ocp, "multihost", others)
    with pytest.raises(OSError, match="No space"):
        try:
            raise NO_ROOM
        finally:
            barrier(key="end", timeout_ms=5)
    assert not waited
    barrier(key="end", timeout_ms=5)
    assert waited == [{"key": "end", "timeout_ms": 5}]

"""Saves that fail: said once, with the step that is lost, and earlier ones served."""

import contextlib
import errno
import gc
import logging
import pathlib
import resource
import sys
import types

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from etils import epath

from tests.train.helpers import INTERRUPTED_IO, SHALLOW
from train.checkpointing.checkpointer import Checkpointer
from train.checkpointing.rundir import config_dict
from train.checkpointing.saving import barrier, quieten_threads, writing_checkpoint
from train.config import ConfigError

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
    """What a loop does: a step, a look, and so on."""
    while checkpointer._pending is not None:
        checkpointer.check()


@pytest.mark.parametrize("told_by", [check_until, Checkpointer.wait, None])
def test_a_save_that_fails_leaves_those_before_it(
    told_by, states, tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr(logging.getLogger("train"), "propagate", True)
    said = r"step 1 could not be written to .*\(File too large\)\. Those before.*resume"
    with Checkpointer(tmp_path, keep=3) as checkpointer:
        checkpointer.save(states[0], CONFIG)
    with (
        pytest.raises(ConfigError, match=said),
        small_files(4096),
        Checkpointer(tmp_path, keep=3) as checkpointer,
    ):
        checkpointer.save(states[1], CONFIG)
        if told_by is not None:
            told_by(checkpointer)
    assert not caplog.records  # the error says all
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
    (record,) = caplog.records
    assert record.getMessage() == "the checkpoint of step 0 is lost"
    gc.collect()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (NO_ROOM, r"step 7 could not be .* /a \(No space left on device\)\. Those"),
        (BY_TENSORSTORE, r"step 7 could not be .* /a \(No space left on device\)"),
        (
            PermissionError(errno.EACCES, "Permission denied", "/a/7"),
            r"/a \(Permission denied\)\. Those .* whole: look at its permissions",
        ),
        (
            FileNotFoundError(errno.ENOENT, "No such file or directory", "/a/7"),
            r"/a \(No such file or directory\)\. .* whole: bring its folder back",
        ),
        (
            ValueError("Error writing gs://a: HTTP 403 [http_response_code='403'] [b"),
            r"\(Error writing gs://a: HTTP 403\)",
        ),
        (TimeoutError("no barrier"), r"step 7 is lost, as not every host .*no barrier"),
    ],
)
def test_errors_of_files_are_told_by_step(error, said, tmp_path):
    with pytest.raises(ConfigError, match=said), writing_checkpoint(FOLDER, 7):
        raise error


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


@pytest.mark.parametrize("name", ["absl", "asyncio"])
def test_threads_say_nothing_of_a_full_disk_and_all_else(name, caplog):
    quieten_threads(FOLDER)
    logger = logging.getLogger(name)
    for error in (NO_ROOM, BY_TENSORSTORE, OSError(errno.EIO, "broken disk")):
        logger.error("failed", exc_info=error)
    logger.error("no error")
    told = [record.exc_info and str(record.exc_info[1]) for record in caplog.records]
    assert told == ["[Errno 5] broken disk", None]


@pytest.mark.parametrize("name", ["absl", "asyncio"])
def test_threads_say_nothing_of_damaged_arrays_and_all_else(name, caplog):
    quieten_threads(FOLDER)
    damaged = (
        Exception("Encountered error while reading array index: (slice(0, 2, 1),)."),
        ValueError('NOT_FOUND: Error opening "zarr" driver: Metadata at "a"'),
        ValueError('DATA_LOSS: Error reading "a/0.0": Truncated stream'),
    )
    others = (ValueError("a bug"), KeyError("reading"))
    for error in damaged + others:
        logging.getLogger(name).error("never retrieved", exc_info=error)
    assert [record.exc_info[1] for record in caplog.records] == [*others]


@pytest.mark.parametrize("name", ["absl", "asyncio"])
def test_threads_say_nothing_of_what_a_bucket_refuses_and_all_else(name, caplog):
    pytest.importorskip("gcsfs")
    refused = (
        OSError("Forbidden: https://storage.googleapis.com/a/o?name=b"),
        ValueError("PERMISSION_DENIED: Error writing gs://a/b: HTTP 403"),
    )
    others = (OSError(errno.EIO, "broken disk", "a"), ValueError("a bug"))
    logger = logging.getLogger(name)
    told: dict[str, list] = {}
    for folder in (epath.Path("gs://a/b"), FOLDER):
        quieten_threads(folder)
        caplog.clear()
        for error in refused + others:
            logger.error("failed", exc_info=error)
        told[str(folder)] = [record.exc_info[1] for record in caplog.records]
    assert told == {"gs://a/b": [*others], "/a": [*refused, *others]}


def test_what_ends_after_a_failure_is_not_shown(monkeypatch):
    shown = []
    monkeypatch.setattr(sys, "unraisablehook", shown.append)
    quieten_threads(FOLDER)
    quieten_threads(FOLDER)
    late, other = RuntimeError("Event loop is closed"), RuntimeError("other")
    damaged = Exception("Encountered error while reading array index: (slice(0, 2),).")
    for error in (late, damaged, other):
        sys.unraisablehook(types.SimpleNamespace(exc_value=error))  # type: ignore
    assert [unraisable.exc_value for unraisable in shown] == [other]

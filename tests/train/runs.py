"""Tiny runs of the command line, each in one process or in several on this machine."""

import atexit
import functools
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np

from train.checkpointing.checkpointer import Checkpointer
from train.checkpointing.folder import has_checkpoint
from train.reporting.metrics_writer import read_metrics

ROOT = pathlib.Path(__file__).parents[2]
STEPS = 60
OVERRIDES = {
    "steps": STEPS,
    "checkpoint-every": 5,
    "log-every": 1,
    "data.train-size": 200,
    "data.eval-size": 4,
    "data.batch-size": 8,
    "evaluation.batch-size": 8,
    "evaluation.max-new-tokens": 2,
    "model.d-model": 16,
    "model.d-kv": 8,
    "model.d-ff": 16,
    "model.num-heads": 2,
    "model.dropout-rate": 0.1,
}
ARGUMENTS = [
    "quickstart",
    "--no-cross-entropy-baseline",
    *(f"--{name}={value}" for name, value in OVERRIDES.items()),
]
FLAGS = ""
"""XLA_FLAGS: compiled as users compile, not as the tests' own process does."""
QUICK = "--xla_backend_optimization_level=0"
"""XLA_FLAGS for runs on several hosts, of which all but the first recompile."""


@functools.cache
def programs() -> str:
    """A folder where the runs that this process starts share compiled programs."""
    folder = tempfile.mkdtemp(prefix="programs-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def start(
    run_dir: pathlib.Path,
    *more: str,
    hosts: int = 1,
    devices: int = 1,
    flags: str = FLAGS,
    recompile: bool = False,
    of_last: Sequence[str] = (),
) -> list[subprocess.Popen[str]]:
    """Starts a run on `hosts` processes of `devices` simulated devices each.

    Args:
        run_dir: where it writes.
        more: flags of the run.
        hosts: processes.
        devices: of each.
        flags: of XLA.
        recompile: compiles everything, instead of taking what an earlier run compiled.
        of_last: more flags, of the last process alone.
    """
    flags = f"{flags} --xla_force_host_platform_device_count={devices}"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    if not recompile:
        environment["JAX_COMPILATION_CACHE_DIR"] = programs()
        environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    command = [sys.executable, "-m", "train", *ARGUMENTS, "--run-dir", str(run_dir)]
    address = f"localhost:{free_port()}"
    processes = []
    for index in range(hosts):
        place: list[str] = []
        if hosts > 1:
            place = ["--hosts.coordinator", address, "--hosts.count", str(hosts)]
            place += ["--hosts.index", str(index), "--hosts.heartbeat-timeout", "10"]
        if index == hosts - 1:
            place += of_last
        processes.append(
            subprocess.Popen(
                [*command, *place, *more],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    return processes


def finish(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    """Every process's exit status and all that it printed."""

    def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
        text, _ = process.communicate(timeout=400)
        return process.returncode, text

    try:
        # All at once: one with a full pipe waits to be read, and the others for it.
        with ThreadPoolExecutor(len(processes)) as pool:
            return list(pool.map(ended, processes))
    finally:
        for process in processes:
            process.kill()
            process.wait()


def train(run_dir: pathlib.Path, *more: str, **where) -> list[str]:
    """A run to its end; what each process printed."""
    ended = finish(start(run_dir, *more, **where))
    assert [status for status, _ in ended] == [0] * len(ended), ended
    return [text for _, text in ended]


def stop_midway(
    run_dir: pathlib.Path, number: int, *more: str, victims: int = 1, **where
) -> list[int]:
    """Starts a run and, once it has a checkpoint, sends its last processes a signal.

    Returns:
        Every process's exit status.
    """
    processes = start(run_dir, *more, **where)
    deadline = time.monotonic() + 300
    while not (has_checkpoint(run_dir) and len(read_metrics(run_dir)) > 12):
        ended = [process.poll() for process in processes]
        if ended != [None] * len(ended) or time.monotonic() > deadline:
            raise AssertionError(f"no checkpoint to stop after: {finish(processes)}")
        time.sleep(0.02)
    for process in processes[-victims:]:
        process.send_signal(number)
    return [status for status, _ in finish(processes)]


def saved(run_dir: pathlib.Path) -> tuple[int, list[np.ndarray]]:
    """The newest step, and all leaves of its checkpoint as they are on disk."""
    with Checkpointer(run_dir) as checkpointer:
        found = checkpointer.newest(checkpointer.read)
    assert found is not None
    return found[0], [np.asarray(leaf) for leaf in jax.tree.leaves(found[1])]


def rows(run_dir: pathlib.Path) -> list[dict]:
    """The metrics without what the clock says."""
    return [
        {name: value for name, value in row.items() if not name.endswith("_per_s")}
        for row in read_metrics(run_dir)
    ]


def assert_same_run(
    run_dir: pathlib.Path, other: pathlib.Path, last: int = STEPS
) -> None:
    """The last checkpoint and every row of metrics, but for the clock."""
    step, leaves = saved(run_dir)
    expected_step, expected = saved(other)
    assert step == expected_step == last
    assert len(leaves) == len(expected) > 30
    for leaf, twin in zip(leaves, expected, strict=True):
        np.testing.assert_array_equal(leaf, twin)
    assert rows(run_dir) == rows(other)


KILLED = -signal.SIGKILL

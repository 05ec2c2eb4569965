"""Killed without warning and resumed, a run ends as if nothing had happened."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from train.checkpoint import Checkpointer, has_checkpoint
from train.writer import read_metrics

ROOT = pathlib.Path(__file__).parents[2]
OVERRIDES = {
    "steps": 60,
    "checkpoint-every": 5,
    "log-every": 1,
    "data.train-size": 200,
    "data.eval-size": 8,
    "data.batch-size": 8,
    "evaluation.batch-size": 8,
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


def command(run_dir: pathlib.Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "train", *ARGUMENTS, "--run-dir", str(run_dir), *more]


def environment() -> dict[str, str]:
    # Compiled as users compile, not as the tests' own process does.
    return os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}


def train(run_dir: pathlib.Path, *more: str) -> None:
    done = subprocess.run(
        command(run_dir, *more),
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def stop_midway(run_dir: pathlib.Path, number: int, *more: str) -> int:
    """Starts a run, sends it a signal once it has a checkpoint; its exit status."""
    with subprocess.Popen(
        command(run_dir, *more),
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        deadline = time.monotonic() + 240
        while not (has_checkpoint(run_dir) and len(read_metrics(run_dir)) > 12):
            assert process.poll() is None, "the run ended before it could be stopped"
            assert time.monotonic() < deadline, "the run made no checkpoint"
            time.sleep(0.02)
        process.send_signal(number)
        return process.wait(timeout=120)


def saved(run_dir: pathlib.Path) -> tuple[int | None, list[np.ndarray]]:
    """The newest step, and all leaves of its checkpoint as they are on disk."""
    with Checkpointer(run_dir) as checkpointer:
        step = checkpointer.latest_step()
        assert step is not None
        items = checkpointer.read(step)
    return step, [np.asarray(leaf) for leaf in jax.tree.leaves(items)]


@pytest.fixture(scope="module")
def left_alone(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("runs") / "left_alone"
    train(run_dir)
    return run_dir


def assert_same_run(run_dir: pathlib.Path, other: pathlib.Path) -> None:
    """The last checkpoint and every row of metrics, but for the clock."""
    step, leaves = saved(run_dir)
    expected_step, expected = saved(other)
    assert step == expected_step == 60
    assert len(leaves) == len(expected) > 30
    for leaf, twin in zip(leaves, expected, strict=True):
        np.testing.assert_array_equal(leaf, twin)
    ignore = ("steps_per_s", "tokens_per_s")
    rows, others = (
        [{k: v for k, v in row.items() if k not in ignore} for row in read_metrics(d)]
        for d in (run_dir, other)
    )
    assert rows == others


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_stopped_and_resumed_equals_left_alone(number, left_alone, tmp_path):
    run_dir = tmp_path / "stopped"
    status = stop_midway(run_dir, number)
    assert status == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    stopped_at, _ = saved(run_dir)
    assert stopped_at is not None and 0 < stopped_at < 60
    train(run_dir, "--resume")
    assert_same_run(run_dir, left_alone)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["--data.packing", "--data.buckets=2"])
def test_packed_rows_and_buckets_resume_in_the_middle_of_an_epoch(layout, tmp_path):
    whole, run_dir = tmp_path / "whole", tmp_path / "stopped"
    more = [layout, "--data.max-operand=9999"]  # rows of different lengths
    train(whole, *more)
    assert stop_midway(run_dir, signal.SIGKILL, *more) == -signal.SIGKILL
    stopped_at, _ = saved(run_dir)
    assert stopped_at is not None and 0 < stopped_at < 60
    train(run_dir, *more, "--resume")
    assert_same_run(run_dir, whole)


@pytest.mark.slow
def test_another_seed_would_be_seen(left_alone, tmp_path):
    train(tmp_path / "other", "--seed", "1")
    _, leaves = saved(tmp_path / "other")
    _, expected = saved(left_alone)
    pairs = zip(leaves, expected, strict=True)
    assert not all(np.array_equal(a, b) for a, b in pairs)

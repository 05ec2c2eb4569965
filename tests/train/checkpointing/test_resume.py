"""Killed without warning and resumed, a run ends as if nothing had happened."""

import random
import signal
import time

import numpy as np
import pytest

from tests.train.runs import (
    KILLED,
    STEPS,
    assert_same_run,
    finish,
    saved,
    start,
    stop_midway,
    train,
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGKILL, KILLED), (signal.SIGTERM, 0), (signal.SIGINT, 130)],
)
def test_stopped_and_resumed_equals_left_alone(number, status, left_alone, tmp_path):
    """Killed, it also recompiles its programs, which must give the same bits."""
    run_dir, recompile = tmp_path / "stopped", number == signal.SIGKILL
    assert stop_midway(run_dir, number, recompile=recompile) == [status]
    assert 0 < saved(run_dir)[0] < STEPS
    train(run_dir, "--resume", recompile=recompile)
    assert_same_run(run_dir, left_alone)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["--data.packing", "--data.buckets=2"])
def test_packed_rows_and_buckets_resume_in_the_middle_of_an_epoch(layout, tmp_path):
    whole, run_dir = tmp_path / "whole", tmp_path / "stopped"
    more = [layout, "--data.max-operand=9999"]  # rows of different lengths
    train(whole, *more)
    assert stop_midway(run_dir, signal.SIGKILL, *more) == [KILLED]
    assert 0 < saved(run_dir)[0] < STEPS
    train(run_dir, *more, "--resume")
    assert_same_run(run_dir, whole)


@pytest.mark.slow
def test_another_seed_would_be_seen(left_alone, tmp_path):
    train(tmp_path / "other", "--seed", "1")
    _, leaves = saved(tmp_path / "other")
    _, expected = saved(left_alone)
    pairs = zip(leaves, expected, strict=True)
    assert not all(np.array_equal(a, b) for a, b in pairs)


def newest_folder(run_dir) -> int:
    names = [path.name for path in (run_dir / "checkpoints").glob("*")]
    return max((int(name) for name in names if name.isdigit()), default=-1)


@pytest.mark.nightly
def test_twenty_kills_at_any_moment(tmp_path):
    """A checkpoint after each step, so that many kills come while one is written."""
    run_dir, whole = tmp_path / "killed", tmp_path / "whole"
    more = ["--steps=200", "--checkpoint-every=1"]
    train(whole, *more)
    chance, half_written = random.Random(0), 0
    for kill in range(20):
        before = newest_folder(run_dir)
        (process,) = start(run_dir, *more, "--resume" if kill else "--no-resume")
        while process.poll() is None and newest_folder(run_dir) <= before:
            time.sleep(0.005)
        time.sleep(chance.uniform(0, 0.5))
        process.send_signal(signal.SIGKILL)
        ((status, text),) = finish([process])
        assert status == KILLED, text
        half_written += any((run_dir / "checkpoints").glob("*tmp*"))
    assert half_written > 3  # of 20; or the test would not see what it is for
    assert newest_folder(run_dir) < 200
    train(run_dir, *more, "--resume")
    assert_same_run(run_dir, whole, last=200)


@pytest.mark.slow
def test_more_steps_are_those_of_a_longer_run(left_alone, tmp_path):
    run_dir = tmp_path / "longer"
    constant = ["--optimizer.schedule=constant", "--steps=55"]
    train(run_dir, *constant)
    train(run_dir, constant[0], "--steps=60", "--resume")
    train(tmp_path / "whole", constant[0])
    assert_same_run(run_dir, tmp_path / "whole")

"""A run in a bucket is the run that it would be on a disk, bit for bit."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from tests.train.checkpointing.fake_bucket import FakeBucket
from tests.train.runs import (
    KILLED,
    ROOT,
    assert_same_run,
    finish,
    start,
    stop_midway,
    train,
)
from train.checkpointing.storage import any_path


def command(*arguments: str) -> str:
    """What a command of the trainer prints, which ends well."""
    ended = subprocess.run(
        [sys.executable, "-m", "train", *arguments],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize(
    ("number", "status"),
    [
        pytest.param(signal.SIGKILL, KILLED, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 0, marks=pytest.mark.nightly),
    ],
)
def test_stopped_and_resumed_in_a_bucket(
    number, status, bucket: FakeBucket, left_alone, tmp_path
):
    folder = f"runs/stopped-by-{number}"
    run_dir = any_path(f"gs://bucket/{folder}")
    assert stop_midway(run_dir, number) == [status]
    before = dict(bucket.objects)
    ((status, text),) = finish(start(run_dir))
    assert status == 1 and str(run_dir) in text and "--resume" in text
    assert bucket.objects == before
    (text,) = train(run_dir, "--resume")
    assert f"resuming {run_dir} at step" in text
    assert_same_run(run_dir, left_alone)
    for name in ("predictions.jsonl", "evaluation.json"):
        assert (run_dir / name).read_text() == (left_alone / name).read_text()

    remote, local = str(run_dir), str(left_alone)
    assert (
        command("predict", remote, "1 + 1").split(":", 1)[1]
        == (command("predict", local, "1 + 1").split(":", 1)[1])
    )
    for run, out in ((remote, "remote"), (local, "local")):
        command("export", run, str(tmp_path / out))
    files = sorted(path.name for path in (tmp_path / "local").iterdir())
    assert "model.safetensors" in files
    for name in files:
        one, other = ((tmp_path / out / name) for out in ("remote", "local"))
        assert one.read_bytes() == other.read_bytes()
    assert "evaluation-beams2" in command("evaluate", remote, "--evaluation.beams", "2")
    assert json.loads((run_dir / "evaluation-beams2" / "evaluation.json").read_text())
    table = command("report", f"{remote}-report", remote, local)
    assert "gs://bucket/runs" in table
    assert bucket.names(f"{folder}-report") >= {"comparison.md", "comparison.png"}


@pytest.mark.nightly
def test_two_hosts_and_one_bucket(bucket, left_alone, tmp_path):
    """What they write is what two hosts write to a disk, killed or not."""
    where = {"hosts": 2, "devices": 2}
    train(tmp_path / "disk", **where)
    run_dir = any_path("gs://bucket/runs/two-hosts")
    assert KILLED in stop_midway(run_dir, signal.SIGKILL, victims=1, **where)
    train(run_dir, "--resume", **where)
    assert_same_run(run_dir, tmp_path / "disk")


@pytest.mark.nightly
def test_a_comparison(bucket):
    run_dir = any_path("gs://bucket/runs/compared")
    short = ("--steps", "10", "--optimizer.warmup-steps", "1", "--profile-at", "3")
    (text,) = train(run_dir, "--cross-entropy-baseline", *short)
    assert "gs://bucket/runs/compared/comparison.md" in text
    names = bucket.names("runs/compared")
    assert names >= {"comparison.md", "comparison.png", "ce/evaluation.json"}
    changed = [name.removeprefix("runs/compared/") for _, name in bucket.changes]
    before = changed[: changed.index("ce/checkpoints/5/commit_success.txt")]
    assert before.count("ce/metrics.jsonl") >= 2  # at the start, and with its rows
    assert any(re.fullmatch(r"ce/profile/.*\.xplane\.pb", name) for name in names)


@pytest.mark.nightly
def test_without_permission_or_bucket(bucket):
    bucket.refuse_like("POST", "")
    try:
        for where in ("gs://bucket/refused", "gs://elsewhere/run"):
            ((status, text),) = finish(start(where))
            assert status == 1
            assert text.splitlines()[-1].startswith(f"error: {where} ")
            assert "Traceback" not in text
    finally:
        bucket.refuse_nothing()

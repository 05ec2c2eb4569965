"""A disk that fills up while a run writes to it: what is there stays, and serves."""

import pathlib
import re
import shutil
import subprocess

import pytest

from tests.train.runs import QUICK, STEPS, assert_same_run, finish, saved, start, train
from train.config import ConfigError
from train.reporting.metrics_writer import MetricWriter, read_metrics, replace_text

FULL = pathlib.Path("/dev/full")
MESSAGE = re.compile(
    r"^error: the checkpoint of step \d+ .*\(No space left on device\).* --resume", re.M
)
needs_full = pytest.mark.skipif(not FULL.exists(), reason="no /dev/full")


@pytest.fixture
def small_disk(tmp_path):
    """A run's folder, whose checkpoints have 1 MB, and a way to give them more."""
    run_dir = tmp_path / "run"
    folder = run_dir / "checkpoints"
    folder.mkdir(parents=True)
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if mount is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("this user may not mount a file system")

    def grow() -> None:
        subprocess.run(
            [mount, "-o", "remount,size=64m", str(folder)], check=True, timeout=30
        )

    yield run_dir, grow
    subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=30)


@pytest.mark.parametrize(
    "hosts",
    [
        pytest.param(1, marks=pytest.mark.slow),
        pytest.param(2, marks=pytest.mark.nightly),
    ],
)
def test_checkpoints_before_the_full_disk_are_whole(hosts, small_disk, tmp_path):
    """Of two hosts the one that can write does not wait for the one that cannot.

    At least one reports the full disk; the other may only notice that it exits.
    """
    run_dir, grow = small_disk
    where = {"hosts": hosts, "flags": QUICK}
    more = ["--resume", "--keep-checkpoints=99", "--hosts.stall-timeout=300"]
    ended = finish(start(run_dir, *more, **where))
    statuses, texts = [status for status, _ in ended], [text for _, text in ended]
    assert 1 in statuses and 0 not in statuses, texts
    assert any(MESSAGE.search(text) for text in texts), texts
    assert not any("Timeout (0:05:00)!" in text for text in texts)
    stopped_at, _ = saved(run_dir)
    assert 0 < stopped_at < STEPS
    grow()
    train(run_dir, *more, **where)
    train(tmp_path / "whole", **where)
    assert_same_run(run_dir, tmp_path / "whole")


@needs_full
def test_metrics_on_a_full_disk(tmp_path):
    writer = MetricWriter(tmp_path)
    writer.write(1, "train", {"loss": 1.0})
    assert writer._file is not None
    writer._file.close()
    with (
        open("/dev/full", "wb", buffering=0) as writer._file,
        pytest.raises(ConfigError, match=r"\(No space left.*--resume"),
    ):
        writer.write(2, "train", {"loss": 2.0})
    writer.close()
    assert [row["step"] for row in read_metrics(tmp_path)] == [1]


@needs_full
def test_a_whole_file_on_a_full_disk_leaves_the_old_one(tmp_path):
    path = tmp_path / "config.json"
    replace_text(path, "old")
    (tmp_path / "config.json.unfinished").symlink_to(FULL)
    with pytest.raises(ConfigError, match=r"config\.json .*\(No space"):
        replace_text(path, "new")
    assert path.read_text() == "old"

"""A disk that fills up while a run writes to it: what is there stays, and serves."""

import pathlib
import shutil
import subprocess

import pytest

from tests.train.runs import STEPS, assert_same_run, finish, saved, start, train
from train.config import ConfigError
from train.writer import MetricWriter, read_metrics


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MB, and a way to make it larger."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if mount is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("this user may not mount a file system")

    def grow() -> None:
        subprocess.run(
            [mount, "-o", "remount,size=64m", str(folder)], check=True, timeout=30
        )

    yield folder, grow
    subprocess.run(["umount", str(folder)], check=True, timeout=30)


@pytest.mark.slow
def test_checkpoints_before_the_full_disk_are_whole(small_disk, tmp_path):
    folder, grow = small_disk
    more = ["--keep-checkpoints=99"]
    ((status, text),) = finish(start(folder / "run", *more))
    assert status == 1
    assert "error: the checkpoint of step" in text
    assert "Those before it are whole: make room" in text
    stopped_at, _ = saved(folder / "run")
    assert 0 < stopped_at < STEPS
    grow()
    train(folder / "run", *more, "--resume")
    train(tmp_path / "whole")
    assert_same_run(folder / "run", tmp_path / "whole")


@pytest.mark.skipif(not pathlib.Path("/dev/full").exists(), reason="no /dev/full")
def test_metrics_on_a_full_disk(tmp_path):
    writer = MetricWriter(tmp_path)
    writer.write(1, "train", {"loss": 1.0})
    assert writer._file is not None
    writer._file.close()
    with open("/dev/full", "wb", buffering=0) as writer._file:
        said = r"cannot be written \(No space left.*resume"
        with pytest.raises(ConfigError, match=said):
            writer.write(2, "train", {"loss": 2.0})
    writer.close()
    assert [row["step"] for row in read_metrics(tmp_path)] == [1]

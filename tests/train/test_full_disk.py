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
    r"^error: the checkpoint of step .* \(No space left on device\)\. Those before it "
    "are whole: make room"
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


@pytest.mark.slow
@pytest.mark.parametrize("hosts", [1, 2])
def test_checkpoints_before_the_full_disk_are_whole(hosts, small_disk, tmp_path):
    """Of two hosts the one that can write does not wait for the one that cannot.

    Whichever meets the full disk says so; the other one may notice it by its end alone.
    """
    run_dir, grow = small_disk
    where = {"hosts": hosts, "flags": QUICK}
    more = ["--resume", "--keep-checkpoints=99", "--hosts.stuck-after=300"]
    ended = finish(start(run_dir, *more, **where))
    statuses, texts = [status for status, _ in ended], [text for _, text in ended]
    assert 1 in statuses and 0 not in statuses, texts
    told = [text for text in texts if MESSAGE.search(text.splitlines()[-1])]
    assert told and not any("Traceback" in text for text in told), texts
    assert not any("stuck-after" in text for text in texts)
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
    with open("/dev/full", "wb", buffering=0) as writer._file:
        said = r"cannot be written \(No space left.*resume"
        with pytest.raises(ConfigError, match=said):
            writer.write(2, "train", {"loss": 2.0})
    writer.close()
    assert [row["step"] for row in read_metrics(tmp_path)] == [1]


@needs_full
def test_numbers_for_tensorboard_on_a_full_disk(tmp_path, caplog):
    pytest.importorskip("tensorboardX")
    writer = MetricWriter(tmp_path)
    assert writer._board is not None
    writer._board._records.close()
    writer._board._records._writer = FULL.open("wb")
    with pytest.raises(ConfigError, match=r"cannot be written \(No space left.*resume"):
        writer.write(1, "train", {"loss": 1.0})
    writer.close()
    assert "TensorBoard lacks the last numbers" in caplog.text
    assert [row["step"] for row in read_metrics(tmp_path)] == [1]


@needs_full
def test_a_whole_file_on_a_full_disk_leaves_the_old_one(tmp_path):
    path = tmp_path / "config.json"
    replace_text(path, "old")
    (tmp_path / "config.json.unfinished").symlink_to(FULL)
    with pytest.raises(ConfigError, match=r"config\.json cannot be written"):
        replace_text(path, "new")
    assert path.read_text() == "old"

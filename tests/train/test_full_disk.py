"""A disk that fills up while a run writes to it: what is there stays, and serves."""

import pathlib

import pytest

from train.config import ConfigError
from train.writer import MetricWriter, read_metrics, replace_text

FULL = pathlib.Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="no /dev/full")


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

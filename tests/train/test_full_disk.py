"""A disk that fills up while a run writes to it: what is there stays, and serves."""

import pathlib

import pytest

from train.config import ConfigError
from train.writer import MetricWriter, read_metrics


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

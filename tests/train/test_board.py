"""TensorBoard's event file, as TensorBoard reads it and on a disk without room."""

import pathlib
import struct
import subprocess
import sys
from typing import Any

import pytest

from tests.train.runs import ROOT
from train.reporting.board import Board

pytest.importorskip("tensorboardX")
FULL = pathlib.Path("/dev/full")


def events(folder: pathlib.Path) -> list[Any]:
    """Every record of the only event file: length, its checksum, data, checksum."""
    from tensorboardX.proto import event_pb2

    protos: Any = event_pb2
    (path,) = folder.glob("events.out.tfevents.*")
    content, found = path.read_bytes(), []
    while content:
        (size,) = struct.unpack("Q", content[:8])
        found.append(protos.Event.FromString(content[12 : 12 + size]))
        content = content[16 + size :]
    return found


def test_numbers_are_read_back(tmp_path):
    board = Board(tmp_path, start_step=5)
    board.add(6, {"train/loss": 1.25, "train/was": 2.0})
    assert len(events(tmp_path)) == 4  # the first numbers are seen at once
    board.add(7, {"train/loss": 0.5})
    board.close()
    version, start, *numbers = events(tmp_path)
    assert version.file_version == "brain.Event:2"
    assert start.step == 6 and start.session_log.status == start.session_log.START
    values = [(e.step, e.summary.value[0]) for e in numbers]
    assert [(step, value.tag, value.simple_value) for step, value in values] == [
        (6, "train/loss", 1.25),
        (6, "train/was", 2.0),
        (7, "train/loss", 0.5),
    ]
    assert version.wall_time <= start.wall_time <= numbers[-1].wall_time


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full")
def test_a_full_disk_is_an_error_where_numbers_are_added(tmp_path):
    board = Board(tmp_path, start_step=0)
    board._records.close()
    board._records._writer = FULL.open("wb")
    with pytest.raises(OSError, match="No space left"):
        board.add(1, {"train/loss": 1.0})
    with pytest.raises(OSError, match="No space left"):
        board.close()
    assert board._records._writer.closed


def test_torch_is_not_imported(tmp_path):
    code = f"""
import pathlib, sys
from train.reporting.board import Board
Board(pathlib.Path({str(tmp_path)!r}), start_step=0).close()
assert "torch" not in sys.modules and "tensorboardX" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=ROOT)

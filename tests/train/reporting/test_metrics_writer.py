"""metrics.jsonl: what a resumed run keeps, what a kill leaves, TensorBoard beside."""

import errno
import importlib.util
import math
import os
import pathlib

import pytest

from train.config import ConfigError
from train.reporting.metrics_writer import (
    MetricWriter,
    read_metrics,
    replace_text,
    writing,
)


def write(run_dir, *rows, start_step=0):
    writer = MetricWriter(run_dir, start_step=start_step)
    for step, kind, values in rows:
        writer.write(step, kind, values)
    writer.close()


def steps(run_dir):
    return [(row["step"], row["kind"]) for row in read_metrics(run_dir)]


def test_rows_after_the_resumed_step_are_dropped(tmp_path):
    write(tmp_path, *((i, "train", {"loss": float(i)}) for i in (2, 4, 6, 8)))
    write(tmp_path, (6, "train", {"loss": 0.5}), start_step=4)
    assert steps(tmp_path) == [(2, "train"), (4, "train"), (6, "train")]
    assert read_metrics(tmp_path)[-1]["loss"] == 0.5


def test_final_rows_are_replaced(tmp_path):
    rows = [(4, "train", {"loss": 1.0}), (4, "evaluation/all", {"loss": 2.0})]
    write(tmp_path, *rows, (4, "final/all", {"loss": 3.0}))
    write(tmp_path, (4, "final/all", {"loss": 3.0}), start_step=4)
    assert steps(tmp_path) == [(4, "train"), (4, "evaluation/all"), (4, "final/all")]


def test_half_a_last_row_does_not_count(tmp_path):
    write(tmp_path, (1, "train", {"loss": 1.0}), (2, "train", {"loss": 2.0}))
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text()[:-4])
    assert steps(tmp_path) == [(1, "train")]
    write(tmp_path, (2, "train", {"loss": 3.0}), start_step=2)
    assert [row["loss"] for row in read_metrics(tmp_path)] == [1.0, 3.0]


def test_a_damaged_row_in_the_middle_is_not_passed_over(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1\n{"step": 2}\n')
    with pytest.raises(ConfigError, match=r"metrics\.jsonl, line 1 "):
        read_metrics(tmp_path)


@pytest.mark.parametrize(
    "line",
    [b"[1]", b"7", b'{"step": 1}', b'{"step": null, "kind": "train"}', b"\0\xff"],
)
def test_what_is_no_row_is_named(line, tmp_path):
    row = b'{"step": 1, "kind": "train"}\n'
    (tmp_path / "metrics.jsonl").write_bytes(row + line + b"\n" + row)
    with pytest.raises(ConfigError, match=r"metrics\.jsonl, line 2 "):
        MetricWriter(tmp_path, start_step=1)


def test_half_a_last_row_may_be_anything(tmp_path):
    write(tmp_path, (1, "train", {"loss": 1.0}))
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b"\0\0\xff")
    assert steps(tmp_path) == [(1, "train")]


def test_nan_and_inf_are_null(tmp_path):
    values = {"a": math.nan, "b": -math.inf, "c": 1.5, "d": None, "n": 3}
    write(tmp_path, (1, "train", values))
    (row,) = read_metrics(tmp_path)
    expected = {"a": None, "b": None, "c": 1.5, "d": None, "n": 3}
    assert row == {"step": 1, "kind": "train"} | expected


def test_no_run_has_no_rows(tmp_path):
    assert read_metrics(tmp_path) == []


def test_tensorboard_events(tmp_path):
    pytest.importorskip("tensorboardX")
    write(tmp_path, (1, "train", {"loss": 1.25, "n": 3}))
    (events,) = tmp_path.glob("events.out.tfevents.*")
    data = events.read_bytes()
    assert b"train/loss" in data and b"train/n" not in data


def test_without_tensorboard_there_are_rows_alone(tmp_path, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *a: None if name == "tensorboardX" else find_spec(name, *a),
    )
    write(tmp_path, (1, "train", {"loss": 1.0}))
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
    assert len(read_metrics(tmp_path)) == 1


def test_only_the_coordinator_writes(tmp_path, monkeypatch):
    monkeypatch.setattr("train.reporting.metrics_writer.is_coordinator", lambda: False)
    write(tmp_path, (1, "train", {"loss": 1.0}))
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    replace_text(path, "old")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pathlib.Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        replace_text(path, "new")
    assert path.read_text() == "old"


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "make room"),
        (errno.EDQUOT, "make room"),
        (errno.EACCES, "look at its permissions"),
        (errno.EROFS, "look at its permissions"),
        (errno.ENOENT, "bring its folder back"),
        (errno.EIO, "look at its disk"),
    ],
)
def test_the_remedy_depends_on_the_error(number, remedy):
    message = rf"^a/b .*\({os.strerror(number)}\): {remedy}, .*--resume"
    with pytest.raises(ConfigError, match=message), writing("a/b"):
        raise OSError(number, os.strerror(number))


def test_a_folder_that_was_removed(tmp_path):
    with pytest.raises(ConfigError, match=r"gone/config\.json .* --resume"):
        replace_text(tmp_path / "gone" / "config.json", "new")

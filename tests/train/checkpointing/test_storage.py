"""Run folders in a bucket, which has no appends, no renames and no folders."""

import logging
import pathlib
import types

import jax.numpy as jnp
import pytest

from tests.train.helpers import TINY, changed
from train.__main__ import main, named_runs
from train.checkpointing.rundir import read_config, resolve_run_dir, write_config
from train.checkpointing.storage import (
    AnyPath,
    Mirror,
    any_path,
    make_folder,
    move_folder,
)
from train.config import ConfigError
from train.reporting.metrics_writer import MetricWriter, read_metrics, replace_text
from train.reporting.progress import StepProfile


@pytest.fixture
def run_dir(folder) -> AnyPath:
    return any_path(f"gs://bucket/{folder}")


# ---------------------------------------------------------------- files and folders


@pytest.mark.parametrize("name", ["gs:/bucket/run", "gs:bucket/run", "s3:/bucket/run"])
def test_a_misspelt_address_is_no_folder(name):
    with pytest.raises(ConfigError, match=name):
        any_path(name)
    assert any_path(f"./{name}") == pathlib.Path(name)
    assert any_path("lr:1e-3") == pathlib.Path("lr:1e-3")


def test_a_folder_that_can_be_written_is_left_empty(bucket, folder, run_dir):
    make_folder(run_dir)
    assert bucket.names(folder) == set()
    assert [method for method, name in bucket.changes if name.startswith(folder)] == [
        "POST",
        "DELETE",
    ]


@pytest.mark.parametrize("method", ["POST", "DELETE", "GET"])
def test_a_folder_without_permission(method, bucket, folder, run_dir):
    bucket.refuse_like(method, "^$" if method == "GET" else folder)
    with pytest.raises(ConfigError, match=r"gs://bucket/\S+ .*\((Forbidden|403 GET)"):
        make_folder(run_dir)


def test_a_bucket_that_does_not_exist(bucket):
    with pytest.raises(ConfigError, match=r"gs://elsewhere/run .*\(404"):
        make_folder(any_path("gs://elsewhere/run"))


def test_without_gcsfs(monkeypatch):
    util = types.SimpleNamespace(find_spec=lambda name: None)
    monkeypatch.setattr(
        "train.checkpointing.storage.importlib", types.SimpleNamespace(util=util)
    )
    with pytest.raises(ConfigError, match=r"pip install 'ntl_jax\[gcs\]'"):
        any_path("gs://bucket/run")


def test_a_refused_file_leaves_the_old_one(bucket, folder, run_dir):
    replace_text(run_dir / "config.json", "old")
    bucket.refuse_like("POST", "config.json")
    with pytest.raises(ConfigError, match="gs://bucket/"):
        replace_text(run_dir / "config.json", "new")
    assert bucket.objects[f"{folder}/config.json"][0] == b"old"


@pytest.fixture
def moved(run_dir) -> tuple[AnyPath, AnyPath]:
    for name in ("whole", "a/x", "a/b/y"):
        replace_text(run_dir / "from" / name, name)
    return run_dir / "from", run_dir / "to" / "deep"


def test_a_folder_moves_with_all_in_it(bucket, folder, moved):
    move_folder(*moved, last_of="whole")
    deleted = [n for m, n in bucket.changes if m == "DELETE" and n.startswith(folder)]
    assert deleted[0] == f"{folder}/from/whole"
    assert bucket.names(folder) == {f"to/deep/{n}" for n in ("whole", "a/x", "a/b/y")}
    assert (moved[1] / "a" / "b" / "y").read_text() == "a/b/y"


@pytest.mark.parametrize(
    ("method", "pattern", "whole"),
    [
        ("POST", "to/deep/a/b", True),
        ("DELETE", "whole", True),
        ("DELETE", "/y$", False),
    ],
)
def test_a_move_that_breaks_off_loses_nothing(
    method, pattern, whole, bucket, folder, moved
):
    bucket.refuse_like(method, pattern)
    with pytest.raises(ConfigError, match="gs://bucket/"):
        move_folder(*moved, last_of="whole")
    names = bucket.names(folder)
    assert ("from/whole" in names) == whole
    copied = {name.removeprefix("to/deep/") for name in names if name.startswith("to/")}
    kept = {name.removeprefix("from/") for name in names if name.startswith("from/")}
    assert copied == {"whole", "a/x", "a/b/y"} or kept == {"whole", "a/x", "a/b/y"}


# ---------------------------------------------------------------- runs


def test_a_folder_that_holds_a_run_is_refused(run_dir):
    config = changed(TINY, run_dir=str(run_dir))
    with pytest.raises(ConfigError, match=r"--resume: .* gs://bucket"):
        resolve_run_dir(changed(config, resume=True))
    assert resolve_run_dir(config) == run_dir
    write_config(run_dir, config)
    with pytest.raises(ConfigError, match="--resume"):
        resolve_run_dir(config)
    assert resolve_run_dir(changed(config, resume=True)) == run_dir
    assert read_config(run_dir)["steps"] == config.steps
    config = changed(config, run_dir=f"{run_dir}/config.json")
    with pytest.raises(ConfigError, match=r"config\.json is a file"):
        resolve_run_dir(config)


def test_a_folder_made_in_the_console_is_empty(bucket, folder, run_dir):
    bucket.put(f"{folder}/", b"")
    assert resolve_run_dir(changed(TINY, run_dir=str(run_dir))) == run_dir


def test_runs_are_named_by_their_last_part(bucket):
    runs = named_runs(["gs://bucket/a/one", "gs://bucket/b/two/"])
    assert {name: str(run) for name, run in runs.items()} == {
        "one": "gs://bucket/a/one",
        "two": "gs://bucket/b/two",
    }
    with pytest.raises(ConfigError, match="named twice"):
        named_runs(["gs://bucket/a", "gs://bucket/a/"])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["predict", "gs://elsewhere/run", "1 + 1"], "gs://elsewhere/run"),
        (["evaluate", "gs://bucket/none"], "gs://bucket/none"),
        (["export", "gs://bucket/none", "gs://bucket/x"], "gs://bucket/x"),
        (["report", "gs://bucket/x", "gs://bucket/none"], "evaluation.json"),
        (["report", "somewhere", "s3://bucket/none"], "s3://bucket/none"),
    ],
)
def test_commands_without_a_run(arguments, named, bucket, capsys):
    assert main(arguments) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and named in line


# ---------------------------------------------------------------- metrics and profiles


def test_rows_are_copied_now_and_then_and_resumed(bucket, folder, run_dir):
    writer = MetricWriter(run_dir)
    for step in range(1, 201):
        writer.write(step, "train", {"loss": 1.0 / step})
        if step == 120:
            writer.flush()  # as before a checkpoint
    assert len(read_metrics(run_dir)) == 120  # what SIGKILL would leave
    puts = [name for _, name in bucket.changes if name == f"{folder}/metrics.jsonl"]
    assert len(puts) <= 6  # each of two requests
    writer.close()
    assert len(read_metrics(run_dir)) == 200

    writer = MetricWriter(run_dir, start_step=100)
    assert [row["step"] for row in read_metrics(run_dir)] == list(range(1, 101))
    writer.write(101, "train", {"loss": 5.0})
    writer.close()
    assert [row["loss"] for row in read_metrics(run_dir)[-2:]] == [0.01, 5.0]
    events = [name for name in bucket.names(folder) if "tfevents" in name]
    assert events and all(
        b"train/loss" in bucket.objects[f"{folder}/{name}"][0] for name in events
    )


def test_rows_wait_for_a_bucket_that_comes_back(bucket, folder, run_dir, caplog):
    writer = MetricWriter(run_dir)
    writer._mirror._due = 0.0
    bucket.refuse_like("POST", "metrics")
    logging.getLogger("train").propagate = True
    writer.write(1, "train", {"loss": 1.0})
    assert str(run_dir) in caplog.text and "30 s" in caplog.text
    with pytest.raises(ConfigError, match="gs://bucket/"):
        writer.flush()  # no checkpoint without the rows before it
    bucket.refuse_nothing()
    writer.close()
    assert [row["step"] for row in read_metrics(run_dir)] == [1]
    assert not writer._mirror.folder.exists()


def test_slow_copies_are_made_less_often(bucket, run_dir, monkeypatch):
    seconds = iter([0.0, 10.0, 0.0, 0.1, 0.0, 0.0])
    clock = types.SimpleNamespace(monotonic=lambda: next(seconds))
    monkeypatch.setattr("train.checkpointing.storage.time", clock)
    mirror = Mirror(run_dir)
    mirror.copy()
    assert mirror._due == 10.0 + 200.0
    mirror.copy()
    assert mirror._due == pytest.approx(30.1)
    mirror.close()


def test_a_profile(bucket, folder, run_dir):
    with StepProfile(2, run_dir) as profile:
        for step in range(1, 7):
            profile.before(step, jnp.ones(2) + step)
    (name,) = (n for n in bucket.names(folder) if n.endswith(".xplane.pb"))
    assert name.startswith("profile/plugins/profile/")


def test_local_folders_are_as_they_were(tmp_path):
    assert any_path(str(tmp_path)) == tmp_path
    assert isinstance(any_path("runs/x"), pathlib.Path)

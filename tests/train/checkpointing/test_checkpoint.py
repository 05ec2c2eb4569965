"""Checkpoints that were damaged on disk are refused, and the one before is taken."""

import dataclasses
import errno
import gc
import json
import logging
import os
import pathlib
import re
import shutil

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from tests.train.helpers import INTERRUPTED_IO, SHALLOW, changed, tiny_task
from train.checkpointing import checkpointer as checkpoint
from train.checkpointing.checkpointer import Checkpointer
from train.checkpointing.errors import DamagedError, MismatchError
from train.checkpointing.rundir import config_dict
from train.config import ConfigError
from train.state import abstract_state, init_state

CONFIG = config_dict(SHALLOW)

pytestmark = INTERRUPTED_IO


@pytest.fixture(autouse=True, scope="module")
def _frozen():
    """Leaves out of the collections below what was made before: seconds for each."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _collected(monkeypatch):
    monkeypatch.setattr(logging.getLogger("train"), "propagate", True)
    yield
    gc.collect()


@pytest.fixture(scope="module")
def saved(tmp_path_factory, states) -> pathlib.Path:
    run_dir = tmp_path_factory.mktemp("saved")
    with Checkpointer(run_dir) as checkpointer:
        for state in states:
            checkpointer.save(state, CONFIG)
    return run_dir


@pytest.fixture
def run_dir(saved, tmp_path) -> pathlib.Path:
    return pathlib.Path(shutil.copytree(saved, tmp_path / "run"))


def largest(folder: pathlib.Path) -> pathlib.Path:
    """The file with the most arrays in it."""
    return max(folder.rglob("d/*"), key=lambda path: path.stat().st_size)


def flip_a_byte(folder: pathlib.Path) -> None:
    file = largest(folder)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x10
    file.write_bytes(bytes(content))


def assert_same(one, other) -> None:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    for leaf, twin in pairs:
        np.testing.assert_array_equal(np.asarray(leaf), np.asarray(twin))


def newest(run_dir: pathlib.Path, task, keep: int | None = None):
    abstract = abstract_state(task)
    with Checkpointer(run_dir, keep=keep) as checkpointer:
        found = checkpointer.newest(lambda at: checkpointer.restore(at, abstract))
        if found is not None and keep:
            checkpointer.quarantine_after(found[0])
    return found


def test_what_was_saved_comes_back(run_dir, task, states):
    step, restored = newest(run_dir, task)
    assert step == 1
    assert_same(restored, states[1])
    with Checkpointer(run_dir) as checkpointer:
        assert_same(checkpointer.read(0)["params"], states[0].params)
        params = abstract_state(task).params
        assert_same(checkpointer.newest_params(params), states[1].params)


@pytest.mark.parametrize("item", ["params", "training"])
def test_after_a_flipped_byte_the_one_before_is_taken(
    item, run_dir, task, states, caplog
):
    flip_a_byte(run_dir / "checkpoints" / "1" / item)
    step, restored = newest(run_dir, task, keep=2)
    assert step == 0
    assert_same(restored, states[0])
    assert "checkpoints/1 cannot be read" in caplog.text
    assert "taking the checkpoint of step 0" in caplog.text
    assert (run_dir / "damaged" / "1" / item).is_dir()  # nothing is deleted
    with Checkpointer(run_dir, keep=2) as checkpointer:
        checkpointer.save(states[1], CONFIG)  # its name is free again
    assert newest(run_dir, task)[0] == 1


@pytest.mark.parametrize(
    "error",
    [
        PermissionError(errno.EACCES, "Permission denied", "metadata"),
        ValueError('PERMISSION_DENIED: Error opening "zarr" driver: Failed to open'),
    ],
)
def test_what_may_not_be_read_is_not_called_damaged(error, run_dir, task, monkeypatch):
    def denied(*_, **__):
        raise error

    monkeypatch.setattr(ocp.CheckpointManager, "restore", denied)
    with pytest.raises(ConfigError, match="checkpoints/1 ") as caught:
        newest(run_dir, task, keep=2)
    assert not isinstance(caught.value, DamagedError)
    assert not (run_dir / "damaged").exists()


@pytest.mark.parametrize("closed", ["params", "checksums", "params/ocdbt.process_0"])
def test_a_closed_folder_is_not_called_damaged(closed, run_dir, task, monkeypatch):
    """Orbax would say that its content is not there, as it is here."""
    step, seen = run_dir / "checkpoints" / "1", os.access
    shutil.rmtree(step / closed)
    (step / closed).mkdir()
    closed = str(step / closed)
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != closed)
    with pytest.raises(ConfigError, match=rf"\({re.escape(closed)}\)"):
        newest(run_dir, task, keep=2)
    monkeypatch.setattr(os, "access", seen)
    assert newest(run_dir, task, keep=2)[0] == 0  # it is damaged now


def test_a_reader_moves_nothing(run_dir, task):
    flip_a_byte(run_dir / "checkpoints" / "1" / "params")
    assert newest(run_dir, task)[0] == 0
    assert (run_dir / "checkpoints" / "1").is_dir()


@pytest.mark.parametrize(
    "how", ["no file", "no checksums", "no description", "other dtype"]
)
def test_other_damage(how, run_dir, task, states):
    folder = run_dir / "checkpoints" / "1"
    if how == "no file":
        largest(folder / "params").unlink()
    elif how == "no checksums":
        shutil.rmtree(folder / "checksums")
    elif how == "no description":
        file = folder / "params" / "array_metadatas" / "process_0"
        file.write_text(file.read_text().replace('array_metadata"', 'brray_metadata"'))
    else:
        file = next(path for path in (folder / "checksums").iterdir() if path.is_file())
        file.write_text(file.read_text().replace("float32", "bfloat16"))
    step, restored = newest(run_dir, task)
    assert step == 0
    assert_same(restored, states[0])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("checksums/metadata", []),
        ("checksums/metadata", {"params/decoder/final_norm/scale": 1}),
        ("params/_METADATA", None),
        ("params/_METADATA", {"tree_metadata": {"a": 1}}),
        ("params/array_metadatas/process_0", "text"),
        ("params/array_metadatas/process_0", {"array_metadatas": [1]}),
        ("training/_METADATA", 1),
    ],
)
def test_json_of_another_kind_is_damage(name, content, run_dir, task, states, caplog):
    file = run_dir / "checkpoints" / "1" / name
    whole = json.loads(file.read_text())
    changed_file = whole | content if isinstance(content, dict) else content
    file.write_text(json.dumps(changed_file))
    step, restored = newest(run_dir, task, keep=2)
    assert step == 0 and "checkpoints/1 cannot be read" in caplog.text
    assert_same(restored, states[0])
    assert (run_dir / "damaged" / "1" / name).exists()


@pytest.mark.parametrize("content", [[], 1, {"metrics": 1}])
@pytest.mark.parametrize("step", [0, 1])
def test_when_a_step_was_written_is_not_needed(step, content, run_dir, task, states):
    """Orbax keeps it beside the arrays, and refused the whole folder without it."""
    file = run_dir / "checkpoints" / str(step) / "_CHECKPOINT_METADATA"
    file.write_text(json.dumps(content))
    found, restored = newest(run_dir, task, keep=2)
    assert found == 1
    assert_same(restored, states[1])
    with Checkpointer(run_dir, keep=2) as checkpointer:
        later = dataclasses.replace(states[1], step=states[1].step + 1)
        checkpointer.save(later, CONFIG)
    assert newest(run_dir, task)[0] == 2


def test_when_the_step_before_a_damaged_one_was_written_is_not_needed(
    run_dir, task, states
):
    flip_a_byte(run_dir / "checkpoints" / "1" / "params")
    (run_dir / "checkpoints" / "0" / "_CHECKPOINT_METADATA").write_text("[]")
    abstract = abstract_state(task)
    with Checkpointer(run_dir, keep=2) as checkpointer:
        checkpointer.newest(lambda step: checkpointer.restore(step, abstract))
        checkpointer.quarantine_after(0)
        assert checkpointer.latest_step() == 0
        checkpointer.save(states[1], CONFIG)
    step, restored = newest(run_dir, task)
    assert step == 1
    assert_same(restored, states[1])


def test_an_error_of_our_own_is_not_called_damage(run_dir, task, monkeypatch):
    def bug(_):
        raise AttributeError("a list has no items")

    monkeypatch.setattr(checkpoint, "check_digest_texts", bug)
    with pytest.raises(AttributeError, match="items"):
        newest(run_dir, task)


OTHER_MODELS = {
    "wider": ({"model__d_ff": 48}, r"wi\w*/kernel: float32.* saved, float32.* asked"),
    "deeper": ({"model__num_layers": 2}, r"q/kernel: float32\[1,.* float32\[2,"),
    "untied": ({"model__tie_word_embeddings": False}, "head.*: nothing saved, float"),
    "other moments": ({"optimizer__name": "adafactor"}, r"training/opt_state/.*\n"),
}


@pytest.mark.parametrize("case", OTHER_MODELS)
def test_a_checkpoint_of_another_model_is_not_called_damaged(case, run_dir, caplog):
    changes, named = OTHER_MODELS[case]
    with pytest.raises(MismatchError, match="checkpoints/1 ") as caught:
        newest(run_dir, tiny_task(changed(SHALLOW, **changes)), keep=2)
    assert re.search(named, str(caught.value)), caught.value
    assert "cannot be read" not in caplog.text and "in its place" not in caplog.text
    assert {path.name for path in (run_dir / "checkpoints").iterdir()} >= {"0", "1"}


def test_no_older_checkpoint_is_taken_for_one_of_another_model(run_dir, task, states):
    """The newest is of a wider model, as where folders of two runs were mixed."""
    wider = tiny_task(changed(SHALLOW, model__d_ff=48))
    with Checkpointer(run_dir) as checkpointer:
        state = init_state(wider, None)
        state = dataclasses.replace(state, step=state.step + 2)
        checkpointer.save(state, CONFIG)
    with pytest.raises(MismatchError, match="checkpoints/2 "):
        newest(run_dir, task)
    flip_a_byte(run_dir / "checkpoints" / "2" / "params")
    with pytest.raises(MismatchError, match="checkpoints/2 "):
        newest(run_dir, task)


def test_arrays_that_contradict_their_checksums_are_damage(run_dir, task, states):
    """Where the files themselves disagree, nothing says what was saved."""
    folder = run_dir / "checkpoints" / "1" / "checksums"
    file = next(path for path in folder.iterdir() if path.is_file())
    names = json.loads(file.read_text())
    names["params/another"] = names.pop(min(names))
    file.write_text(json.dumps(names))
    step, restored = newest(run_dir, task)
    assert step == 0
    assert_same(restored, states[0])


def test_none_is_whole(run_dir, task):
    for step in ("0", "1"):
        flip_a_byte(run_dir / "checkpoints" / step / "params")
    with pytest.raises(DamagedError, match="checkpoints/0 "):
        newest(run_dir, task)


def test_what_a_kill_leaves_half_written_does_not_count(run_dir, task):
    folder = run_dir / "checkpoints"
    half = folder / "2.orbax-checkpoint-tmp"
    shutil.copytree(folder / "1", half)
    assert newest(run_dir, task)[0] == 1
    assert half.is_dir()  # of a run that may still be writing
    assert newest(run_dir, task, keep=2)[0] == 1
    assert not half.exists()


def test_a_folder_that_is_a_file_is_named(tmp_path, task):
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(ConfigError, match="checkpoints is a file"):
        newest(tmp_path, task)


def test_no_checkpoint_yet(tmp_path, task):
    assert newest(tmp_path, task) is None
    with (
        Checkpointer(tmp_path) as checkpointer,
        pytest.raises(ConfigError, match=str(tmp_path)),
    ):
        checkpointer.newest_params(abstract_state(task).params)

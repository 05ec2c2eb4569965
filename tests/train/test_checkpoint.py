"""Checkpoints that were damaged on disk are refused, with their folder's name."""

import os
import pathlib
import subprocess
import sys

import jax
import pytest

from tests.train.helpers import TINY, tiny_task
from train.checkpoint import Checkpointer, checksums
from train.config import ConfigError
from train.rundir import config_dict
from train.state import abstract_state, init_state


@pytest.fixture
def task():
    return tiny_task()


@pytest.fixture
def run_dir(tmp_path, task) -> pathlib.Path:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(init_state(task), config_dict(TINY))
    return tmp_path


def test_what_was_saved_comes_back(run_dir, task):
    with Checkpointer(run_dir) as checkpointer:
        restored = checkpointer.restore(0, abstract_state(task))
        read = checkpointer.read(0)
    params = init_state(task).params
    assert checksums(restored.params) == checksums(params) == checksums(read["params"])


def test_bytes_that_changed_are_noticed(run_dir, task):
    files = [path for path in run_dir.glob("checkpoints/0/checksums/*")]
    (file,) = [path for path in files if "shared" in path.read_text()]
    name = "params/shared/embedding"
    text = file.read_text()
    good = checksums({"params": init_state(task).params})[name]
    assert str(good) in text
    file.write_text(text.replace(str(good), str(good ^ 1)))
    with Checkpointer(run_dir) as checkpointer:
        with pytest.raises(ConfigError, match=rf"bytes of {name} changed.*delete"):
            checkpointer.restore(0, abstract_state(task))
        with pytest.raises(ConfigError, match=r"checkpoints/0 cannot be read"):
            checkpointer.restore_params(0, abstract_state(task).params)


# In a process of its own: orbax drops the reads that were under way when the first one
# failed, and Python warns of them at any later moment.
RESTORE = """
import pathlib, sys
from tests.train.helpers import tiny_task
from train.checkpoint import Checkpointer
from train.config import ConfigError
from train.state import abstract_state
with Checkpointer(pathlib.Path(sys.argv[1])) as checkpointer:
    try:
        checkpointer.restore(0, abstract_state(tiny_task()))
    except ConfigError as error:
        print(error)
"""


def test_truncated_files_are_named(run_dir):
    data = max(
        (path for path in run_dir.glob("checkpoints/0/params/**/d/*")),
        key=lambda path: path.stat().st_size,
    )
    data.write_bytes(data.read_bytes()[: data.stat().st_size // 2])
    done = subprocess.run(
        [sys.executable, "-c", RESTORE, str(run_dir)],
        cwd=pathlib.Path(__file__).parents[2],
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "checkpoints/0 cannot be read" in done.stdout, done.stderr


def test_a_flipped_bit_changes_the_checksum(task):
    params = init_state(task).params
    flipped = jax.tree.map(lambda leaf: leaf, params)
    scale = flipped["encoder"]["final_norm"]["scale"]
    flipped["encoder"]["final_norm"]["scale"] = scale.at[3].multiply(1 + 2**-23)
    before, after = checksums(params), checksums(flipped)
    assert {k for k in before if before[k] != after[k]} == {"encoder/final_norm/scale"}

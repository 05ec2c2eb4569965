"""Checkpoints in a bucket: kept, refused, damaged, and read back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.train.checkpointing.fake_bucket import FakeBucket
from tests.train.helpers import INTERRUPTED_IO
from train.checkpointing.checkpointer import Checkpointer
from train.checkpointing.errors import DamagedError, SaveError
from train.checkpointing.folder import has_checkpoint
from train.checkpointing.rundir import trained_runs
from train.checkpointing.storage import AnyPath, any_path
from train.config import ConfigError
from train.state import TrainState


@pytest.fixture
def run_dir(folder) -> AnyPath:
    return any_path(f"gs://bucket/{folder}")


def state_at(step: int) -> TrainState:
    params = {"a": jnp.full((64, 64), float(step)), "b": jnp.arange(4.0) + step}
    return TrainState(jnp.int32(step), params, {"m": params["b"] * 2}, {})


def abstract() -> TrainState:
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device),
        state_at(0),
    )


def steps_in(bucket: FakeBucket, folder: str) -> set[str]:
    inside = bucket.names(f"{folder}/checkpoints")
    return {name.split("/")[0] for name in inside}


@pytest.fixture(scope="module")
def original(bucket) -> str:
    """The folder of steps 2 and 3; step 1 was deleted in their favour."""
    run_dir = any_path("gs://bucket/original")
    assert not has_checkpoint(run_dir)
    with Checkpointer(run_dir, keep=2) as checkpointer:
        for step in (1, 2, 3):
            checkpointer.save(state_at(step), {"steps": 3})
    assert steps_in(bucket, "original") == {"2", "3"}
    return "original"


@pytest.fixture
def saved(original, bucket, folder, run_dir) -> AnyPath:
    for name in bucket.names(original):
        bucket.put(f"{folder}/{name}", bucket.objects[f"{original}/{name}"][0])
    return run_dir


def test_checkpoints_are_kept_and_read_back(saved):
    assert has_checkpoint(saved)
    assert trained_runs(saved) == {saved.name: saved}
    with Checkpointer(saved) as checkpointer:
        step, state = checkpointer.newest(
            lambda at: checkpointer.restore(at, abstract())
        )
    assert step == 3
    jax.tree.map(np.testing.assert_array_equal, state, state_at(3))


def test_a_step_that_was_not_finished_does_not_count(saved, bucket, folder):
    del bucket.objects[f"{folder}/checkpoints/3/commit_success.txt"]
    leftover = bucket.put(f"{folder}/checkpoints/3/leftover", b"of a killed run")
    with Checkpointer(saved) as checkpointer:
        assert checkpointer.latest_step() == 2
    assert leftover["name"] in bucket.objects  # who reads deletes nothing
    with Checkpointer(saved, keep=2) as checkpointer:
        checkpointer.save(state_at(3), {"steps": 3})
    assert leftover["name"] not in bucket.objects
    with Checkpointer(saved) as checkpointer:
        restored = checkpointer.restore(3, abstract())
    jax.tree.map(np.testing.assert_array_equal, restored, state_at(3))
    del bucket.objects[f"{folder}/checkpoints/2/commit_success.txt"]
    del bucket.objects[f"{folder}/checkpoints/3/commit_success.txt"]
    assert not has_checkpoint(saved)


@pytest.mark.parametrize("what", ["/d/", "commit_success", "_METADATA"])
@INTERRUPTED_IO
def test_a_save_that_is_refused(what, saved, bucket, folder):
    bucket.refuse_like("POST", f"/4/.*{what}")
    with (
        pytest.raises(SaveError, match=r"step 4 .* gs://.*--resume"),
        Checkpointer(saved, keep=2) as checkpointer,
    ):
        checkpointer.save(state_at(4), {"steps": 4})
    bucket.refuse_nothing()
    with Checkpointer(saved, keep=2) as checkpointer:
        assert checkpointer.latest_step() == 3
        checkpointer.save(state_at(4), {"steps": 4})
    assert steps_in(bucket, folder) == {"3", "4"}


def damage(bucket: FakeBucket, folder: str) -> None:
    """Flips a byte in the largest object of step 3."""
    prefix = f"{folder}/checkpoints/3/"
    names = [name for name in bucket.objects if name.startswith(prefix)]
    name = max(names, key=lambda name: len(bucket.objects[name][0]))
    content = bytearray(bucket.objects[name][0])
    content[len(content) // 2] ^= 0x10
    bucket.put(name, bytes(content))


@INTERRUPTED_IO
def test_a_damaged_step_is_moved_out_of_the_way(saved, bucket, folder):
    damage(bucket, folder)
    before = bucket.names(f"{folder}/checkpoints/3")
    with Checkpointer(saved, keep=2) as checkpointer:
        step, state = checkpointer.newest(
            lambda at: checkpointer.restore(at, abstract())
        )
        assert step == 2
        bucket.refuse_like("POST", "damaged")
        with pytest.raises(ConfigError, match="checkpoints/3"):
            checkpointer.quarantine_after(step)
        bucket.refuse_nothing()
        checkpointer.quarantine_after(step)
        assert checkpointer.latest_step() == 2
        checkpointer.save(state_at(3), {"steps": 3})
    jax.tree.map(np.testing.assert_array_equal, state, state_at(2))
    moved = bucket.names(f"{folder}/damaged/3")
    assert moved == before
    with Checkpointer(saved) as checkpointer:
        jax.tree.map(
            np.testing.assert_array_equal,
            checkpointer.restore(3, abstract()),
            state_at(3),
        )


@pytest.mark.parametrize("what", ["/d/", "_METADATA", "checksums", "manifest"])
@INTERRUPTED_IO
def test_what_cannot_be_read_is_not_taken_for_damaged(what, saved, bucket, folder):
    before = dict(bucket.objects)
    bucket.refuse_like("GET", f"/3/.*{what}")
    with (
        Checkpointer(saved) as checkpointer,
        pytest.raises(ConfigError, match="gs://bucket/") as refused,
    ):
        checkpointer.newest(lambda at: checkpointer.restore(at, abstract()))
    assert not isinstance(refused.value, DamagedError)
    assert bucket.objects == before

"""A run that diverges stops, says where, and keeps its last good checkpoint."""

import io
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.train.helpers import SHALLOW, changed, tiny_task
from train.checkpointing.checkpointer import Checkpointer
from train.checkpointing.folder import has_checkpoint
from train.loop import run
from train.reporting.metrics_writer import MetricWriter, read_metrics
from train.reporting.progress import (
    IntervalLog,
    NonFiniteError,
    StepProfile,
    peak_memory,
)
from train.state import abstract_state

PARAMS = {"a": {"kernel": jnp.ones(2), "scale": jnp.ones(3)}, "b": jnp.ones(1)}
TOKENS = 3


def metrics(loss: float, bad_leaf: int = -1) -> dict[str, jax.Array]:
    return {
        "loss": jnp.float32(loss),
        "ce": jnp.float32(loss),
        "grad_norm": jnp.float32(1.0),
        "learning_rate": jnp.float32(0.1),
        "bad_leaf": jnp.int32(bad_leaf),
    }


@pytest.fixture
def log(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stderr", io.StringIO())
    writer = MetricWriter(tmp_path)
    with IntervalLog(PARAMS, 0, 9, writer) as log:
        yield log
    writer.close()


def test_a_row_is_the_mean_since_the_last_row(log, tmp_path):
    log.add(1, TOKENS, metrics(1.0))
    log.add(2, TOKENS, metrics(3.0) | {"learning_rate": jnp.float32(0.2)})
    log.flush()
    log.flush()  # nothing new
    log.add(3, TOKENS, metrics(7.0))
    log.flush()
    first, second = read_metrics(tmp_path)
    assert (first["step"], first["kind"], second["step"]) == (2, "train", 3)
    assert (first["loss"], first["ce"], second["loss"]) == (2.0, 2.0, 7.0)
    assert first["learning_rate"] == pytest.approx(0.2)
    assert first["tokens_per_s"] == pytest.approx(3 * first["steps_per_s"])
    assert "bad_leaf" not in first


@pytest.mark.parametrize(
    ("bad", "where"),
    [
        (metrics(np.nan), "the loss or the gradient's norm alone"),
        (
            metrics(2.0) | {"grad_norm": jnp.float32(np.inf)},
            "the loss or the gradient's norm alone",
        ),
        (metrics(np.inf, bad_leaf=1), "the gradient or update of a/scale"),
        (metrics(2.0, bad_leaf=2), "the gradient or update of b"),
    ],
)
def test_the_first_bad_step_and_leaf_are_named(log, tmp_path, bad, where):
    log.add(1, TOKENS, metrics(1.0))
    log.add(2, TOKENS, bad)
    log.add(3, TOKENS, metrics(np.nan, bad_leaf=0))
    loss = f"{float(bad['loss']):g}"
    named = rf"step 2 is not finite \(ce {loss}, .*loss {loss}\); .*: {where}\."
    with pytest.raises(NonFiniteError, match=named):
        log.flush()
    assert read_metrics(tmp_path) == []


def test_a_run_that_diverges_keeps_its_last_finite_checkpoint(tmp_path):
    config = changed(
        SHALLOW,
        optimizer__learning_rate=1e30,
        optimizer__weight_decay=0.0,
        checkpoint_every=1,
        log_every=3,
        keep_checkpoints=9,
    )
    with pytest.raises(NonFiniteError) as raised:
        run(config, tmp_path)
    match = re.match(
        r"step (\d) is not finite \(ce \S+, grad_norm \S+, loss \S+, was \S+\); "
        r"first at fault: the gradient or update of decoder/\S+\. ",
        str(raised.value),
    )
    assert match, str(raised.value)
    step = int(match[1])
    assert step > 1
    with Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.latest_step() == step - 1
        state = checkpointer.restore(step - 1, abstract_state(tiny_task(config)))
    leaves = jax.tree.leaves((state.params, state.opt_state))
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in leaves)
    assert int(state.step) == step - 1
    steps = [row["step"] for row in read_metrics(tmp_path)]
    assert steps == list(range(1, step))
    assert not (tmp_path / "evaluation.json").exists()


def test_an_update_that_overflows_is_never_saved(tmp_path):
    """The first gradients are finite, what they make of the parameters is not."""
    config = changed(
        SHALLOW,
        optimizer__learning_rate=3e38,
        optimizer__weight_decay=1e3,
        checkpoint_every=1,
    )
    with pytest.raises(NonFiniteError, match="step 1 is not finite"):
        run(config, tmp_path)
    assert not has_checkpoint(tmp_path)


def test_peak_memory_is_of_the_fullest_device(monkeypatch):
    assert peak_memory() is None  # CPUs do not tell
    stats = [{"peak_bytes_in_use": 3}, {"peak_bytes_in_use": 7}, None]
    devices = [types.SimpleNamespace(memory_stats=lambda s=s: s) for s in stats]
    monkeypatch.setattr(jax, "local_devices", lambda: devices)
    assert peak_memory() == 7


@pytest.mark.parametrize("last", [6, 3])  # the run may end before the profile does
def test_a_profile_of_three_steps(tmp_path, last):
    step = jax.jit(lambda x: x @ x / 64)
    state = step(jnp.ones((64, 64)))
    with StepProfile(2, tmp_path) as profile:
        for number in range(1, last + 1):
            profile.before(number, state)
            state = step(state)
    (written,) = (tmp_path / "profile").rglob("*.xplane.pb")
    planes = jax.profiler.ProfileData.from_file(str(written)).planes
    names = [e.name for plane in planes for line in plane.lines for e in line.events]
    assert names.count("ParseArguments") == min(3, last - 1)  # one a call
    with StepProfile(None, tmp_path / "none") as profile:
        profile.before(1, state)
    assert not (tmp_path / "none").exists()

"""Whole runs: plateau, one trace, resuming elsewhere."""

import dataclasses
import shutil

import jax
import numpy as np
import pytest

from tests.train.helpers import COMPARED, SHALLOW, changed, tiny_task
from train import loop
from train.checkpointing.checkpointer import Checkpointer
from train.checkpointing.rundir import read_config
from train.config import ConfigError
from train.reporting.compare import variants
from train.reporting.metrics_writer import read_metrics
from train.state import abstract_state

STUCK = changed(
    SHALLOW,
    optimizer__learning_rate=1e-12,  # nothing can improve
    optimizer__schedule="plateau",
    optimizer__plateau_patience=1,
    evaluation__every=2,
    steps=12,
)


def test_plateau_halves_the_learning_rate_and_compiles_once(tmp_path, monkeypatch):
    compiled = []

    def remember(task):
        compiled.append(compile_train_step(task))
        return compiled[-1]

    compile_train_step = loop.compile_train_step
    monkeypatch.setattr(loop, "compile_train_step", remember)
    result = loop.run(STUCK, tmp_path)

    rows = read_metrics(tmp_path)
    rates = {r["step"]: r["learning_rate"] for r in rows if r["kind"] == "train"}
    # Evaluations after 2 (the best), 4, 6: the second without improvement halves.
    expected = {2: 1.0, 4: 1.0, 6: 1.0, 8: 0.5, 10: 0.5, 12: 0.25}
    assert rates == pytest.approx({k: v * 1e-12 for k, v in expected.items()})
    evaluated = [r["step"] for r in rows if r["kind"] == "evaluation/interpolation"]
    assert evaluated == [2, 4, 6, 8, 10]
    assert [step._cache_size() for step in compiled] == [1]
    assert int(result.state.step) == 12


def parameters(run_dir, config, devices: int, **mesh):
    with Checkpointer(run_dir) as checkpointer:
        step = checkpointer.latest_step()
        assert step is not None
        return checkpointer.restore(
            step, abstract_state(tiny_task(config, devices, **mesh))
        )


def test_a_checkpoint_of_eight_devices_restores_on_one(compared):
    run_dir = compared / "ce"
    one = parameters(run_dir, COMPARED, 1)
    eight = parameters(run_dir, COMPARED, 8, data=2, fsdp=2, tensor=2)
    assert int(one.step) == COMPARED.steps
    assert any(not leaf.is_fully_replicated for leaf in jax.tree.leaves(eight))
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(eight), strict=True)
    for alone, spread in pairs:
        assert len(alone.sharding.device_set) == 1
        assert len(spread.sharding.device_set) == 8
        np.testing.assert_array_equal(np.asarray(alone), np.asarray(spread))


def test_a_finished_run_resumed_elsewhere_changes_nothing(compared, tmp_path):
    run_dir = shutil.copytree(compared / "ce", tmp_path / "ce")
    config = changed(variants(COMPARED)["ce"], resume=True, mesh__data=8)
    config = changed(config, mesh__fsdp=1, mesh__tensor=1)
    config = changed(config, model__attention="xla", model__remat=True)
    result = loop.run(config, run_dir)
    model = read_config(run_dir)["resolved_model"]
    assert (model["attention"], model["remat"]) == ("xla", True)
    before = parameters(compared / "ce", COMPARED, 1)
    pairs = zip(jax.tree.leaves(result.state), jax.tree.leaves(before), strict=True)
    for resumed, old in pairs:
        np.testing.assert_array_equal(np.asarray(resumed), np.asarray(old))
    again, first = read_metrics(run_dir), read_metrics(compared / "ce")
    assert [(r["step"], r["kind"]) for r in again] == [
        (r["step"], r["kind"]) for r in first
    ]
    assert again[-1]["loss"] == pytest.approx(first[-1]["loss"], rel=1e-5)


def test_another_loss_is_not_resumed(compared):
    config = dataclasses.replace(COMPARED, resume=True)
    with pytest.raises(ConfigError, match=r"--loss.was: 0.0 then, 0.3 now"):
        loop.run(config, compared / "ce")

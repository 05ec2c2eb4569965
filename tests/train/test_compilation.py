"""How often a run compiles, and that it can keep what it compiled."""

import logging

import jax
import pytest

from tests.train.helpers import SHALLOW, changed
from train import loop


@pytest.fixture
def compiled(monkeypatch):
    """The jitted training steps of the runs that follow."""
    steps = []

    def remember(task):
        steps.append(compile_train_step(task))
        return steps[-1]

    compile_train_step = loop.compile_train_step
    monkeypatch.setattr(loop, "compile_train_step", remember)
    return steps


def test_a_resumed_run_compiles_the_step_once(compiled, tmp_path, caplog, monkeypatch):
    # As it is before a command line has run in this process: heard once, by the root.
    monkeypatch.setattr(logging.getLogger("train"), "propagate", True)
    monkeypatch.setattr(logging.getLogger("train"), "handlers", [])
    caplog.set_level(logging.INFO, "train")
    config = changed(SHALLOW, steps=3)
    loop.run(config, tmp_path)
    loop.run(changed(config, steps=6, resume=True), tmp_path)
    assert [step._cache_size() for step in compiled] == [1, 1]
    said = [text for text in caplog.messages if text.startswith("compiled the step")]
    assert len(said) == 2 and "for 8 x " in said[0]


@pytest.mark.slow
def test_programs_are_kept_between_runs(tmp_path, monkeypatch):
    from tests.train.runs import train

    # JAX keeps what took a second to compile, which on a busy machine is chance.
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    cache = tmp_path / "cache"
    flags = ["--steps=4", "--optimizer.warmup-steps=2", f"--compilation-cache={cache}"]
    train(tmp_path / "first", *flags, anew=True)
    kept = sorted(path.name for path in cache.iterdir() if path.name.endswith("cache"))
    assert any("train_step" in name for name in kept), kept
    train(tmp_path / "second", *flags, anew=True)
    again = sorted(path.name for path in cache.iterdir() if path.name.endswith("cache"))
    assert again == kept  # nothing was compiled anew
    assert jax.config.jax_compilation_cache_dir is None  # of this process

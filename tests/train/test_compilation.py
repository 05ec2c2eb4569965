"""How often a run compiles, and that it can keep what it compiled."""

import dataclasses
import logging

import jax
import pytest

from ntl_jax.kernels.attention import dispatch as attention_choice
from ntl_jax.kernels.logit_stats import dispatch as column_passes
from tests.train.helpers import SHALLOW, TINY, changed
from tests.train.mesh_cases import MODELS, config_of, task_of
from train import loop
from train.aot.compile import abstract_task, batch_shapes
from train.state import abstract_state
from train.step import compile_train_step


@pytest.fixture
def compiled(monkeypatch):
    """The jitted training steps of the runs that follow."""
    steps = []

    def remember(task):
        steps.append(compile_train_step(task))
        return steps[-1]

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


@pytest.mark.parametrize("shape", [(2, 2, 2), (1, 4, 2)], ids=str)
@pytest.mark.parametrize("family", MODELS)
def test_no_program_for_gpus_holds_an_address(family, shape, monkeypatch):
    # It would be another one at every start, and none be found again. On one device JAX
    # leaves them out itself.
    for module in (column_passes, attention_choice):
        monkeypatch.setattr(module, "traced_platform", lambda: "gpu")
    wide = {"t5": {"d_kv": 16}, "gpt2": {"n_embd": 128}}
    fields = wide.get(family, {"hidden_size": 128}) | {"vocab_size": 4096}
    model = dataclasses.replace(MODELS[family], **fields, attention="triton")
    task = abstract_task(
        changed(TINY, model=model), task_of(config_of(family), shape).mesh
    )
    traced = compile_train_step(task).trace(abstract_state(task), batch_shapes(task))
    text = str(traced.jaxpr)
    assert "ntl_read_columns" in text and "ntl_attention" in text
    assert "custom_partitioning" not in text


@pytest.mark.slow
def test_programs_are_kept_between_runs(tmp_path, monkeypatch):
    from tests.train.runs import train

    # JAX keeps what took a second to compile, which on a busy machine is chance.
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    cache = tmp_path / "cache"
    flags = ["--steps=4", "--optimizer.warmup-steps=2", f"--compilation-cache={cache}"]
    train(tmp_path / "first", *flags, recompile=True)
    kept = sorted(path.name for path in cache.iterdir() if path.name.endswith("cache"))
    assert any("train_step" in name for name in kept), kept
    train(tmp_path / "second", *flags, recompile=True)
    again = sorted(path.name for path in cache.iterdir() if path.name.endswith("cache"))
    assert again == kept  # nothing was compiled anew
    assert jax.config.jax_compilation_cache_dir is None  # of this process

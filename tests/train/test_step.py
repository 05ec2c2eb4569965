"""The training step: dropout, sharded optimizer states, learning rate, one trace."""

import dataclasses
import functools
import types
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from ntl_jax.sharding.mesh import batch_sharding
from tests.train.helpers import SHALLOW, changed, tiny_batch, tiny_task
from train import step as step_module
from train.optimizer import learning_rate_schedule
from train.state import TrainState, init_state, state_shardings
from train.step import compile_train_step, train_step

WARM = changed(
    SHALLOW,
    optimizer__learning_rate=1e-2,
    optimizer__schedule="cosine",
    optimizer__warmup_steps=2,
    steps=4,
)


@dataclasses.dataclass
class Trained:
    """Three steps of a compiled step, and what they left."""

    task: Any
    traces: int
    start: list[jax.Array]
    state: TrainState
    metrics: list[dict]


@functools.cache
def trained(optimizer: str, devices: int = 8) -> Trained:
    mesh = {"data": 2, "fsdp": 2, "tensor": 2} if devices == 8 else {}
    config = changed(WARM, optimizer__name=optimizer)
    if optimizer == "adafactor":  # which factors moments from 128 x 128 on
        config = changed(config, model__d_model=128, model__d_ff=128)
    task = tiny_task(config, devices, **mesh)
    step = compile_train_step(task)
    state = init_state(task)
    start, metrics = jax.tree.leaves(state), []
    for i in range(3):
        batch = jax.device_put(tiny_batch(task, i), batch_sharding(task.mesh))
        state, row = step(state, batch)
        metrics.append(jax.device_get(row))
    return Trained(task, step._cache_size(), start, state, metrics)


OPTIMIZERS = ["adamw", "adafactor"]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_state_keeps_its_shardings_through_steps(optimizer):
    done = trained(optimizer)
    expected = jax.tree.leaves(state_shardings(done.task))
    leaves = jax.tree.leaves(done.state)
    assert len(leaves) == len(expected)
    for leaf, sharding in zip(leaves, expected, strict=True):
        assert leaf.sharding.is_equivalent_to(sharding, leaf.ndim)
    assert any(not leaf.sharding.is_fully_replicated for leaf in leaves)


@pytest.mark.parametrize(
    "optimizer",  # what Adafactor keeps otherwise, the test of its shardings sees
    ["adamw", pytest.param("adafactor", marks=pytest.mark.slow)],
)
def test_steps_on_eight_devices_equal_steps_on_one(optimizer):
    ours, theirs = trained(optimizer), trained(optimizer, devices=1)
    for row, other in zip(ours.metrics, theirs.metrics, strict=True):
        chex.assert_trees_all_close(row, other, rtol=1e-4)
    assert int(ours.state.step) == 3


def test_adafactors_moments_are_factored():
    shapes = [leaf.shape for leaf in jax.tree.leaves(trained("adafactor").state)]
    assert shapes.count((512, 128)) == 1  # the embedding, and no moments of its size


def test_adafactors_moments_are_laid_out_as_what_is_left_of_their_parameters():
    state = trained("adafactor").state
    moments = [
        leaf
        for leaf in jax.tree.leaves(state.opt_state)
        if leaf.ndim == 1 and leaf.size == 512 and not leaf.sharding.is_fully_replicated
    ]
    assert [leaf.sharding.spec for leaf in moments] == [PartitionSpec("tensor")]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_steps_are_traced_once(optimizer):
    assert trained(optimizer).traces == 1


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_old_state_is_donated(optimizer):
    # Adafactor keeps leaves of one element that are never read.
    leaves = [leaf for leaf in trained(optimizer).start if leaf.size > 1]
    assert len(leaves) > 40
    assert all(leaf.is_deleted() for leaf in leaves)


def test_the_logged_learning_rate_is_the_schedules():
    schedule = learning_rate_schedule(WARM.optimizer, WARM.steps)
    logged = [row["learning_rate"] for row in trained("adamw").metrics]
    np.testing.assert_allclose(logged, [schedule(i) for i in range(3)], rtol=1e-6)
    assert len(set(map(float, logged[:2]))) == 2


@pytest.fixture(scope="module")
def undonated():
    """A task on one device, its state, a batch, and a step that leaves them alone."""
    task = tiny_task(SHALLOW)
    step = jax.jit(functools.partial(train_step, task=task))
    return task, init_state(task), tiny_batch(task), step


def test_dropout_is_a_function_of_seed_and_step(undonated):
    _, state, batch, step = undonated
    first, again = step(state, batch), step(state, batch)
    chex.assert_trees_all_equal(first, again)
    later = dataclasses.replace(state, step=state.step + 1)
    assert step(later, batch)[1]["loss"] != first[1]["loss"]


def test_without_dropout_the_step_number_does_not_matter():
    task = tiny_task(changed(SHALLOW, model__dropout_rate=0.0))
    state, batch = init_state(task), tiny_batch(task)
    step = jax.jit(functools.partial(train_step, task=task))
    later = dataclasses.replace(state, step=state.step + 1)
    assert step(later, batch)[1]["loss"] == step(state, batch)[1]["loss"]


def test_the_plateau_scales_learning_rate_and_update(undonated):
    _, state, batch, step = undonated
    half = dataclasses.replace(
        state, plateau=state.plateau._replace(scale=jnp.float32(0.5))
    )
    (full_state, full), (half_state, halved) = step(state, batch), step(half, batch)
    assert halved["learning_rate"] == full["learning_rate"] / 2
    kernel = ("decoder", "layers", "mlp", "wi", "kernel")
    before, whole, part = (
        functools.reduce(lambda tree, key: tree[key], kernel, s.params)
        for s in (state, full_state, half_state)
    )
    np.testing.assert_allclose(part - before, (whole - before) / 2, atol=1e-7)
    assert np.abs(whole - before).max() > 1e-4


def test_the_first_gradient_that_is_not_finite_is_found(undonated, monkeypatch):
    task, state, batch, step = undonated
    assert step(state, batch)[1]["bad_leaf"] == -1
    loss, terms, grads = jax.jit(
        functools.partial(step_module.loss_and_grads, task=task)
    )(state.params, batch)
    leaves, tree = jax.tree.flatten(grads)
    for index, value in ((3, jnp.nan), (5, jnp.inf)):
        leaves[index] = leaves[index].at[(0,) * leaves[index].ndim].set(value)
    bad = jax.tree.unflatten(tree, leaves)
    monkeypatch.setattr(step_module, "loss_and_grads", lambda *_: (loss, terms, bad))
    step = jax.jit(functools.partial(train_step, task=task))
    assert step(state, batch)[1]["bad_leaf"] == 3


def test_programs_of_gpus_alone_have_compiler_options():
    task = tiny_task(changed(SHALLOW, deterministic=True), 1)
    assert step_module.compiler_options(task) is None
    gpu = types.SimpleNamespace(platform="gpu")
    one = types.SimpleNamespace(devices=np.array([[[gpu]]]))
    on_one = dataclasses.replace(task, mesh=one)
    assert step_module.compiler_options(on_one) == step_module.DETERMINISTIC
    assert (
        step_module.compiler_options(dataclasses.replace(on_one, config=SHALLOW))
        is None
    )
    two = types.SimpleNamespace(devices=np.array([[[gpu, gpu]]]))
    on_gpu = dataclasses.replace(task, mesh=two)
    options = step_module.compiler_options(on_gpu)
    # XLA refuses options that it does not know, on every platform.
    assert jax.jit(lambda x: x + 1, compiler_options=options)(1.0) == 2
    assert step_module.DETERMINISTIC.items() <= options.items()
    off = dataclasses.replace(on_gpu, config=SHALLOW)
    copies = {"xla_disable_hlo_passes": step_module.COPIES_GRADIENTS}
    assert step_module.compiler_options(off) == copies


def test_passes_that_a_user_leaves_out_are_left_out_too(monkeypatch):
    @jax.jit
    def program(x):
        return jnp.tanh(x) * jnp.cos(x) + x

    def fusions() -> int:
        """Of the program compiled with what a step for two GPUs is."""
        options = {"xla_disable_hlo_passes": step_module._passes_left_out()}
        text = program.lower(jnp.ones(8)).compile(options).as_text()
        return text.count(" fusion(")

    monkeypatch.delenv("XLA_FLAGS", raising=False)
    whole = fusions()
    flags = "--xla_gpu_autotune_level=0 --xla_disable_hlo_passes=fusion,cse"
    monkeypatch.setenv("XLA_FLAGS", flags)
    assert (
        step_module._passes_left_out() == f"fusion,cse,{step_module.COPIES_GRADIENTS}"
    )
    assert fusions() != whole

"""Training on every mesh, dropout on: the gradients and losses of one device."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from ntl_jax.models.remat import Remat
from ntl_jax.sharding.mesh import batch_sharding
from tests.train.mesh_cases import (
    MODELS,
    config_of,
    placed,
    random_batch,
    relative_errors,
    start_of,
    task_of,
)
from train.loss import loss_and_grads
from train.state import init_state
from train.step import compile_train_step

TOLERANCE = 1e-5  # of a leaf's norm
KEY = jax.random.key(5)
MESHES = [(1, 1, 1), (8, 1, 1), (1, 8, 1), (2, 2, 2), (1, 2, 4)]
SHAPES = [(8, 8), (16, 12), (8, 40)]  # rows, length
STEPS = 20


@functools.cache
def step_of(family: str, mesh, remat: Remat):
    task = task_of(config_of(family, model__remat=remat), mesh)
    return task, jax.jit(functools.partial(loss_and_grads, task=task))


def gradient(family: str, mesh, shape, remat: Remat = False):
    task, step = step_of(family, mesh, remat)
    batch = random_batch(task.model, *shape)
    return step(*placed(task, batch), dropout_key=KEY)


def assert_equal_gradients(family: str, mesh, shape, remat: Remat = False):
    want = gradient(family, (1, 1, 1), shape)
    got = gradient(family, mesh, shape, remat)
    np.testing.assert_allclose(got[0], want[0], rtol=TOLERANCE)
    errors = relative_errors(got[2], want[2])
    assert max(errors.values()) < TOLERANCE, errors
    # A hundredth of a per cent in any one leaf would be seen.
    for leaf, error in relative_errors(
        jax.tree.map(lambda x: 1.0001 * x, got[2]), want[2]
    ).items():
        assert error > TOLERANCE, leaf


@pytest.mark.parametrize("family", ["gpt2", "experts"])
def test_every_gradient_leaf_equals_one_devices(family):
    assert_equal_gradients(family, (2, 2, 2), (8, 8))


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES[1:], ids=str)
@pytest.mark.parametrize("family", MODELS)
def test_every_gradient_leaf_equals_one_devices_at_all_shapes(family, mesh):
    for shape in SHAPES:
        assert_equal_gradients(family, mesh, shape)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [(1, 8, 1), (2, 2, 2), (1, 2, 4)], ids=str)
@pytest.mark.parametrize("family", MODELS)
def test_gradients_with_kept_kernels_equal_one_devices(family, mesh):
    for shape in SHAPES:
        assert_equal_gradients(family, mesh, shape, remat="gathered")


@functools.cache
def losses(family: str, mesh, **fields) -> np.ndarray:
    """The losses of some steps at a learning rate of 1e-3."""
    config = config_of(family, **fields)
    if family == "experts":  # all are visited: rounding cannot change a choice
        model = dataclasses.replace(config.model, num_experts_per_tok=4)
        config = dataclasses.replace(config, model=model)
    task = task_of(config, mesh)
    state, step = init_state(task, start_of(config)), compile_train_step(task)
    rows = []
    for i in range(STEPS):
        batch = random_batch(task.model, 32, 8, seed=i % 2)
        state, row = step(state, jax.device_put(batch, batch_sharding(task.mesh)))
        rows.append(float(row["loss"]))
    return np.array(rows)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES[1:], ids=str)
@pytest.mark.parametrize("family", MODELS)
def test_twenty_steps_are_those_of_one_device(family, mesh):
    want, got = losses(family, (1, 1, 1)), losses(family, mesh)
    assert want[0] - want[-2] > 0.01  # of the same batch: more than is allowed
    np.testing.assert_allclose(got, want, rtol=1e-3)
    np.testing.assert_allclose(got[0], want[0], rtol=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [(1, 1, 1), (2, 2, 2)], ids=str)
@pytest.mark.parametrize("family", ["t5", "gpt2", "granite"])
def test_twenty_steps_in_four_parts_are_those_of_one_device(family, mesh):
    want, got = losses(family, (1, 1, 1)), losses(family, mesh, accumulate=4)
    np.testing.assert_allclose(got, want, rtol=1e-3)

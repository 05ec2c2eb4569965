"""Meshes and partition rules: every gradient leaf equals that of one device."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ntl_jax.models import T5Config, init_params
from ntl_jax.sharding.constrain import (
    column_parts,
    constrain,
    shard_over_all,
)
from ntl_jax.sharding.mesh import (
    batch_sharding,
    fsdp_size,
    make_mesh,
    mesh_of,
    on_mesh,
)
from ntl_jax.sharding.rules import param_shardings
from ntl_jax.sharding.spmd import row_by_row
from tests.train.helpers import tiny_batch, tiny_task
from train.state import init_state
from train.step import loss_and_grads

MESHES = [
    {"data": 8, "fsdp": 1, "tensor": 1},
    {"data": 1, "fsdp": 8, "tensor": 1},
    {"data": 1, "fsdp": 1, "tensor": 8},
    {"data": 2, "fsdp": 2, "tensor": 2},
]


def gradients(devices: int, **mesh: int):
    task = tiny_task(devices=devices, **mesh)
    params = init_state(task).params
    batch = jax.device_put(tiny_batch(task), batch_sharding(task.mesh))
    step = jax.jit(functools.partial(loss_and_grads, task=task))
    return jax.device_get(step(params, batch, dropout_key=jax.random.key(1)))


@pytest.fixture(scope="module")
def one_device():
    return gradients(1)


@pytest.mark.parametrize("mesh", MESHES, ids=lambda m: "x".join(map(str, m.values())))
def test_every_gradient_leaf_equals_one_devices(mesh, one_device):
    loss, terms, grads = gradients(8, **mesh)
    np.testing.assert_allclose(loss, one_device[0], rtol=1e-5)
    chex.assert_trees_all_close(terms, one_device[1], rtol=1e-5)
    chex.assert_trees_all_close(grads, one_device[2], rtol=1e-4, atol=1e-6)


def test_parameters_are_born_sharded():
    task = tiny_task(devices=8, data=2, fsdp=2, tensor=2)
    state = init_state(task)
    kernel = state.params["encoder"]["layers"]["mlp"]["wi"]["kernel"]
    assert kernel.sharding.spec == PartitionSpec(None, "fsdp", "tensor")
    assert kernel.addressable_shards[0].data.shape == (2, 8, 16)
    moments = state.opt_state[1][0].mu["encoder"]["layers"]["mlp"]["wi"]["kernel"]
    assert moments.sharding == kernel.sharding
    kernel = state.params["encoder"]["layers"]["mlp"]["wo"]["kernel"]
    assert kernel.sharding.spec == PartitionSpec(None, ("tensor", "fsdp"))
    assert kernel.addressable_shards[0].data.shape == (2, 8, 16)


@pytest.mark.parametrize(
    "config",
    [T5Config.small(), T5Config.t5_3b(), T5Config.v1_1_small()],
    ids=["small", "3b", "v1_1_small"],
)
def test_rules_match_every_leaf_once(config):
    shapes = jax.eval_shape(functools.partial(init_params, config), jax.random.key(0))
    mesh = make_mesh(2, 2, 2)
    shardings = param_shardings(config, shapes, mesh)
    used = {s.spec for s in jax.tree.leaves(shardings)}
    assert PartitionSpec("tensor", "fsdp") in used


def test_unknown_and_indivisible_leaves_are_all_named():
    params = {
        "encoder": {"new": jnp.zeros(3)},
        "shared": {"embedding": jnp.zeros((3, 4))},
    }
    with pytest.raises(
        ValueError, match=r"encoder/new: 0 rules(.|\n)*3 does not divide"
    ):
        param_shardings(T5Config(), params, make_mesh(2, 2, 2))


def test_mesh_must_fill_the_devices():
    with pytest.raises(ValueError, match=r"3 x 1 x 1 .* needs 3 devices.*there are 8"):
        make_mesh(3)


CUBE = (2, 2, 2)


def specs_of(pin, *shapes, mesh=CUBE) -> list[PartitionSpec]:
    """How arrays are laid out that go through `pin` in one program."""
    mesh = make_mesh(*mesh)

    @jax.jit
    def pinned(arrays):
        with on_mesh(mesh):
            return [pin(x) for x in arrays]

    everywhere = NamedSharding(mesh, PartitionSpec())
    arrays = [jax.device_put(jnp.zeros(shape), everywhere) for shape in shapes]
    return [x.sharding.spec for x in pinned(arrays)]


def test_what_pins_leave_where_sizes_do_not_divide():
    rows = PartitionSpec(("data", "fsdp"))

    def pinned(*roles):
        return lambda x: constrain(x, *roles)

    shapes = (4, 3, 2), (3, 3, 2), (4, 3, 5)
    whole, no_rows, no_heads = specs_of(pinned("batch", None, "heads"), *shapes)
    assert whole == PartitionSpec(("data", "fsdp"), None, "tensor")
    assert no_rows == PartitionSpec(None, None, "tensor") and no_heads == rows
    columns = specs_of(pinned("batch", ..., "vocab"), *shapes)
    assert columns == [whole, PartitionSpec(), PartitionSpec()]
    assert specs_of(pinned("batch"), *shapes) == [rows, PartitionSpec(), rows]
    states, odd = specs_of(pinned("batch", None, "hidden"), (3, 1, 4), (4, 1, 5))
    assert states == PartitionSpec(None, None, "fsdp") and odd == PartitionSpec()
    spread, few = specs_of(shard_over_all, (8, 5), (4, 5))
    assert spread == PartitionSpec(("data", "fsdp", "tensor")) and few == rows


def test_rows_and_their_parts_are_gone_through_apart():
    mesh = make_mesh(*CUBE)
    seen = []

    def largest(x):
        seen.append(x.shape)
        return jax.lax.top_k(x, 1)[0]

    @jax.jit
    def run(x):
        with on_mesh(mesh):
            parts = column_parts(x), fsdp_size()
            cut = x.reshape(4, 2, 3)
            return parts, row_by_row(largest, x), row_by_row(largest, cut, parts=1)

    x = jnp.arange(24.0).reshape(4, 6)
    there = jax.device_put(x, NamedSharding(mesh, PartitionSpec()))
    parts, whole, by_part = run(there)
    assert parts == (2, 2) and seen == [(1, 6), (1, 1, 3)]
    np.testing.assert_array_equal(whole[:, 0], x.max(axis=1))
    np.testing.assert_array_equal(by_part[..., 0], x.reshape(4, 2, 3).max(axis=2))
    row_by_row(largest, x)  # no mesh is known
    assert seen[-1] == (4, 6) and column_parts(x) == fsdp_size() == 1


def test_parameters_tell_their_mesh():
    mesh = make_mesh(*CUBE)
    there = jax.device_put(jnp.zeros(8), batch_sharding(mesh))
    assert mesh_of({"a": there}) == mesh
    assert mesh_of({"a": np.zeros(8)}) is mesh_of({"a": jnp.zeros(8)}) is None
    other = jax.make_mesh((8,), ("rows",), axis_types=(AxisType.Auto,))
    spread = jax.device_put(jnp.zeros(8), NamedSharding(other, PartitionSpec("rows")))
    assert mesh_of([spread]) is None

    @jax.jit
    def traced(x):
        assert mesh_of([x]) is None
        return x

    traced(there)

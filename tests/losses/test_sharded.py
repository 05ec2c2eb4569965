"""The objective on eight devices: sharded by position, and by vocabulary."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from ntl_jax import NumberVocab, Objective, stats_from_logits

COLUMNS = 32
VOCAB = NumberVocab.from_mapping(
    {str(d): 3 * d for d in range(10)} | {"a": 1}, vocab_size=30
)
OBJECTIVE = Objective(mse=0.1, reweigh=True, label_smoothing=0.1)


def draw_batch():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(8, 5, COLUMNS)).astype(np.float32)
    labels = rng.integers(0, 30, size=(8, 5)).astype(np.int32)
    labels[0] = -100  # a device with nothing to learn
    labels[1, 1:] = 1  # and one with no number but at most the first
    return logits, labels


def loss(logits, labels):
    stats = stats_from_logits(logits, labels, VOCAB)
    return OBJECTIVE.total(OBJECTIVE(stats, labels, VOCAB))


@pytest.fixture(scope="module")
def expected():
    logits, labels = draw_batch()
    return jax.jit(jax.value_and_grad(loss))(jnp.asarray(logits), jnp.asarray(labels))


@pytest.mark.parametrize("shape", [(8, 1), (2, 4), (1, 8)], ids=str)
def test_the_partitioner_changes_nothing(expected, shape):
    mesh = jax.make_mesh(
        shape, ("data", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 2
    )
    logits, labels = draw_batch()
    spec = P("data", None, "tensor")
    z = jax.device_put(logits, NamedSharding(mesh, spec))
    y = jax.device_put(labels, NamedSharding(mesh, P("data", None)))
    value, gradient = jax.jit(
        jax.value_and_grad(loss), out_shardings=(None, NamedSharding(mesh, spec))
    )(z, y)
    chex.assert_trees_all_close((value, gradient), expected, rtol=1e-5, atol=1e-6)


def test_sums_and_counts_over_devices_in_shard_map(expected):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    def step(logits, labels):
        counts = jax.lax.psum(OBJECTIVE.counts(labels, VOCAB), "data")

        def part(z):
            stats = stats_from_logits(z, labels, VOCAB)
            return OBJECTIVE.total(OBJECTIVE(stats, labels, VOCAB), counts)

        value, gradient = jax.value_and_grad(part)(logits)
        return jax.lax.psum(value, "data"), gradient

    logits, labels = draw_batch()
    run = jax.jit(
        jax.shard_map(
            step, mesh=mesh, in_specs=(P("data"), P("data")), out_specs=(P(), P("data"))
        )
    )
    actual = run(jnp.asarray(logits), jnp.asarray(labels))
    chex.assert_trees_all_close(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("check_vma, divided_by", [(True, 1), (False, 4)])
def test_a_gradient_from_outside_a_shard_map(expected, check_vma, divided_by):
    """Whole where JAX knows what varies, else shared out over the devices."""
    mesh = jax.make_mesh((4,), ("tensor",), axis_types=(jax.sharding.AxisType.Auto,))
    logits, labels = map(jnp.asarray, draw_batch())

    def total(z):
        stats = stats_from_logits(z, labels, VOCAB, axis_name="tensor")
        return OBJECTIVE.total(OBJECTIVE(stats, labels, VOCAB))

    columns = P(None, None, "tensor")
    mapped = jax.shard_map(
        total, mesh=mesh, in_specs=columns, out_specs=P(), check_vma=check_vma
    )
    value, gradient = jax.jit(jax.value_and_grad(mapped))(logits)
    actual = value, gradient * divided_by
    chex.assert_trees_all_close(actual, expected, rtol=1e-5, atol=1e-6)

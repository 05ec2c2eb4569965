"""`logit_stats` split over eight simulated devices equals one device's."""

import math
import re
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from ntl_jax.kernels.logit_stats import reference as columns
from ntl_jax.kernels.logit_stats.partition import (
    partitioned_logit_stats,
    partitioned_logit_stats_vjp,
)
from ntl_jax.sharding.mesh import BATCH_AXES, TENSOR_AXIS, make_mesh, on_mesh
from tests.kernels.test_logit_stats import both_passes, draw_batch

COLUMNS, REAL, NUMBERS = 32, 30, np.array([1, 5, 6, 29], np.int32)
_OPTIONS = {"vocab_size": REAL, "token_ids": NUMBERS}
READ = partial(columns.logit_stats, vocab_size=REAL)
WRITE = partial(columns.logit_stats_vjp, vocab_size=REAL)


def split_passes(logits, labels, cotangents):
    sums = partitioned_logit_stats(
        READ, logits, labels, jnp.asarray(NUMBERS), vocab_size=REAL
    )
    log_sum = jnp.log(sums.exp_sum)
    table = jnp.asarray(columns.column_to_number_index(COLUMNS, NUMBERS))
    gradient = partitioned_logit_stats_vjp(
        WRITE, logits, labels, sums.top, log_sum, cotangents, table
    )
    return sums._replace(exp_sum=log_sum), gradient


def test_no_operand_without_elements_is_split():
    logits, labels, _ = small_batch()
    none = np.zeros(0, np.int32)

    def read(logits, labels):
        return tuple(
            partitioned_logit_stats(READ, logits, labels, none, vocab_size=REAL)
        )

    mesh = make_mesh(2, 2, 2)
    placed = jax.device_put((logits, labels), NamedSharding(mesh, P()))
    with on_mesh(mesh):
        text = jax.jit(read).lower(*placed).as_text()
        sums = jax.jit(read)(*placed)
    (operands,) = re.findall(r"sdy.manual_computation\((.*?)\)", text)
    assert operands.count("%") == 2  # XLA of jax 0.11.2 crashes on the empty third
    assert sums[-1].shape == (*labels.shape, 0)
    want = columns.logit_stats(logits, labels, none, 0, vocab_size=REAL)
    chex.assert_trees_all_close(sums, tuple(want), rtol=1e-5)


def small_batch():
    logits, labels, cotangents = draw_batch(40, COLUMNS, vocab_size=REAL, numbers=4)
    labels = labels.at[:5].set(0)
    shape = (8, 5)
    return jax.tree.map(
        lambda x: x.reshape(*shape, *x.shape[1:]), (logits, labels, cotangents)
    )


@pytest.mark.parametrize(
    "spec",
    [P("data"), P("data", None, "tensor"), P(None, None, ("data", "tensor")), P()],
    ids=str,
)
@pytest.mark.parametrize("shape", [(2, 4), (8, 1)], ids=str)
def test_a_split_program_equals_the_whole_and_gathers_no_logits(spec, shape):
    batch = small_batch()
    expected = both_passes(columns, *batch, **_OPTIONS)
    axes = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.make_mesh(shape, ("data", "tensor"), axis_types=axes)
    by_logit = NamedSharding(mesh, spec)
    by_token = NamedSharding(mesh, P(*spec[:2]))
    placed = (
        jax.device_put(batch[0], by_logit),
        jax.device_put(batch[1], by_token),
        jax.device_put(batch[2], by_token),
    )
    compiled = jax.jit(split_passes).lower(*placed).compile()
    sums, gradient = compiled(*placed)
    chex.assert_trees_all_close((sums, gradient), expected, rtol=1e-5, atol=1e-5)
    assert gradient.sharding.is_equivalent_to(by_logit, 3)
    assert "all-gather" not in compiled.as_text()


@pytest.mark.parametrize("shape", [(2, 2, 2), (1, 1, 8), (4, 2, 1)], ids=str)
def test_on_a_known_mesh_each_device_passes_over_its_own(shape):
    batch = small_batch()
    expected = both_passes(columns, *batch, **_OPTIONS)
    mesh = make_mesh(*shape)
    rows = P(BATCH_AXES)
    by_logit = NamedSharding(mesh, P(BATCH_AXES, None, TENSOR_AXIS))
    places = (by_logit, NamedSharding(mesh, rows), NamedSharding(mesh, rows))

    def passes(*batch):
        with on_mesh(mesh):
            return split_passes(*batch)

    placed = jax.device_put(batch, places)
    traced = jax.jit(passes).trace(*placed)
    assert "custom_partitioning" not in str(traced.jaxpr)
    compiled = traced.lower().compile()
    sums, gradient = compiled(*placed)
    chex.assert_trees_all_close((sums, gradient), expected, rtol=1e-5, atol=1e-5)
    assert gradient.sharding.is_equivalent_to(by_logit, 3)
    assert "all-gather" not in compiled.as_text()


@pytest.mark.parametrize("rows", [(), (3,), (3, 8)], ids=str)
def test_rows_that_a_known_mesh_does_not_divide(rows):
    logits, labels, cotangents = draw_batch(24, COLUMNS, vocab_size=REAL, numbers=4)
    batch = jax.tree.map(
        lambda x: x[: math.prod(rows)].reshape(*rows, *x.shape[1:]),
        (logits, labels, cotangents),
    )
    expected = both_passes(columns, *batch, **_OPTIONS)

    def passes(*batch):
        with on_mesh(make_mesh(2, 2, 2)):
            return split_passes(*batch)

    actual = jax.jit(passes)(*batch)
    chex.assert_trees_all_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_a_split_program_under_vmap():
    batch = small_batch()
    stacked = jax.tree.map(lambda x: jnp.stack([x, x[::-1]]), batch)
    expected = both_passes(columns, *stacked, **_OPTIONS)
    actual = jax.jit(jax.vmap(split_passes))(*stacked)
    chex.assert_trees_all_close(actual, expected, rtol=1e-6, atol=1e-6)
    # With one operand that is not batched.
    labels = batch[1]
    ids = jnp.asarray(NUMBERS)
    one = jax.vmap(
        lambda z: partitioned_logit_stats(READ, z, labels, ids, vocab_size=REAL)
    )(stacked[0])
    both = READ(stacked[0], jnp.stack([labels, labels]), NUMBERS, 0)
    chex.assert_trees_all_close(one, both, rtol=1e-6, atol=1e-6)


def test_a_shard_without_real_columns_counts_nothing():
    mesh = jax.make_mesh((8,), ("tensor",), axis_types=(jax.sharding.AxisType.Auto,))
    logits, labels, cotangents = draw_batch(4, 64, vocab_size=40, numbers=2)
    ids = np.array([0, 39], np.int32)
    expected = both_passes(
        columns, logits, labels, cotangents, vocab_size=40, token_ids=ids
    )

    def local(z, table):
        first = jax.lax.axis_index("tensor") * z.shape[-1]
        sums = columns.logit_stats(z, labels, ids, first, vocab_size=40)
        sums = columns.combine_shards(
            sums, "tensor", columns.real_columns(z.shape[-1], first, 40)
        )
        log_sum = jnp.log(sums.exp_sum)
        gradient = columns.logit_stats_vjp(
            z, labels, sums.top, log_sum, cotangents, table, first, vocab_size=40
        )
        return sums._replace(exp_sum=log_sum), gradient

    by_column = P(None, "tensor")
    run = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(by_column, P("tensor")),
        out_specs=(P(), by_column),
    )
    actual = jax.jit(run)(logits, jnp.asarray(columns.column_to_number_index(64, ids)))
    chex.assert_trees_all_close(actual, expected, rtol=1e-5, atol=1e-5)

"""Losses over meshes whose axes are Explicit, as `jax.make_mesh` makes them."""

import contextlib
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from ntl_jax import Objective, distances
from ntl_jax.losses import (
    cross_entropy,
    digit_weights,
    ntl_huber_from_stats,
    ntl_was,
    number_level_loss,
    predict_numbers,
    stats_from_hidden,
    stats_from_logits,
)
from ntl_jax.losses.baselines import digit_entropy, ntil
from tests.losses.test_bad_input import LABELS, VOCAB

LOGITS = jax.random.normal(jax.random.key(0), (2, 3, 16))
OBJECTIVE = Objective(number_level=0.1, ntil=0.1, digit_entropy=0.2)

ROWS, BOTH = P("rows"), P("rows", None, "columns")


def by_objective(logits, labels):
    stats = stats_from_logits(logits, labels, VOCAB)
    return OBJECTIVE.total(OBJECTIVE(stats, labels, VOCAB))


def by_name(logits, labels):
    stats = stats_from_logits(labels=labels, logits=logits, vocab=VOCAB)
    value, weight = ntl_huber_from_stats(vocab=VOCAB, labels=labels, stats=stats)
    return value.sum() / weight.sum()


LOSSES = {
    "cross_entropy": partial(cross_entropy, vocab_size=14, reduction="mean"),
    "ntl_was": partial(ntl_was, vocab=VOCAB, reduction="mean"),
    "ntl_was by place": lambda logits, labels: ntl_was(
        logits,
        labels,
        VOCAB,
        distance=jnp.asarray(distances.circular(VOCAB, 10)),
        weights=digit_weights(labels, VOCAB),
        reduction="sum",
    ),
    "number_level_loss": partial(number_level_loss, vocab=VOCAB, reduction="mean"),
    "digit_entropy": partial(digit_entropy, vocab=VOCAB, reduction="mean"),
    "ntil": partial(ntil, vocab=VOCAB, reduction="mean"),
    "predict_numbers": lambda logits, _: predict_numbers(logits, VOCAB)[0].sum(),
    "objective": by_objective,
    "arguments by name": by_name,
}


def mesh_of_four():
    devices = np.array(jax.devices()[:4]).reshape(2, 2)
    axes = (AxisType.Explicit,) * 2
    return jax.sharding.Mesh(devices, ("rows", "columns"), axis_types=axes)


def put(mesh, array, spec):
    return jax.device_put(array, NamedSharding(mesh, spec))


@pytest.mark.parametrize("spec", [ROWS, BOTH], ids=str)
@pytest.mark.parametrize("name", LOSSES)
def test_values_and_gradients_are_those_of_one_device(name, spec):
    run = jax.jit(jax.value_and_grad(LOSSES[name]))
    expected = run(LOGITS, LABELS)
    mesh = mesh_of_four()
    with jax.set_mesh(mesh):
        logits, labels = put(mesh, LOGITS, spec), put(mesh, LABELS, P(spec[0]))
        value, gradient = run(logits, labels)
    assert gradient.sharding.is_equivalent_to(logits.sharding, 3)
    chex.assert_trees_all_close(
        jax.device_get((value, gradient)), jax.device_get(expected), atol=1e-5
    )


@pytest.mark.parametrize("run", [jax.jit, lambda function: function])
@pytest.mark.parametrize("known", [True, False], ids=["set_mesh", "no mesh set"])
def test_what_is_left_of_the_positions_stays_split(run, known):
    mesh = mesh_of_four()
    with jax.set_mesh(mesh) if known else contextlib.nullcontext():
        logits, labels = put(mesh, LOGITS, BOTH), put(mesh, LABELS, P("rows"))
        stats = run(partial(stats_from_logits, vocab=VOCAB))(logits, labels)
        each = run(partial(ntl_was, vocab=VOCAB))(logits, labels)
        row = run(partial(ntil, vocab=VOCAB))(logits, labels)
    assert jax.typeof(stats.lse).sharding.spec == P("rows", None)
    assert jax.typeof(stats.number_logits).sharding.spec == P("rows", None, None)
    assert jax.typeof(each).sharding.spec == P("rows", None)
    assert jax.typeof(row).sharding.spec[0] == "rows"
    chex.assert_trees_all_close(
        jax.device_get((stats, each, row)),
        jax.device_get(
            (
                stats_from_logits(LOGITS, LABELS, VOCAB),
                ntl_was(LOGITS, LABELS, VOCAB),
                ntil(LOGITS, LABELS, VOCAB),
            )
        ),
        atol=1e-5,
    )


def test_from_hidden_states_to_the_gradient_of_a_split_kernel():
    def loss(hidden, kernel, labels):
        stats = stats_from_hidden(hidden, kernel, labels, VOCAB)
        return OBJECTIVE.total(OBJECTIVE(stats, labels, VOCAB))

    run = jax.jit(jax.grad(loss, (0, 1)))
    hidden = jax.random.normal(jax.random.key(1), (2, 3, 8))
    kernel = jax.random.normal(jax.random.key(2), (8, 16))
    expected = run(hidden, kernel, LABELS)
    mesh = mesh_of_four()
    with jax.set_mesh(mesh):
        given = put(mesh, hidden, ROWS), put(mesh, kernel, P(None, "columns"))
        gradients = run(*given, put(mesh, LABELS, ROWS))
    assert gradients[1].sharding.spec == P(None, "columns")
    chex.assert_trees_all_close(
        jax.device_get(gradients), jax.device_get(expected), atol=1e-5
    )

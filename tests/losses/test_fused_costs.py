"""What the fused head costs: matrix products, the largest array, memory."""

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
import pytest

from ntl_jax import Objective, objective_from_hidden, stats_from_hidden
from tests.losses.fused_cases import VOCAB, dense_stats, largest_array, wide_matmuls

NUMBERS = dataclasses.replace(VOCAB, vocab_size=1000)
COLUMNS, TOKENS, TILE = 1024, 512, 64
OBJECTIVE = Objective(reweigh=True)
LABELS = jnp.ones((2, TOKENS // 2), jnp.int32)
ARGS = (jnp.ones((2, TOKENS // 2, 8)), jnp.ones((8, COLUMNS)))


def by_stats(hidden, kernel, backward):
    options = {"tile_tokens": TILE, "backward": backward}
    stats = stats_from_hidden(hidden, kernel, LABELS, NUMBERS, **options)
    return OBJECTIVE.total(OBJECTIVE(stats, LABELS, NUMBERS))


def at_once(hidden, kernel):
    total, _ = objective_from_hidden(
        OBJECTIVE, hidden, kernel, LABELS, NUMBERS, tile_tokens=TILE
    )
    return total


def dense(hidden, kernel):
    stats = dense_stats((hidden, kernel, None), LABELS, vocab=NUMBERS)
    return OBJECTIVE.total(OBJECTIVE(stats, LABELS, NUMBERS))


FUSED = {
    "tokens": partial(by_stats, backward="tokens"),
    "columns": partial(by_stats, backward="columns"),
    "objective": at_once,
}
BY_NAME = pytest.mark.parametrize("name", FUSED)


def gradients(loss):
    return jax.grad(loss, argnums=(0, 1))


@BY_NAME
def test_no_array_is_larger_than_a_tile(name):
    at_most = TILE * 3 // 2 if name == "columns" else TILE  # the forward pass' tiles
    tile = math.ceil(TOKENS / math.ceil(TOKENS / at_most))  # of one size
    assert largest_array(gradients(FUSED[name]), *ARGS) == tile * COLUMNS
    assert largest_array(gradients(dense), *ARGS) == TOKENS * COLUMNS


@BY_NAME
def test_memory_is_a_fraction_of_the_dense_path(name):
    def temporary(loss):
        compiled = jax.jit(gradients(loss)).lower(*ARGS).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporary(dense) >= 4 * TOKENS * COLUMNS
    assert temporary(FUSED[name]) < temporary(dense) / 3


@pytest.mark.parametrize(("name", "products"), [("tokens", 4), ("objective", 3)])
def test_matrix_products_with_all_columns(name, products):
    loss = FUSED[name]
    assert wide_matmuls(loss, *ARGS, columns=COLUMNS) == 1
    assert wide_matmuls(gradients(loss), *ARGS, columns=COLUMNS) == products
    assert wide_matmuls(gradients(dense), *ARGS, columns=COLUMNS) == 3

"""Outside of `jit`, a call like the one before it compiles nothing."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

from ntl_jax import (
    Objective,
    digit_weights,
    number_spans,
    objective_from_hidden,
    predict_numbers,
    stats_from_hidden,
)
from tests.losses.public_losses import COLUMNS, LOSSES, VOCAB, batch, total_and_tokens

SPANS = [
    {"points": "one", "commas": True},
    {"points": "between"},
    {"points": "never"},
]


@pytest.fixture
def compiled():
    """A list that grows by one with each program that is compiled."""
    programs = []

    def listen(event, seconds, **_):
        if "backend_compile" in event:
            programs.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield programs
    jax.monitoring.unregister_event_duration_listener(listen)


def again(programs, call, *args) -> int:
    """How many programs two more calls compile, after two."""
    for _ in range(2):
        call(*args)
    before = len(programs)
    for _ in range(2):
        call(*args)
    return len(programs) - before


def test_a_function_made_by_each_call_is_seen(compiled):
    def total(x):
        zero = jnp.float32(0)
        return jax.lax.reduce((x,), (zero,), lambda a, b: (a[0] + b[0],), (0,))

    assert again(compiled, total, jnp.ones(3)) == 2


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_and_its_gradient(name, compiled):
    data = tuple(map(jnp.asarray, batch()))
    loss = partial(total_and_tokens, name)
    assert again(compiled, loss, *data) == 0
    assert again(compiled, jax.grad(loss, has_aux=True), *data) == 0
    assert again(compiled, jax.value_and_grad(loss, has_aux=True), *data) == 0


@pytest.mark.parametrize("options", SPANS, ids=str)
def test_what_labels_say(options, compiled):
    labels = jnp.asarray(batch()[1])
    assert again(compiled, partial(number_spans, vocab=VOCAB, **options), labels) == 0
    assert again(compiled, partial(digit_weights, vocab=VOCAB, **options), labels) == 0


def test_predicted_numbers(compiled):
    logits = jnp.asarray(batch()[0])
    assert again(compiled, partial(predict_numbers, vocab=VOCAB), logits) == 0


@pytest.mark.parametrize("backward", ["tokens", "columns"])
def test_stats_of_a_fused_head(backward, compiled):
    labels = jnp.asarray(batch()[1])

    def total(hidden, kernel):
        options = {"tile_tokens": 6, "backward": backward}
        stats = stats_from_hidden(hidden, kernel, labels, VOCAB, **options)
        return jnp.sum(stats.lse)

    assert again(compiled, total, *head(labels.shape)) == 0
    assert again(compiled, jax.grad(total, (0, 1)), *head(labels.shape)) == 0


def test_an_objective_of_a_fused_head(compiled):
    labels = jnp.asarray(batch()[1])
    objective = Objective(ce=1.0, was=0.3, number_level=0.1)

    def total(hidden, kernel):
        options = {"tile_tokens": 6}
        return objective_from_hidden(
            objective, hidden, kernel, labels, VOCAB, **options
        )[0]

    assert again(compiled, total, *head(labels.shape)) == 0
    assert again(compiled, jax.grad(total, (0, 1)), *head(labels.shape)) == 0


def head(shape):
    """Hidden states and a kernel."""
    keys = jax.random.split(jax.random.key(0))
    hidden = jax.random.normal(keys[0], (*shape, 4))
    return hidden, jax.random.normal(keys[1], (4, COLUMNS))

"""Every loss at its edges, under jit and under vmap: finite, and 0 where it must be."""

from functools import cache, partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax import (
    NumberVocab,
    Objective,
    cross_entropy,
    ntl_huber,
    ntl_mae,
    ntl_mse,
    ntl_was,
    stats_from_logits,
)

WIDE = 130  # more columns than 100, so that -100 would wrap around to a real one


def wide_vocab() -> NumberVocab:
    """The tokens of the fixture at their ids, in WIDE columns, with 8 at id 30."""
    tokens = {"5": 0, "a": 1, "0": 2, "9": 3, "1": 5, "4": 6, "2": 7, "8": 30}
    return NumberVocab.from_mapping(tokens, vocab_size=WIDE)


def objective_on_logits(logits, labels, vocab, *, weights=None, reduction=None):
    """Every term of an objective at once, as a loss that has a sum only."""
    del reduction
    objective = Objective(
        mse=0.5, mae=0.5, huber=0.5, reweigh=True, label_smoothing=0.1, z_loss=1e-4
    )
    stats = stats_from_logits(logits, labels, vocab)
    return objective.total(objective(stats, labels, vocab, weights=weights))


def ce(logits, labels, vocab, *, weights=None, reduction=None):
    return cross_entropy(
        logits,
        labels,
        vocab_size=vocab.vocab_size,
        weights=weights,
        reduction=reduction,
        label_smoothing=0.1,
        z_loss=1e-4,
    )


NUMBER_LOSSES = {
    "was": ntl_was,
    "was-full": partial(ntl_was, support="full"),
    "mse": ntl_mse,
    "mae-reweigh": partial(ntl_mae, reweigh=True),
    "huber-full": partial(ntl_huber, support="full"),
}
LOSSES = NUMBER_LOSSES | {"ce": ce, "objective": objective_on_logits}


@cache  # so that every test of a loss shares one compilation
def compiled(loss, how, vocab):
    def total(z, y, w):
        return jnp.sum(loss(z, y, vocab, weights=w, reduction="sum"))

    function = jax.value_and_grad(total)
    return jax.jit(jax.vmap(function) if how == "vmap" else function)


def run(loss, logits, labels, vocab, weights, how):
    """(value, gradient) of the loss under jit, or row by row under vmap."""
    value, gradient = compiled(loss, how, vocab)(logits, labels, weights)
    return jnp.sum(value), gradient


@pytest.fixture(params=["jit", "vmap"])
def how(request):
    return request.param


@pytest.fixture(params=LOSSES)
def loss(request):
    return LOSSES[request.param]


@pytest.fixture(params=NUMBER_LOSSES)
def number_loss(request):
    return NUMBER_LOSSES[request.param]


def test_no_number_in_the_batch(number_loss, vocab, batch, how):
    logits, labels, weights = batch
    text = jnp.full_like(labels, 4)
    value, gradient = run(number_loss, logits, text, vocab, weights, how)
    assert value == 0 and not gradient.any()


def test_everything_ignored(loss, vocab, batch, how):
    logits, labels, weights = batch
    ignored = jnp.full_like(labels, -100)
    value, gradient = run(loss, logits, ignored, vocab, weights, how)
    assert value == 0 and not gradient.any()


def test_all_weights_zero(loss, vocab, batch, how):
    logits, labels, weights = batch
    value, gradient = run(loss, logits, labels, vocab, jnp.zeros_like(weights), how)
    assert value == 0 and not gradient.any()


@pytest.mark.parametrize("columns", [14, WIDE])
def test_an_ignored_label_never_wraps_around(loss, vocab, columns, how):
    # In 130 columns -100 would be id 30, here an 8; and id 0 is a 5.
    vocab = vocab if columns == 14 else wide_vocab()
    logits = jax.random.normal(jax.random.key(0), (1, 3, columns))
    labels = jnp.array([[-100, 3, -100]])
    weights = jnp.ones((1, 3))
    value, gradient = run(loss, logits, labels, vocab, weights, how)
    alone, alone_gradient = run(
        loss, logits[:, 1:2], labels[:, 1:2], vocab, weights[:, 1:2], how
    )
    assert value == pytest.approx(float(alone), rel=1e-6)
    assert not gradient[:, 0].any() and not gradient[:, 2].any()
    chex.assert_trees_all_close(gradient[:, 1:2], alone_gradient, rtol=1e-6)


def test_a_digit_at_id_zero_counts(number_loss, vocab, how):
    logits = jax.random.normal(jax.random.key(0), (1, 1, 14))
    labels = jnp.array([[0]])
    value, gradient = run(number_loss, logits, labels, vocab, jnp.ones((1, 1)), how)
    assert value > 0 and gradient.any()


@pytest.mark.parametrize("size", [1e4, -1e4, np.inf])
def test_extreme_logits_stay_finite(loss, vocab, batch, how, size):
    logits, labels, weights = batch
    if np.isinf(size):
        logits = jnp.where(logits > 0, -jnp.inf, logits)  # half the columns at -inf
        logits = logits.at[0, 0].set(-jnp.inf)  # and one position with nothing else
    else:
        logits = jnp.where(logits > 1, size, logits)
    value, gradient = run(loss, logits, labels, vocab, weights, how)
    chex.assert_tree_all_finite((value, gradient))


@pytest.mark.parametrize("poison", [jnp.nan, jnp.inf])
def test_positions_that_count_nothing_may_hold_anything(
    loss, vocab, batch, how, poison
):
    logits, labels, weights = batch
    counted = (labels != -100) & (weights != 0)
    poisoned = jnp.where(counted[..., None], logits, poison)
    clean = run(loss, logits, labels, vocab, weights, how)
    dirty = run(loss, poisoned, labels, vocab, weights, how)
    chex.assert_trees_all_close(dirty, clean, rtol=1e-6, atol=1e-6)


def test_bfloat16_logits(loss, vocab, batch, how):
    logits, labels, weights = batch
    half = logits.astype(jnp.bfloat16)
    value, gradient = run(loss, half, labels, vocab, weights, how)
    full, full_gradient = run(
        loss, half.astype(jnp.float32), labels, vocab, weights, how
    )
    assert value.dtype == jnp.float32 and gradient.dtype == jnp.bfloat16
    assert value == pytest.approx(float(full), rel=1e-6)
    chex.assert_trees_all_close(
        gradient.astype(jnp.float32), full_gradient, rtol=2**-8, atol=1e-6
    )


def test_one_position(loss, vocab, how):
    logits = jax.random.normal(jax.random.key(0), (2, 1, 14))
    labels = jnp.array([[3], [-100]])
    value, gradient = run(loss, logits, labels, vocab, jnp.ones((2, 1)), how)
    assert value > 0 and gradient[0].any() and not gradient[1].any()


def test_one_trace_whatever_the_labels_hold(loss, vocab, batch):
    logits, labels, weights = batch
    chex.clear_trace_counter()

    @jax.jit
    @chex.assert_max_traces(n=1)
    def step(z, y, w):
        return jax.grad(
            lambda z: jnp.sum(loss(z, y, vocab, weights=w, reduction="sum"))
        )(z)

    for y in (
        labels,
        jnp.full_like(labels, -100),
        jnp.full_like(labels, 4),
        labels + 1,
    ):
        for w in (weights, jnp.zeros_like(weights)):
            chex.assert_tree_all_finite(step(logits, y, w))


def test_numpy_inputs_work(vocab, batch, unhooked):
    logits, labels, weights = map(np.asarray, batch)
    for name, loss in LOSSES.items():
        ours = loss(logits, labels, vocab, weights=weights, reduction="sum")
        expected = loss(*batch[:2], vocab, weights=batch[2], reduction="sum")
        np.testing.assert_allclose(ours, expected, rtol=1e-6, err_msg=name)


def test_the_vocabulary_is_a_static_argument_and_a_closure_alike(vocab, batch):
    logits, labels, _ = batch
    closed = jax.jit(lambda z: ntl_was(z, labels, vocab))(logits)
    as_argument = jax.jit(ntl_was)(logits, labels, vocab)
    as_static = jax.jit(ntl_was, static_argnums=2)(logits, labels, vocab)
    chex.assert_trees_all_equal(closed, as_argument, as_static)

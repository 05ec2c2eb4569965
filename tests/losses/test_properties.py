"""What must hold for any logits, labels and vocabulary."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ntl_jax import NumberVocab, cross_entropy, ntl_huber, ntl_mae, ntl_mse, ntl_was

TOKENS = 12  # columns; the first ten are the digits 0 to 9
DIGITS = NumberVocab.from_mapping(
    {str(i): i for i in range(10)} | {"a": 10, "b": 11}, vocab_size=TOKENS
)
LOSSES = (ntl_was, ntl_mse, ntl_mae, ntl_huber)
ONES = jnp.ones(8)
SETTINGS = settings(max_examples=25, deadline=None, derandomize=True)


def ce(logits, labels, vocab, **options):
    del vocab
    return cross_entropy(logits, labels, **options)


@jax.jit
def every_token_loss(logits, labels, vocab, weights):
    """The token losses of all, reweighed too, stacked."""
    values = [loss(logits, labels, vocab, weights=weights) for loss in (*LOSSES, ce)]
    values += [
        loss(logits, labels, vocab, weights=weights, reweigh=True) for loss in LOSSES
    ]
    return jnp.stack(values)


@jax.jit
def every_mean(logits, labels, vocab, weights):
    options = {"weights": weights, "reduction": "mean"}
    return jnp.stack(
        [loss(logits, labels, vocab, **options) for loss in (*LOSSES, ce)]
        + [loss(logits, labels, vocab, reweigh=True, **options) for loss in LOSSES]
    )


def draw_batch(seed: int, positions: int = 8):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(positions, TOKENS)).astype(np.float32) * 3
    labels = rng.integers(0, TOKENS, size=positions).astype(np.int32)
    return logits, labels


seeds = st.integers(0, 2**31)


@SETTINGS
@given(seeds, st.lists(st.booleans(), min_size=8, max_size=8), st.booleans())
def test_a_mask_equals_slicing(seed, kept, by_label):
    logits, labels = draw_batch(seed)
    keep = np.array(kept)
    if by_label:
        masked = every_mean(logits, np.where(keep, labels, -100), DIGITS, ONES)
    else:
        masked = every_mean(logits, labels, DIGITS, jnp.asarray(keep, jnp.float32))
    if not keep.any():
        assert not masked.any()
        return
    # The kept rows, repeated in whole rounds so that every example has one shape.
    rows = np.tile(np.flatnonzero(keep), 8)
    padded = np.zeros((64, TOKENS), np.float32), np.full(64, -100, np.int32)
    padded[0][: len(rows)], padded[1][: len(rows)] = logits[rows], labels[rows]
    sliced = every_mean(
        jnp.array(padded[0]), jnp.array(padded[1]), DIGITS, jnp.ones(64)
    )
    np.testing.assert_allclose(masked, sliced, rtol=1e-5, atol=1e-6)


@SETTINGS
@given(seeds, st.permutations(range(TOKENS)))
def test_the_order_of_the_vocabulary_is_of_no_matter(seed, places):
    logits, labels = draw_batch(seed)
    places = np.array(places, np.int32)  # token i moves to column places[i]
    names = [*map(str, range(10)), "a", "b"]
    moved = NumberVocab.from_mapping(
        {name: int(places[i]) for i, name in enumerate(names)}, vocab_size=TOKENS
    )
    columns = np.empty_like(logits)
    columns[:, places] = logits
    for loss in (ntl_was, ntl_huber):  # not jitted: every vocabulary is another trace
        np.testing.assert_allclose(
            loss(
                jnp.asarray(columns), jnp.asarray(places[labels]), moved, reweigh=True
            ),
            loss(jnp.asarray(logits), jnp.asarray(labels), DIGITS, reweigh=True),
            rtol=1e-5,
            atol=1e-5,
        )


@SETTINGS
@given(seeds, st.integers(-100, 100))
def test_a_constant_on_all_logits_changes_nothing(seed, constant):
    logits, labels = draw_batch(seed)
    logits = np.round(logits * 64) / 64  # so that the sum with an integer is exact
    shifted = every_token_loss(logits + np.float32(constant), labels, DIGITS, ONES)
    values = every_token_loss(logits, labels, DIGITS, ONES)
    # The softmax over numbers sees differences of logits only.
    np.testing.assert_allclose(shifted[:4], values[:4], rtol=1e-5, atol=1e-6)
    # What reads lse has its rounding, times the 82 of reweighed MSE at the worst.
    rounding = np.spacing(np.float32(abs(constant) + 10))
    np.testing.assert_allclose(shifted[4:], values[4:], rtol=1e-5, atol=164 * rounding)


@SETTINGS
@given(seeds)
def test_losses_are_bounded_and_zero_off_the_numbers(seed):
    logits, labels = draw_batch(seed)
    values = every_token_loss(logits, labels, DIGITS, ONES)
    assert (values >= 0).all()
    was = values[0]
    assert (was <= 9 + 1e-5).all()
    assert not was[labels >= 10].any() and (was[labels < 10] > 0).all()


@SETTINGS
@given(st.lists(st.integers(-300, 300), min_size=2, max_size=8, unique=True), seeds)
def test_was_is_the_wasserstein_distance_for_any_spacing(quarters, seed):
    stats = pytest.importorskip("scipy.stats")
    values = [q / 4 for q in quarters]  # exact in float32, in no order
    worth = {f"n{i}": value for i, value in enumerate(values)}
    mapping = {name: i for i, name in enumerate([*worth, "text"])}
    vocab = NumberVocab.from_mapping(mapping, vocab_size=len(mapping), policy=worth.get)
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=len(mapping)).astype(np.float32) * 2
    weights = np.exp(logits[:-1].astype(np.float64))
    label = int(rng.integers(len(values)))
    expected = stats.wasserstein_distance(values, [values[label]], weights, [1.0])
    ours = ntl_was(jnp.asarray(logits), jnp.asarray(label), vocab)
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)

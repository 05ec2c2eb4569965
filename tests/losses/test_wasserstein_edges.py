"""NTL-WAS over a distance and exact W1 at their edges: finite, and 0 off support."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax import NumberVocab, distances, ntl_was, ntl_was_cdf

DIGITS = NumberVocab.from_mapping(
    {str(i): i for i in range(10)} | {"a": 10}, vocab_size=11
)


def losses_of(logits, labels, target, weights=None, vocab=DIGITS):
    """Everything in this file, summed over positions: f32[6]."""
    common = {"weights": weights, "reduction": "sum"}
    matrix = distances.circular(vocab, 10)
    return jnp.stack(
        [
            ntl_was(logits, labels, vocab, distance=matrix, **common),
            ntl_was(logits, labels, vocab, distance=matrix, reweigh=True, **common),
            ntl_was_cdf(logits, labels, vocab, **common),
            ntl_was_cdf(logits, labels, vocab, target=target, **common),
            ntl_was_cdf(logits, labels, vocab, target=target, support="full", **common),
            ntl_was_cdf(logits, labels, vocab, target=target, reweigh=True, **common),
        ]
    )


compiled = jax.jit(losses_of)
slopes = jax.jit(jax.jacrev(losses_of))


def a_batch(seed=8):
    """Logits [6, 11], labels with text and an ignored one, targets, weights."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(6, 11)).astype(np.float32) * 3
    labels = np.array([4, 10, -100, 0, 9, 5], np.int32)
    target = rng.dirichlet(np.ones(10), size=6).astype(np.float32)
    weights = np.array([1.0, 2.0, 3.0, 0.5, 0.0, 2.0], np.float32)
    return tuple(map(jnp.asarray, (logits, labels, target, weights)))


COUNTED = np.array([True, False, False, True, False, True])


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_positions_that_count_nothing_may_hold_anything(poison):
    logits, labels, target, weights = a_batch()
    clean = (
        compiled(logits, labels, target, weights),
        slopes(logits, labels, target, weights),
    )
    logits = jnp.where(COUNTED[:, None], logits, poison)
    target = jnp.where(COUNTED[:, None], target, poison)
    dirty = (
        compiled(logits, labels, target, weights),
        slopes(logits, labels, target, weights),
    )
    chex.assert_trees_all_equal(dirty, clean)
    assert not dirty[1][:, ~COUNTED].any() and dirty[1][:, COUNTED].any((1, 2)).all()


def test_a_mask_equals_slicing():
    logits, labels, target, weights = a_batch()
    whole = compiled(logits, labels, target, weights)
    rows = np.flatnonzero(COUNTED)
    sliced = compiled(logits[rows], labels[rows], target[rows], weights[rows])
    np.testing.assert_allclose(whole, sliced, rtol=1e-6)


def test_a_row_of_zeros_asks_for_nothing():
    logits, labels, target, weights = a_batch()
    target = target.at[3].set(0.0)
    stats_loss = jax.jit(
        lambda z: ntl_was_cdf(z, labels, DIGITS, target=target, weights=weights)
    )
    assert stats_loss(logits)[3] == 0 and stats_loss(logits)[0] > 0
    gradient = slopes(logits, labels, target, weights)
    assert jnp.isfinite(gradient).all() and not gradient[3:, 3].any()


@pytest.mark.parametrize("size", [1e4, 1e30, -1e30, np.inf])
def test_extreme_logits_stay_finite(size):
    logits, labels, target, _ = a_batch()
    ones = jnp.ones(6)
    if np.isinf(size):
        logits = jnp.where(logits > 0, -jnp.inf, logits).at[0].set(-jnp.inf)
    else:
        logits = jnp.where(logits > 1, size, logits)
    chex.assert_tree_all_finite(
        (compiled(logits, labels, target, ones), slopes(logits, labels, target, ones))
    )


def test_bfloat16_logits_and_targets_are_worth_their_float32_copies():
    logits, labels, target, weights = a_batch()
    half = logits.astype(jnp.bfloat16), labels, target.astype(jnp.bfloat16), weights
    upcast = half[0].astype(jnp.float32), labels, half[2].astype(jnp.float32), weights
    assert compiled(*half).dtype == jnp.float32 and slopes(*half).dtype == jnp.bfloat16
    np.testing.assert_allclose(compiled(*half), compiled(*upcast), rtol=1e-6)
    chex.assert_trees_all_close(
        slopes(*half).astype(jnp.float32), slopes(*upcast), rtol=2**-8, atol=1e-6
    )


def test_a_constant_on_all_logits_changes_nothing():
    logits, labels, target, weights = a_batch()
    logits = jnp.round(logits * 64) / 64  # so that the sum is exact
    np.testing.assert_allclose(
        compiled(logits + 32, labels, target, weights),
        compiled(logits, labels, target, weights),
        rtol=1e-5,
        atol=1e-5,
    )


def test_the_order_of_the_vocabulary_is_of_no_matter():
    logits, labels, target, weights = a_batch()
    places = np.random.default_rng(0).permutation(11)  # token i moves to places[i]
    names = [*map(str, range(10)), "a"]
    moved = NumberVocab.from_mapping(
        {name: int(places[i]) for i, name in enumerate(names)}, vocab_size=11
    )
    columns = jnp.zeros_like(logits).at[:, places].set(logits)
    new_labels = jnp.where(labels == -100, -100, jnp.asarray(places)[labels])
    new_target = target[:, moved.values.astype(int)]
    np.testing.assert_allclose(
        compiled(columns, new_labels, new_target, weights, moved),
        compiled(logits, labels, target, weights),
        rtol=1e-5,
    )


def test_one_trace_and_any_leading_shape():
    chex.clear_trace_counter()
    logits, labels, target, weights = a_batch()

    @jax.jit
    @chex.assert_max_traces(n=1)
    def step(labels, target, weights):
        return jax.grad(lambda z: losses_of(z, labels, target, weights).sum())(logits)

    for y in (
        labels,
        jnp.full_like(labels, -100),
        jnp.full_like(labels, 10),
        labels + 1,
    ):
        chex.assert_tree_all_finite(step(y, target, weights))
    flat = compiled(logits, labels, target, weights)
    folded = (x.reshape(3, 2, *x.shape[1:]) for x in (logits, labels, target, weights))
    np.testing.assert_allclose(compiled(*folded), flat, rtol=1e-6)
    mapped = jax.jit(jax.vmap(losses_of))(logits, labels, target, weights)
    np.testing.assert_allclose(mapped.sum(0), flat, rtol=1e-5)


def test_one_number_is_always_right():
    vocab = NumberVocab.from_mapping({"7": 0, "a": 1}, vocab_size=2)
    logits, labels = jnp.zeros((1, 2)), jnp.array([0])
    for target in (None, jnp.full((1, 1), 0.3)):
        loss = ntl_was_cdf(logits, labels, vocab, target=target)
        assert loss.tolist() == [0.0]
    assert ntl_was(logits, labels, vocab, distance=jnp.zeros((1, 1))).tolist() == [0.0]


def test_what_is_no_target_or_distance_is_refused(unhooked):
    logits, labels, target, _ = a_batch()
    with pytest.raises(ValueError, match=r"\(6, 9\).*\(6,\).*10 number.*\(6, 10\)"):
        ntl_was_cdf(logits, labels, DIGITS, target=target[:, :9])
    with pytest.raises(TypeError, match="int32"):
        ntl_was_cdf(logits, labels, DIGITS, target=jnp.ones((6, 10), jnp.int32))
    with pytest.raises(ValueError, match=r"reweigh=True.*support='numbers'"):
        ntl_was_cdf(logits, labels, DIGITS, support="full", reweigh=True)
    with pytest.raises(ValueError, match=r"\(9, 9\).*\(10, 10\)"):
        ntl_was(logits, labels, DIGITS, distance=jnp.ones((9, 9)))

"""ntl_optimal_transport: its options, its edges, and that its minimum is the target."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax import NumberVocab, distances, ntl_optimal_transport, ntl_was, ntl_was_cdf

DIGITS = NumberVocab.from_mapping(
    {str(i): i for i in range(5)} | {"a": 5}, vocab_size=6
)
EUCLIDEAN = distances.euclidean(DIGITS)


def losses_of(logits, labels, target, weights, vocab, cost, epsilon):
    """The loss in its forms, summed over positions: f32[4]."""
    options = {"target": target, "weights": weights, "reduction": "sum"}
    options |= {"cost": cost, "epsilon": epsilon, "iterations": 100}
    forms = [{}, {"debias": True}, {"reweigh": True}, {"support": "full"}]
    return jnp.stack(
        [ntl_optimal_transport(logits, labels, vocab, **options, **f) for f in forms]
    )


compiled = jax.jit(losses_of)
slopes = jax.jit(jax.jacrev(losses_of))
COUNTED = np.array([True, False, False, True, False, True])


def a_batch(seed=8):
    """Logits [6, 6], labels with text and an ignored one, targets, weights, options."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(6, 6)).astype(np.float32) * 2
    labels = np.array([4, 5, -100, 0, 2, 1], np.int32)
    target = rng.dirichlet(np.ones(5), size=6).astype(np.float32)
    weights = np.array([1.0, 2.0, 3.0, 0.5, 0.0, 2.0], np.float32)
    arrays = tuple(map(jnp.asarray, (logits, labels, target, weights)))
    return (*arrays, DIGITS, EUCLIDEAN, jnp.float32(0.05))


def both(*batch):
    return compiled(*batch), slopes(*batch)


def test_a_label_alone_costs_its_row():
    logits, labels, _, weights, *_ = a_batch()
    cost = jax.random.uniform(jax.random.key(4), (5, 5), maxval=4.0)
    target = jax.nn.one_hot(labels, 5)

    @jax.jit
    def transport_and_row(z):
        def means(z):
            options = {"weights": weights, "reduction": "mean"}
            return (
                ntl_optimal_transport(
                    z, labels, DIGITS, target=target, cost=cost, **options
                ),
                ntl_was(z, labels, DIGITS, distance=cost, **options),
            )

        return means(z), jax.jacrev(means)(z)

    for transport, row in transport_and_row(logits):
        np.testing.assert_allclose(transport, row, rtol=1e-5, atol=1e-6)


def test_the_default_cost_is_that_of_w1():
    logits, labels, target, *_ = a_batch()

    @jax.jit
    def above(z):
        options = {"target": target, "epsilon": 0.003, "iterations": 2000}
        blurred = ntl_optimal_transport(z, labels, DIGITS, **options)
        return blurred - ntl_was_cdf(z, labels, DIGITS, target=target)

    excess = above(logits)
    assert (excess > -1e-4).all() and (excess < 0.003 * 4 * np.log(5)).all()


def test_full_support_is_the_mass_times_the_cost():
    logits, labels, target, _, vocab, cost, epsilon = a_batch()
    ones = jnp.array([1.0, 0, 0, 0, 0, 0])
    plain, _, _, full = compiled(logits, labels, target, ones, vocab, cost, epsilon)
    np.testing.assert_allclose(full, plain * jax.nn.softmax(logits[0])[:5].sum(), 1e-5)


def test_the_divergence_is_zero_at_the_target_and_positive_elsewhere():
    _, labels, target, weights, *rest = a_batch()
    at_target = jnp.pad(jnp.log(target), ((0, 0), (0, 1)))
    values, gradient = both(at_target, labels, target, weights, *rest)
    assert abs(values[1]) < 1e-4 and jnp.abs(gradient[1]).max() < 1e-4
    assert values[0] > 0.05 and jnp.abs(gradient[0]).max() > 1e-2  # what it mends
    for seed in range(5):
        moved = at_target + jax.random.normal(jax.random.key(seed), at_target.shape)
        assert compiled(moved, labels, target, weights, *rest)[1] > 1e-3


def test_descending_the_divergence_reaches_the_target():
    _, labels, target, *_ = a_batch()

    @jax.jit
    def descend(z):
        def step(_, z):
            grad = jax.grad(
                lambda z: ntl_optimal_transport(
                    z,
                    labels,
                    DIGITS,
                    target=target,
                    reduction="sum",
                    epsilon=0.2,
                    iterations=20,
                    debias=True,
                )
            )(z)
            return z - 2.0 * grad

        return jax.lax.fori_loop(0, 400, step, z)

    reached = jax.nn.softmax(descend(jnp.zeros((6, 6)))[:, :5])
    rows = np.asarray((labels >= 0) & (labels < 5))
    np.testing.assert_allclose(reached[rows], target[rows], atol=0.02)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_positions_that_count_nothing_may_hold_anything(poison):
    logits, labels, target, *rest = a_batch()
    clean = both(logits, labels, target, *rest)
    logits = jnp.where(COUNTED[:, None], logits, poison)
    target = jnp.where(COUNTED[:, None], target, poison)
    dirty = both(logits, labels, target, *rest)
    chex.assert_trees_all_equal(dirty, clean)
    assert not dirty[1][:, ~COUNTED].any() and dirty[1][:, COUNTED].any((1, 2)).all()


@pytest.mark.parametrize("size", [1e4, 1e30, -1e30, np.inf])
def test_extreme_logits_and_bare_targets_stay_finite(size):
    logits, labels, target, _, *rest = a_batch()
    if np.isinf(size):
        logits = jnp.where(logits > 0, -jnp.inf, logits).at[0].set(-jnp.inf)
    else:
        logits = jnp.where(logits > 1, size, logits)
    target = jnp.where(target > 0.3, target, 0.0).at[3].set(0.0)
    values, gradient = both(logits, labels, target, jnp.ones(6), *rest)
    chex.assert_tree_all_finite((values, gradient))
    assert not gradient[:, 3].any()  # a row of zeros asks for nothing


def test_no_cost_at_all_and_a_single_number():
    logits, labels, target, weights, vocab, cost, epsilon = a_batch()
    values, gradient = both(
        logits, labels, target, weights, vocab, jnp.zeros_like(cost), epsilon
    )
    np.testing.assert_allclose(values, 0, atol=1e-5)
    np.testing.assert_allclose(gradient, 0, atol=1e-5)
    one = NumberVocab.from_mapping({"7": 0, "a": 1}, vocab_size=2)
    loss = ntl_optimal_transport(
        jnp.zeros((1, 2)), jnp.array([0]), one, target=jnp.ones((1, 1))
    )
    np.testing.assert_allclose(loss, 0, atol=1e-6)


def test_bfloat16_logits_are_worth_their_float32_copies():
    logits, labels, target, *rest = a_batch()
    half = logits.astype(jnp.bfloat16)
    values, gradient = both(half, labels, target, *rest)
    full, full_gradient = both(half.astype(jnp.float32), labels, target, *rest)
    assert values.dtype == jnp.float32 and gradient.dtype == jnp.bfloat16
    np.testing.assert_allclose(values, full, rtol=1e-5)
    chex.assert_trees_all_close(
        gradient.astype(jnp.float32), full_gradient, rtol=2**-8, atol=1e-5
    )


def test_the_order_of_the_vocabulary_and_a_constant_are_of_no_matter():
    logits, labels, target, weights, vocab, _, epsilon = a_batch()
    cost = jax.random.uniform(jax.random.key(5), (5, 5), maxval=4.0)
    cost = cost + cost.T
    places = np.random.default_rng(0).permutation(6)  # token i moves to places[i]
    names = [*map(str, range(5)), "a"]
    moved = NumberVocab.from_mapping(
        {name: int(places[i]) for i, name in enumerate(names)}, vocab_size=6
    )
    columns = jnp.zeros_like(logits).at[:, places].set(logits) + 4.0
    digits = moved.values.astype(int)
    new_labels = jnp.where(labels == -100, -100, jnp.asarray(places, jnp.int32)[labels])
    there = compiled(
        columns,
        new_labels,
        target[:, digits],
        weights,
        moved,
        cost[np.ix_(digits, digits)],
        epsilon,
    )
    here = compiled(logits, labels, target, weights, vocab, cost, epsilon)
    np.testing.assert_allclose(there, here, rtol=1e-4, atol=1e-5)


def test_sweeps_slices_and_shapes():
    chex.clear_trace_counter()
    logits, labels, target, weights, vocab, cost, epsilon = a_batch()
    whole = compiled(logits, labels, target, weights, vocab, cost, epsilon)
    rows = np.flatnonzero(COUNTED)
    kept = (x[rows] for x in (logits, labels, target, weights))
    np.testing.assert_allclose(compiled(*kept, vocab, cost, epsilon), whole, rtol=1e-5)
    folded = (x.reshape(3, 2, *x.shape[1:]) for x in (logits, labels, target, weights))
    np.testing.assert_allclose(
        compiled(*folded, vocab, cost, epsilon), whole, rtol=1e-5
    )

    @jax.jit
    @chex.assert_max_traces(n=1)
    def sweep(labels, costs, epsilons):
        return jax.vmap(losses_of, in_axes=(None, None, None, None, None, 0, 0))(
            logits, labels, target, weights, vocab, costs, epsilons
        )

    costs = jnp.stack([cost, 2 * cost])
    swept = sweep(labels, costs, jnp.array([0.05, 0.2]))
    assert not sweep(jnp.full_like(labels, 5), costs, jnp.ones(2)).any()
    alone = compiled(logits, labels, target, weights, vocab, costs[1], jnp.float32(0.2))
    np.testing.assert_allclose(swept, jnp.stack([whole, alone]), rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"epsilon": 0.0}, ValueError, "epsilon .*not 0.0"),
        ({"iterations": 0}, ValueError, "iterations .*not 0"),
        ({"cost": jnp.ones((4, 5))}, ValueError, r"\(4, 5\).*\(5, 5\)"),
        ({"cost": -jnp.ones((5, 5))}, ValueError, "25 of the costs are negative"),
        ({"target": jnp.ones((6, 4))}, ValueError, r"\(6, 4\).*\(6, 5\)"),
        ({"target": jnp.ones((6, 5), jnp.int32)}, TypeError, "not int32"),
        (
            {"cost": jnp.zeros((5, 5)).at[1, 2].set(3.0), "debias": True},
            ValueError,
            r"\[1, 2\] costs 3 and \[2, 1\] 0",
        ),
        ({"support": "half"}, ValueError, "'half'"),
    ],
)
def test_impossible_options_are_refused(options, error, message, unhooked):
    logits, labels, target, *_ = a_batch()
    with pytest.raises(error, match=message):
        ntl_optimal_transport(logits, labels, DIGITS, **({"target": target} | options))

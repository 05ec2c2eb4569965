"""Entropic optimal transport against linear programs and a float64 twin."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from ntl_jax import NumberVocab
from ntl_jax.losses import ntl_optimal_transport
from ntl_jax.losses.optimal_transport import entropic_cost


def draw(seed, positions=8, numbers=5):
    """Predictions, targets with zeros among them, and a cost without any symmetry."""
    rng = np.random.default_rng(seed)
    q = rng.dirichlet(np.full(numbers, 0.7), size=positions).astype(np.float32)
    t = rng.dirichlet(np.full(numbers, 0.7), size=positions).astype(np.float32)
    t[0] = np.arange(numbers) == 2
    q[1] = np.arange(numbers) == 3
    t[2] = np.where(np.arange(numbers) < 2, 0.5, 0)
    cost = rng.uniform(0, 4, size=(numbers, numbers)).astype(np.float32)
    return q, t, cost


def programs(q, t, cost):
    """The exact cost of each position."""
    pairs = zip(q.astype(np.float64), t.astype(np.float64), strict=True)
    return np.array([linear_program(*pair, cost) for pair in pairs])


def linear_program(q, t, cost):
    """min <P, C> over couplings with row sums t and column sums q."""
    numbers = len(q)
    rows = np.kron(np.eye(numbers), np.ones(numbers))
    columns = np.kron(np.ones(numbers), np.eye(numbers))
    marginals = np.concatenate([t / t.sum(), q / q.sum()])[:-1]
    constraints = np.concatenate([rows, columns])[:-1]
    solved = scipy.optimize.linprog(
        cost.ravel(), A_eq=constraints, b_eq=marginals, method="highs"
    )
    assert solved.success
    return solved.fun


def entropy(p):
    return -np.sum(np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0), axis=-1)


solve = jax.jit(partial(entropic_cost, iterations=4000))


def gap(q, t, cost, blur):
    """How far OT is above the exact cost, for each position."""
    value = solve(*map(jnp.asarray, (q, t, cost)), jnp.float32(blur))
    return np.asarray(value) - programs(q, t, cost)


def assert_near_the_program(above, q, t, blur):
    bound = blur * np.minimum(entropy(q), entropy(t))
    assert (above <= bound + 1e-5).all() and (above >= -1e-5).all()


@pytest.mark.parametrize("seed", range(3))
def test_as_the_blur_falls_the_linear_program_is_approached(seed):
    q, t, cost = draw(seed)
    gaps = {blur: gap(q, t, cost, blur) for blur in (1.0, 0.3, 0.1, 0.03)}
    for blur, above in gaps.items():
        assert_near_the_program(above, q, t, blur)
    largest = [above.max() for above in gaps.values()]
    assert largest == sorted(largest, reverse=True)
    assert largest[-1] < 0.03 * np.log(5) and largest[0] > 0.1


def test_a_wrong_coupling_is_seen():
    q, t, cost = draw(0)
    for wrong in ((q, t, cost.T.copy()), (t, q, cost)):
        above = gap(*wrong, 0.1) + programs(*wrong) - programs(q, t, cost)
        with pytest.raises(AssertionError):
            assert_near_the_program(above, q, t, 0.1)


def twin(z, s, cost, blur):
    """OT of softmax z to softmax s in float64: scalings, and the primal objective."""
    q, t = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (z, s))
    kernel = np.exp(-cost / blur)  # [y, k]
    over_q = np.ones_like(q)
    for _ in range(3000):
        over_t = 1 / ((over_q * q) @ kernel.T)
        over_q = 1 / ((over_t * t) @ kernel)
    coupling = (over_t * t)[..., :, None] * kernel * (over_q * q)[..., None, :]
    density = coupling / (t[..., :, None] * q[..., None, :])
    return np.sum(coupling * (cost + blur * np.log(density)), axis=(-2, -1))


def slope(f, x, step=1e-4):
    """The central differences of f, a scalar, by every entry of x."""
    x = np.asarray(x, np.float64)
    grad = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        move = np.zeros_like(x)
        move[index] = step
        grad[index] = (f(x + move) - f(x - move)) / (2 * step)
    return grad


def test_values_and_every_gradient_against_float64():
    rng = np.random.default_rng(0)
    z, s = rng.normal(size=(2, 2, 4)).astype(np.float32) * 1.5
    cost = rng.uniform(0, 2, size=(4, 4)).astype(np.float32)
    given = (z, s, cost, np.float32(0.25))

    @jax.jit
    def ours(z, s, cost, blur):
        def total(z, s, cost, blur):
            q, t = jax.nn.softmax(z), jax.nn.softmax(s)
            return jnp.sum(entropic_cost(q, t, cost, blur, 400))

        return jax.value_and_grad(total, argnums=(0, 1, 2, 3))(z, s, cost, blur)

    def theirs(i, x):
        exact = [np.asarray(a, np.float64) for a in given]
        exact[i] = x
        return twin(*exact).sum()

    slopes = tuple(slope(lambda x, i=i: theirs(i, x), a) for i, a in enumerate(given))
    expected = (theirs(0, given[0].astype(np.float64)), slopes)
    actual = ours(*map(jnp.asarray, given))
    chex.assert_trees_all_close(actual, expected, rtol=1e-4, atol=1e-5)
    wrong = ours(*map(jnp.asarray, (z * 1.01, s, cost, given[3])))
    for one, other in zip(
        jax.tree.leaves(wrong), jax.tree.leaves(expected), strict=True
    ):
        with pytest.raises(AssertionError):
            chex.assert_trees_all_close(one, other, rtol=1e-4, atol=1e-5)


def divergence(q, t, blur):
    """The Sinkhorn divergence between q and t at costs |i - j|, in float64."""
    cost = np.abs(np.subtract.outer(np.arange(4.0), np.arange(4.0)))
    logs = [np.log(np.asarray(p, np.float64)) for p in (q, t)]
    between, of_q, of_t = (
        twin(logs[a], logs[b], cost, blur) for a, b in ((0, 1), (0, 0), (1, 1))
    )
    return between - 0.5 * (of_q + of_t)


def test_the_divergence_takes_off_what_either_side_costs():
    vocab = NumberVocab.from_mapping(
        {str(d): d for d in range(4)} | {"a": 4}, vocab_size=5
    )
    rng = np.random.default_rng(3)
    logits = jnp.asarray(rng.normal(size=(3, 5)), jnp.float32)
    q = jax.nn.softmax(logits[:, :4])
    t = jnp.asarray(rng.dirichlet(np.ones(4), size=3), jnp.float32).at[2].set(q[2])
    loss = partial(
        ntl_optimal_transport,
        labels=jnp.array([0, 3, 1]),
        vocab=vocab,
        target=t,
        epsilon=0.2,
        iterations=400,
    )
    actual = np.asarray(loss(logits, debias=True))
    expected = divergence(q, t, 0.2 * 3)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    assert abs(actual[2]) < 1e-5 < expected[:2].min()
    assert (np.abs(loss(logits) - expected) > 0.01).all()


def test_without_jit():
    vocab = NumberVocab.from_mapping({"1": 0, "2": 1, "a": 2}, vocab_size=3)
    loss = partial(
        ntl_optimal_transport,
        jnp.array([[1.0, 0.0, 0.0]]),
        jnp.array([1]),
        vocab,
        target=jnp.array([[0.25, 0.75]]),
        iterations=8,
    )
    with jax.disable_jit():
        eager = loss()
    np.testing.assert_allclose(eager, loss(), rtol=1e-6)

"""Gaussian cross-entropy: known targets and values, a float64 twin, the edges."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ntl_jax import (
    NumberVocab,
    cross_entropy,
    gaussian_cross_entropy,
    gaussian_targets,
    ntl_was_cdf,
)
from tests.losses.baselines.checks import (
    DIGITS,
    TEXT,
    assert_equals_twin,
    check_bfloat16,
    check_edges,
    logsumexp,
    numeric_gradient,
    per_position,
    softmax,
    stacked,
)

FORMS = ("normalised", "density", "doubled")


def test_known_targets():
    four, zero = jnp.array(4), jnp.array(0)
    for label, sigma, form, first, expected in (
        (four, 0.5, "normalised", 2, (0.000264, 0.106451, 0.786571, 0.106451)),
        (four, 1.0, "normalised", 2, (0.053991, 0.241971, 0.398943, 0.241971)),
        (zero, 0.5, "normalised", 0, (0.880537, 0.119168, 0.000295)),
        (four, 2.0, "doubled", 0, (0.022776, 0.054637, 0.102076, 0.148519, 0.336589)),
        (four, 2.0, "doubled", 9, (0.007394,)),
    ):
        g = gaussian_targets(label, DIGITS, sigma, form=form)
        np.testing.assert_allclose(g[first:][: len(expected)], expected, atol=6e-7)
        assert float(g.sum()) == pytest.approx(1, abs=1e-6)
    density = gaussian_targets(four, DIGITS, 0.5, form="density")
    assert float(density[4]) == pytest.approx(0.7978846, rel=1e-6)  # sqrt(2 / pi)


def test_token_mols_hundred_and_one_bins():
    tokens = {f"p{i}": i for i in range(101)} | {"a": 101}
    vocab = NumberVocab.from_mapping(
        tokens, vocab_size=102, policy=lambda t: float(t[1:]) if t != "a" else None
    )
    g = gaussian_targets(jnp.array([50, 0]), vocab, 2.0, form="doubled")
    np.testing.assert_allclose(
        g[0, 50:54], [0.332598, 0.146759, 0.100866, 0.053989], atol=6e-7
    )
    np.testing.assert_allclose(g[1, :3], [0.499173, 0.220259, 0.151382], atol=6e-7)


@pytest.mark.parametrize(
    ("sigma", "form", "expected"),
    [
        (0.5, "normalised", {"B": 1.124461, "C3": 4.518259, "C9": 5.049448}),
        (1.0, "normalised", {"B": 3.058723, "C3": 3.842013, "C9": 5.049441}),
        (2.0, "doubled", {"B": 3.369870, "C3": 4.308337, "C9": 5.012551}),
    ],
)
def test_known_values(sigma, form, expected):
    values = gaussian_cross_entropy(*stacked(), DIGITS, sigma=sigma, form=form)
    by_name = dict(
        zip(("A", "A0", "B", "C3", "C5", "C9"), values.tolist(), strict=True)
    )
    for name, value in ({"A": 2.302585, "A0": 2.302585} | expected).items():
        assert by_name[name] == pytest.approx(value, abs=2e-6)


def twin(form, sigma, numbers, logits, labels, weights):
    """The formula in float64; ``numbers`` maps token ids to values."""
    ids, values = np.array(list(numbers)), np.array(list(numbers.values()))

    def loss(z, label):
        log_p = z - logsumexp(z)
        if label not in numbers:
            return -log_p[label]
        kernel = np.exp(-((values - numbers[label]) ** 2) / (2 * sigma**2))
        if form == "doubled":
            kernel[ids == label] *= 2
        total = np.sqrt(2 * np.pi) * sigma if form == "density" else kernel.sum()
        return -(kernel / total * log_p[ids]).sum()

    return per_position(loss, logits, labels, weights)


def numbers_of(vocab):
    return dict(zip(vocab.token_ids.tolist(), vocab.values.tolist(), strict=True))


@pytest.mark.parametrize("form", FORMS)
def test_values_and_gradients_in_float64(form, vocab, batch):
    loss = partial(gaussian_cross_entropy, sigma=1.3, form=form)
    assert_equals_twin(loss, partial(twin, form, 1.3, numbers_of(vocab)), batch, vocab)


@pytest.mark.parametrize("wrong", ["sigma", "form", "value"])
def test_a_wrong_target_is_seen(wrong, vocab, batch):
    numbers = numbers_of(vocab)
    numbers[vocab.token_ids[3].item()] += 0.01 * (wrong == "value")
    form = "doubled" if wrong == "form" else "normalised"
    other = partial(twin, form, 1.301 if wrong == "sigma" else 1.3, numbers)
    with pytest.raises(AssertionError):
        loss = partial(gaussian_cross_entropy, sigma=1.3)
        assert_equals_twin(loss, other, batch, vocab)


def test_no_width_is_cross_entropy_also_under_a_tracer(vocab, batch):
    logits, labels, weights = batch
    expected = cross_entropy(logits, labels, weights=weights, reduction="mean")
    for form in FORMS:
        loss = partial(gaussian_cross_entropy, form=form, reduction="mean")
        run = jax.jit(
            jax.value_and_grad(
                lambda z, s, loss=loss: loss(
                    z, labels, vocab, sigma=s, weights=weights
                ),
                argnums=(0, 1),
            )
        )
        value, gradients = run(logits, jnp.array(0.0))
        assert value == pytest.approx(float(expected), rel=1e-6)
        chex.assert_tree_all_finite(gradients)
        value = loss(logits, labels, vocab, sigma=0.0, weights=weights)
        assert value == pytest.approx(float(expected), rel=1e-6)
        for sigma in (1e-30, 1e-3, 1e30):
            chex.assert_tree_all_finite(run(logits, jnp.array(sigma)))


def test_a_sweep_over_sigma_is_a_vmap(vocab, batch):
    logits, labels, _ = batch
    sigmas = jnp.array([0.0, 0.5, 2.0])
    loss = partial(gaussian_cross_entropy, logits, labels, vocab, reduction="mean")
    swept = jax.jit(jax.vmap(lambda s: loss(sigma=s)))(sigmas)
    alone = [loss(sigma=float(s)) for s in sigmas]
    np.testing.assert_allclose(swept, alone, rtol=1e-6)
    halves = loss(sigma=jnp.array(0.5, jnp.bfloat16))
    assert halves == pytest.approx(float(alone[1]), rel=1e-6)


def test_ntl_to_the_same_soft_target(vocab, batch):
    logits, labels, weights = batch

    @jax.jit
    def mixture(z, sigma=1.3):
        target = gaussian_targets(labels, vocab, sigma)
        common = {"weights": weights, "reduction": "mean"}
        gce = gaussian_cross_entropy(z, labels, vocab, sigma=1.3, **common)
        return gce + 0.3 * ntl_was_cdf(z, labels, vocab, target=target, **common)

    def expected(z):
        ids, values = vocab.token_ids, vocab.values.astype(np.float64)
        order = np.argsort(values)
        y, w = np.asarray(labels), np.asarray(weights, np.float64)
        gce = twin("normalised", 1.3, numbers_of(vocab), z, y, w).sum()
        w = np.where(y == -100, 0, w)
        distance, count = 0.0, 0.0
        for index in np.ndindex(y.shape):
            if w[index] == 0 or vocab.row[y[index]] < 0:
                continue
            g = np.exp(-((values - values[vocab.row[y[index]]]) ** 2) / (2 * 1.3**2))
            apart = np.cumsum((softmax(z[index][ids]) - g / g.sum())[order])[:-1]
            distance += w[index] * (np.abs(apart) * np.diff(values[order])).sum()
            count += w[index]
        return gce / w.sum() + 0.3 * distance / count

    z = np.asarray(logits, np.float64)
    ours = jax.value_and_grad(mixture)(logits)
    twins = expected(z), numeric_gradient(expected, z)
    for actual, exact in zip(ours, twins, strict=True):
        np.testing.assert_allclose(actual, exact, rtol=1e-5, atol=1e-5)
    with pytest.raises(AssertionError):  # another target of NTL is seen
        np.testing.assert_allclose(mixture(logits, 1.31), twins[0], rtol=1e-5)


def test_text_has_no_target_and_counts_in_the_mean():
    labels = jnp.array([4, TEXT, -100])
    assert not gaussian_targets(labels, DIGITS)[1:].any()
    logits = jnp.zeros((3, 12))
    mean = gaussian_cross_entropy(logits, labels, DIGITS, reduction="mean")
    assert mean == pytest.approx(np.log(12), rel=1e-6)
    total = gaussian_cross_entropy(logits, labels, DIGITS, reduction="sum")
    assert total == pytest.approx(2 * np.log(12), rel=1e-6)


def test_tokens_of_one_value_share():
    tokens = {"1": 0, "\u0120" + "1": 1, "2": 2, "a": 3}
    vocab = NumberVocab.from_mapping(tokens, vocab_size=4, policy="numbers")
    g = gaussian_targets(jnp.array([1, 2]), vocab, 1e-3)
    np.testing.assert_allclose(g, [[0.5, 0.5, 0], [0, 0, 1]], atol=1e-6)
    exact = gaussian_targets(jnp.array([1, 2]), vocab, 0.0)
    assert exact.tolist() == [[0, 1, 0], [0, 0, 1]]


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.integers(0, 9), st.floats(0.0, 20.0, width=32), st.sampled_from(FORMS))
def test_targets_peak_at_the_label_and_fall_with_distance(label, sigma, form):
    g = np.asarray(gaussian_targets(jnp.array(label), DIGITS, sigma, form=form))
    assert (g >= 0).all() and g.argmax() == label
    order = np.argsort(np.abs(np.arange(10) - label), kind="stable")
    assert (np.diff(g[order]) <= 1e-7).all()
    if form != "density":
        assert g.sum() == pytest.approx(1, abs=1e-6)


def test_edges(vocab, batch):
    _, labels, weights = batch
    counted = (labels != -100) & (weights != 0)
    check_edges(gaussian_cross_entropy, vocab, batch, counted)
    check_bfloat16(gaussian_cross_entropy, vocab, batch)


def test_the_density_of_no_width_times_an_impossible_label_is_finite():
    logits = jnp.zeros((1, 12)).at[0, 4].set(-jnp.inf)
    for form in FORMS:
        loss = partial(gaussian_cross_entropy, form=form, reduction="sum")
        run = jax.jit(
            jax.value_and_grad(
                lambda z, s, loss=loss: loss(z, jnp.array([4]), DIGITS, sigma=s)
            )
        )
        for sigma in (0.0, 1e-30, 1e-5):
            chex.assert_tree_all_finite(run(logits, jnp.array(sigma)))


def test_impossible_options_are_refused(unhooked):
    for options, message in (
        ({"sigma": -1.0}, r"sigma .*-1.0"),
        ({"sigma": float("nan")}, r"sigma .*nan"),
        ({"form": "mean"}, "'mean'"),
    ):
        with pytest.raises(ValueError, match=message):
            gaussian_cross_entropy(*stacked(), DIGITS, **options)

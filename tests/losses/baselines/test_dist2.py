"""DIST2Loss: known values, a float64 twin, the edges."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ntl_jax import cross_entropy, gaussian_targets
from ntl_jax.losses import digit_weights
from ntl_jax.losses.baselines import dist2
from tests.losses.baselines.checks import (
    CASES,
    DIGITS,
    S_LABELS,
    S_LOGITS,
    assert_equals_twin,
    check_bfloat16,
    check_edges,
    logsumexp,
    per_position,
    softmax,
    stacked,
)

KNOWN = {
    1.0: {"A": 1.231138, "A0": 1.656920, "B": 1.162986, "C3": 2.942415, "C5": 2.942415}
    | {"C9": 3.978001},
    2.0: {"A": 0.883666, "B": 1.639805, "C9": 3.630522},
    4.0: {"A": 0.541448, "B": 1.879790},
}


@pytest.mark.parametrize("tau", KNOWN)
def test_known_values(tau):
    values = dist2(*stacked(), DIGITS, tau=tau)
    for name, expected in KNOWN[tau].items():
        assert float(values[list(CASES).index(name)]) == pytest.approx(
            expected, abs=2e-6
        )


def test_known_means_of_a_number_plain_and_by_place():
    digits = jnp.asarray(S_LOGITS), jnp.asarray(S_LABELS), DIGITS
    places = digit_weights(digits[1], DIGITS, form="linear", base=2.0, points="never")
    assert places.tolist() == [3, 2, 1]
    for tau, plain, by_place in ((1.0, 2.694688, 2.225409), (2.0, 2.572562, 2.237022)):
        mean = partial(dist2, *digits, tau=tau, reduction="mean")
        assert mean() == pytest.approx(plain, abs=2e-6)
        assert mean(weights=places) == pytest.approx(by_place, abs=2e-6)


def test_the_target_is_a_gaussian_of_half_the_temperature():
    f = gaussian_targets(jnp.array([4, 0]), DIGITS, 0.5**0.5)
    np.testing.assert_allclose(
        f[0, 4:8], [0.564131, 0.207532, 0.010332, 0.000070], atol=1e-6
    )
    np.testing.assert_allclose(f[1, :3], [0.721335, 0.265364, 0.013212], atol=1e-6)
    logits = jnp.pad(jnp.log(jnp.maximum(f, 1e-30)), [(0, 0), (0, 2)])
    assert np.abs(dist2(logits, jnp.array([4, 0]), DIGITS)).max() < 1e-6


def test_full_support_adds_the_log_of_the_mass():
    logits = jnp.zeros(12).at[10].set(np.log(10)).at[11].set(-1e4)  # half on numbers
    label = jnp.array(4)
    full = dist2(logits, label, DIGITS, support="full")
    assert float(full - dist2(logits, label, DIGITS)) == pytest.approx(
        0.693147, abs=2e-6
    )


def twin(tau, support, vocab, logits, labels, weights):
    ids, values = vocab.token_ids, vocab.values.astype(np.float64)

    def loss(z, label):
        if vocab.row[label] < 0:
            return 0.0
        f = softmax(-((values - values[vocab.row[label]]) ** 2) / tau)
        d = z[ids]
        log_q = d - (logsumexp(d) if support == "numbers" else logsumexp(z))
        kept = f > 0
        return (f[kept] * (np.log(f[kept]) - log_q[kept])).sum()

    return per_position(loss, logits, labels, weights)


@pytest.mark.parametrize("support", ["numbers", "full"])
def test_values_and_gradients_in_float64(support, vocab, batch):
    loss = partial(dist2, tau=2.5, support=support)
    assert_equals_twin(loss, partial(twin, 2.5, support, vocab), batch, vocab)
    with pytest.raises(AssertionError):  # a temperature a thousandth off is seen
        assert_equals_twin(loss, partial(twin, 2.5025, support, vocab), batch, vocab)


def test_temperature_may_be_traced_and_zero(vocab, batch):
    logits, labels, weights = batch
    loss = partial(dist2, logits, labels, vocab, weights=weights, reduction="mean")
    swept = jax.jit(jax.vmap(lambda tau: loss(tau=tau)))(jnp.array([0.0, 1.0, 3.0]))
    np.testing.assert_allclose(swept, [loss(tau=0.0), loss(), loss(tau=3.0)], rtol=1e-6)
    only_numbers = jnp.full_like(logits, -jnp.inf)
    only_numbers = only_numbers.at[..., vocab.token_ids].set(
        logits[..., vocab.token_ids]
    )
    is_number = jnp.asarray(vocab.row)[labels] >= 0
    kept = jnp.where(is_number & (labels != -100), weights, 0.0)
    ce = cross_entropy(only_numbers, labels, weights=kept, reduction="mean")
    assert float(swept[0]) == pytest.approx(float(ce), rel=1e-5)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(0, 2**31), st.floats(0.0, 100.0, width=32))
def test_a_divergence_is_never_negative(seed, tau):
    rng = np.random.default_rng(seed)
    logits = jnp.asarray(rng.normal(size=(10, 12)).astype(np.float32) * 4)
    tau = jnp.asarray(np.float32(tau))
    assert (dist2(logits, jnp.arange(10), DIGITS, tau=tau) >= -1e-6).all()


def test_edges(vocab, batch):
    _, labels, weights = batch
    counted = (labels != -100) & (weights != 0) & (jnp.asarray(vocab.row)[labels] >= 0)
    for support in ("numbers", "full"):
        check_edges(partial(dist2, support=support), vocab, batch, counted)
    check_bfloat16(dist2, vocab, batch)


def test_impossible_options_are_refused(unhooked):
    for options, message in (({"tau": -1.0}, "-1.0"), ({"support": "some"}, "'some'")):
        with pytest.raises(ValueError, match=message):
            dist2(*stacked(), DIGITS, **options)

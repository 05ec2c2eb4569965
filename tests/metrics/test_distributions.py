"""Distributions over number tokens: loops, calibrated and miscalibrated models."""

import itertools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from ntl_jax import NumberVocab, ntl_was, stats_from_logits
from ntl_jax.metrics import number_token_scores

DIGITS = np.arange(10.0)


def _random(seed, n=40, k=10, scale=3.0):
    rng = np.random.default_rng(seed)
    return rng.normal(0, scale, (n, k)), rng.integers(0, k, n), rng.random(n)


@hypothesis.given(st.integers(0, 999), st.integers(1, 30), st.integers(2, 12))
def test_agrees_with_a_loop(seed, n, k):
    logits, labels, weights = _random(seed, n, k)
    weights += 0.1
    values = np.random.default_rng(seed).normal(size=k)
    scores = number_token_scores(logits, labels, weights=weights, values=values)
    q = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    assert scores.n == pytest.approx(weights.sum())

    def mean(x):
        return pytest.approx(np.average(x, weights=weights), rel=1e-9, abs=1e-12)

    assert scores.accuracy == mean([q[i].argmax() == labels[i] for i in range(n)])
    assert scores.mean_log_q == mean([np.log(q[i, labels[i]]) for i in range(n)])
    assert scores.entropy == mean([stats.entropy(q[i]) for i in range(n)])
    distance = [q[i] @ np.abs(values - values[labels[i]]) for i in range(n)]
    assert scores.expected_distance == mean(distance)
    for label in range(k):
        mine = labels == label
        assert scores.counts[label] == pytest.approx(weights[mine].sum())
        if not mine.any():
            assert not scores.mean_by_label[label].any()
            continue
        expected = np.average(q[mine], axis=0, weights=weights[mine])
        np.testing.assert_allclose(scores.mean_by_label[label], expected, rtol=1e-9)
        deviation = np.sqrt(
            np.average((q[mine] - expected) ** 2, axis=0, weights=weights[mine])
        )
        np.testing.assert_allclose(scores.std_by_label[label], deviation, atol=1e-12)


@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_calibration_error_agrees_with_a_loop_over_bins(scale):
    logits, labels, _ = _random(1, 500, 40, scale)
    q = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    for bins in (1, 10, 15):
        expected = 0.0
        edges = np.linspace(0, 1, bins + 1)
        for low, high in itertools.pairwise(edges):
            inside = (q.max(-1) > low) & (q.max(-1) <= high)
            if inside.any():
                right = (q[inside].argmax(-1) == labels[inside]).mean()
                expected += inside.mean() * abs(right - q[inside].max(-1).mean())
        found = number_token_scores(logits, labels, bins=bins).calibration_error
        assert found == pytest.approx(expected)


def test_errors_of_two_bins_do_not_cancel():
    q = np.full((2, 25), 0.04)  # of the first row token 0 is most likely, and right
    q[1], q[1, 3] = 0.91 / 24, 0.09  # most likely, and wrong
    arrays = np.log(q), np.array([0, 5])
    apart = number_token_scores(*arrays, bins=20).calibration_error
    assert apart == pytest.approx(0.5 * 0.96 + 0.5 * 0.09)
    together = number_token_scores(*arrays, bins=10).calibration_error
    assert together == pytest.approx(0.5 * 0.96 - 0.5 * 0.09)


def test_a_model_that_knows_how_sure_it_is_has_no_calibration_error():
    logits, _, _ = _random(2, 40_000, 4, scale=1.5)
    q = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    draw = np.random.default_rng(3).random((len(q), 1))
    labels = (q.cumsum(-1) < draw).sum(-1).clip(0, 3)
    calibrated = number_token_scores(logits, labels)
    assert calibrated.calibration_error < 0.015
    # The expected log-probability of such labels is minus the entropy.
    assert calibrated.mean_log_q == pytest.approx(-calibrated.entropy, abs=0.02)
    for factor in (0.3, 3.0):  # too modest, too sure
        other = number_token_scores(factor * logits, labels)
        assert other.calibration_error > 0.1
        assert other.mean_log_q < calibrated.mean_log_q


def test_golden_values_of_the_distance():
    logits = np.zeros((3, 10))
    logits[1:, :] = 0.01
    logits[1, 4] = logits[2, 9] = 5.0
    for row, label, expected in ((0, 4, 2.5), (0, 0, 4.5), (1, 4, 0.160322)):
        scores = number_token_scores(
            logits[row][None], np.array([label]), values=DIGITS
        )
        assert scores.expected_distance == pytest.approx(expected, abs=1e-6)
    scores = number_token_scores(logits[2:], np.array([4]), values=DIGITS)
    assert scores.expected_distance == pytest.approx(4.839678, abs=1e-6)


def test_distance_is_the_loss():
    mapping = {str(d): d for d in range(10)} | {"a": 10}
    vocab = NumberVocab.from_mapping(mapping, vocab_size=11)
    logits = jax.random.normal(jax.random.key(0), (2, 5, 11))
    labels = jnp.array([[1, 10, 3, 9, 0], [10, 5, 5, 10, 8]])
    number_logits = stats_from_logits(logits, labels, vocab).number_logits
    weights = np.asarray(labels < 10, np.float64).ravel()
    scores = number_token_scores(
        np.asarray(number_logits).reshape(-1, 10),
        np.where(weights > 0, np.asarray(labels).ravel(), 0),
        weights=weights,
        values=vocab.values,
    )
    loss = ntl_was(logits, labels, vocab, reduction="mean")
    assert scores.expected_distance == pytest.approx(float(loss), rel=1e-5)
    assert scores.n == 7


def test_positions_without_weight_may_hold_anything():
    logits, labels, _ = _random(4, 6)
    clean = number_token_scores(logits[:4], labels[:4], values=DIGITS)
    logits[4], logits[5] = np.nan, np.inf
    weights = np.array([1.0] * 4 + [0.0] * 2)
    found = number_token_scores(logits, labels, weights=weights, values=DIGITS)
    for ours, expected in zip(found, clean, strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_probabilities_of_zero_have_no_entropy():
    log_q = np.full((2, 10), -np.inf)
    log_q[:, 3] = 0.0
    scores = number_token_scores(log_q, np.array([3, 3]), values=DIGITS)
    assert (scores.entropy, scores.mean_log_q, scores.accuracy) == (0.0, 0.0, 1.0)
    assert scores.calibration_error == scores.expected_distance == 0.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros((2, 3)), np.zeros(3, int)), r"\(2, 3\) and labels of shape \(3,\)"),
        ((np.zeros((0, 3)), np.zeros(0, int)), "N at least 1"),
        ((np.zeros((2, 3)), np.array([0, 3])), "0 to 3 .* rows of 3"),
        ((np.zeros((2, 3)), np.array([-100, 2])), "-100 to 2"),
    ],
)
def test_impossible_arrays_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        number_token_scores(*arguments)


def test_impossible_options_are_named():
    arrays = np.zeros((2, 3)), np.array([0, 1])
    for weights in (np.ones(3), np.zeros(2), np.array([1.0, -1.0])):
        with pytest.raises(ValueError, match="give 2 that are not negative"):
            number_token_scores(*arrays, weights=weights)
    with pytest.raises(ValueError, match=r"\(2,\) for 3 number tokens"):
        number_token_scores(*arrays, values=np.zeros(2))
    with pytest.raises(ValueError, match="bins must be at least 1, got 0"):
        number_token_scores(*arrays, bins=0)

"""The digit entropy loss: known weights and values, a float64 twin, the edges."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ntl_jax import NumberVocab
from ntl_jax.losses.baselines import digit_entropy
from tests.losses.baselines.checks import (
    CASES,
    DIGITS,
    POINT,
    S_LABELS,
    S_LOGITS,
    TEXT,
    UNIFORM,
    assert_equals_twin,
    check_bfloat16,
    check_edges,
    peak,
    softmax,
    stacked,
)

quick = jax.jit(digit_entropy, static_argnames=("reduction", "paper_compat"))
IDS = {str(d): d for d in range(10)} | {".": POINT, "a": TEXT, "-": TEXT, "_": -100}
WEIGHTS = {
    "7": (2,),
    "347": (6, 4, 2),
    "12.34": (4, 2, 0, 0.961169, 0.942322),
    "0.5": (2, 0, 0.961169),
    "1.2.3": (2, 0, 0.961169, 0, 0.923845),
    "12.": (4, 2, 0),
    ".": (0,),
    ".5": (0, 0.961169),
    ".55": (0, 0.961169, 0.942322),
    "1a23": (2, 0, 4, 2),
    "1_23": (2, 0, 4, 2),
    "-5": (0, 2),
    "a": (0,),
}
PAPER = {".5": (0, 2), ".55": (0, 4, 2), "12.34": WEIGHTS["12.34"], ".": (0,)}


def ids(text: str) -> jnp.ndarray:
    return jnp.array([IDS[c] for c in text])


def padded(texts) -> jnp.ndarray:
    """Labels of texts, a row each, filled up with ignored labels."""
    width = max(map(len, texts))
    return jnp.stack([ids(text.ljust(width, "_")) for text in texts])


@pytest.mark.parametrize("table", [WEIGHTS, PAPER], ids=["default", "paper"])
def test_known_place_weights(table):
    labels = padded(table)
    compat = table is PAPER
    logits = jnp.zeros((*labels.shape, 12))
    values = quick(logits, labels, DIGITS, paper_compat=compat)
    for row, (text, weights) in zip(values, table.items(), strict=True):
        weights_seen = np.asarray(row)[: len(text)] * 10 / np.log(2)
        np.testing.assert_allclose(weights_seen, weights, atol=2e-6, err_msg=text)


def test_known_values_of_one_digit():
    logits, labels = stacked()
    values = quick(logits[:, None], labels[:, None], DIGITS)[:, 0] * 10 / 2
    expected = {"A": 0.693147, "A0": 0.693147, "B": 0.046623}
    expected |= dict.fromkeys(("C3", "C5", "C9"), 4.757979)
    for name, value in zip(CASES, values, strict=True):
        assert float(value) == pytest.approx(expected[name], abs=2e-6)


def test_known_means_of_a_number():
    point = np.zeros((1, 12), np.float32)
    t = [peak(1), peak(2), point[0], peak(3), peak(5)]
    for logits, labels, expected in (
        (S_LOGITS, S_LABELS, 0.960920),
        # The zeros of this case are 0 and not 0.01: the fourth decimal would differ.
        (np.stack(t), ids("12.34"), 0.120202),
    ):
        logits, labels = jnp.asarray(logits), jnp.asarray(labels)
        mean = quick(logits, labels, DIGITS, reduction="mean")
        assert float(mean) == pytest.approx(expected, abs=2e-6)


def test_a_constant_on_the_logits_changes_it():
    for constant, expected in (
        (10.0, 0.577738),
        (100.0, 5.772160),
        (-100.0, 89.516996),
    ):
        logits = jnp.asarray(peak(4))[None] + constant
        value = quick(logits, jnp.array([4]), DIGITS)[0] * 10 / 2
        assert float(value) == pytest.approx(expected, rel=1e-5)


def test_known_gradients():
    def entropy(z):
        return quick(z[None], jnp.array([4]), DIGITS)[0] * 10 / 2

    gradient = jax.grad(entropy)(jnp.asarray(UNIFORM))
    assert float(gradient.sum()) == pytest.approx(0.4, abs=1e-6)
    gradient = jax.grad(entropy)(jnp.asarray(peak(9)))
    assert float(gradient.sum()) == pytest.approx(0.9586, abs=1e-4)
    np.testing.assert_allclose(
        gradient[jnp.array([4, 9])], [-0.0293, 1.1704], atol=1e-4
    )


def test_rows_and_segments_end_a_number():
    labels = jnp.array([[1, 2], [3, 4]])
    weights = quick(jnp.zeros((2, 2, 12)), labels, DIGITS) * 10 / np.log(2)
    np.testing.assert_allclose(weights, [[4, 2], [4, 2]], rtol=1e-6)
    segments = jnp.array([[0, 1], [1, 1]])
    weights = quick(jnp.zeros((2, 2, 12)), labels, DIGITS, segment_ids=segments)
    np.testing.assert_allclose(weights * 10 / np.log(2), [[2, 2], [4, 2]], rtol=1e-6)


def digit_weights(labels, vocab, compat):
    """A loop over each run of a row; 0 where there is no digit."""
    out = np.zeros(labels.shape)
    points = set(vocab.point_ids.tolist())
    for row, weights in zip(labels, out, strict=True):
        t = 0
        while t < len(row):
            end = t
            while end < len(row) and (
                row[end] in points or (row[end] >= 0 and vocab.row[row[end]] >= 0)
            ):
                end += 1
            run = row[t:end].tolist()
            dots = [i for i, token in enumerate(run) if token in points]
            dot = dots[0] if dots and not (compat and dots[0] == 0) else len(run)
            for i, token in enumerate(run):
                e = dot - 1 - i
                if token not in points:
                    weights[t + i] = 2 * (e + 1) if e >= 0 else 1.02**e
            t = end + 1
    return out


def twin(vocab, compat, logits, labels, weights):
    place = digit_weights(labels, vocab, compat)
    d = logits[..., vocab.token_ids]
    label = vocab.row[np.maximum(labels, 0)][..., None] == np.arange(len(vocab))
    b = np.maximum(d, 0) + np.log1p(np.exp(-np.abs(d))) - label * d
    return weights * place * (softmax(d) * b).mean(axis=-1)


@pytest.fixture(scope="module")
def rows():
    labels = padded(("12.34a7", ".55a1.2.3", "8_9.", "aa60"))
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(*labels.shape, 12)).astype(np.float32) * 3
    weights = rng.uniform(0.5, 2.0, size=labels.shape).astype(np.float32)
    weights[0, 1] = 0
    return jnp.asarray(logits), labels, jnp.asarray(weights)


@pytest.mark.parametrize("compat", [False, True])
def test_values_and_gradients_in_float64(compat, rows):
    loss = partial(digit_entropy, paper_compat=compat)
    assert_equals_twin(loss, partial(twin, DIGITS, compat), rows, DIGITS)
    with pytest.raises(AssertionError):  # the other rule for .55 is seen
        assert_equals_twin(loss, partial(twin, DIGITS, not compat), rows, DIGITS)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 2**31), st.booleans())
def test_place_weights_of_any_rows(seed, compat):
    rng = np.random.default_rng(seed)
    kinds = np.array([*range(10), POINT, POINT, POINT, TEXT, -100, -100])
    labels = rng.choice(kinds, size=(len(WEIGHTS), 5)).astype(np.int32)
    logits = jnp.zeros((*labels.shape, 12))
    values = quick(logits, jnp.asarray(labels), DIGITS, paper_compat=compat)
    expected = digit_weights(labels, DIGITS, compat)
    np.testing.assert_allclose(values * 10 / np.log(2), expected, rtol=1e-5)


def test_edges(rows):
    _, labels, weights = rows
    counted = (labels >= 0) & (labels < 10) & (weights != 0)
    check_edges(digit_entropy, DIGITS, rows, counted)
    check_bfloat16(digit_entropy, DIGITS, rows)


def test_tokens_of_several_digits_are_refused(unhooked):
    vocab = NumberVocab.from_mapping(
        {"1": 0, "12": 1, "a": 2}, vocab_size=3, policy="numbers"
    )
    with pytest.raises(ValueError, match=r"token 1 .*12"):
        digit_entropy(jnp.zeros((1, 3)), jnp.array([0]), vocab)

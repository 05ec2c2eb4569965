"""SMMD: known matrices and values, a float64 twin, the edges."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ntl_jax import NumberVocab
from ntl_jax.losses.baselines import smmd, smmd_matrix
from tests.losses.baselines.checks import (
    CASES,
    DIGITS,
    S_LABELS,
    S_LOGITS,
    assert_equals_twin,
    check_bfloat16,
    check_edges,
    per_position,
    softmax,
    stacked,
)

ALPHA = 0.118199451
KNOWN = {  # MMD, smoothness, both
    "A": (0.434620, 3.941968, 0.900559),
    "A0": (0.821689, 2.006624, 1.058871),
    "B": (0.001787, 0.016211, 0.003704),
    "C3": (0.220232, 8.937563, 1.276647),
    "C5": (None, None, 1.290999),
    "C9": (1.768061, 5.781718, 2.451457),
}
MATRICES = {
    "default": {},
    "laplace": {"kernel": "laplace", "sigma": (1.0, 3.0)},
    "wide": {"sigma": 4.0, "alpha": 0.3},
}


def test_known_matrix():
    kernel = smmd_matrix(DIGITS, mode="mmd")
    np.testing.assert_allclose(
        kernel[0],
        [
            *(1, 0.882497, 0.606531, 0.324652, 0.135335),
            *(0.043937, 0.011109, 0.002187, 0.000335, 0.000040),
        ],
        atol=6e-7,
    )
    np.testing.assert_allclose(
        kernel.sum(axis=1)[:5],
        [3.006624, 3.889081, 4.495276, 4.817741, 4.941968],
        rtol=1e-6,
    )
    matrix = smmd_matrix(DIGITS)
    half = [1.465938, 0.778186, 0.534839, 0.286279, 0.119339]
    np.testing.assert_allclose(matrix[4, 4:9], half, atol=1e-6)
    np.testing.assert_allclose(matrix[4, :5], half[::-1], atol=1e-6)
    np.testing.assert_allclose(
        matrix, kernel + smmd_matrix(DIGITS, mode="smooth"), rtol=1e-6
    )
    eigenvalues = np.linalg.eigvalsh(np.asarray(matrix, np.float64))
    np.testing.assert_allclose(eigenvalues[[0, -1]], [0.459, 4.429], atol=6e-4)


def test_known_matrix_of_a_thousand_numbers():
    tokens = {str(i): i for i in range(1000)} | {"a": 1000}
    vocab = NumberVocab.from_mapping(tokens, vocab_size=1001, policy="numbers")
    kernel = smmd_matrix(vocab, mode="mmd")
    np.testing.assert_allclose(
        kernel[0, jnp.array([1, 2, 10, 100])],
        [0.882497, 0.880723, 0.866159, 0.668901],
        atol=6e-7,
    )
    degree = float(kernel.sum(axis=1).mean())
    assert degree == pytest.approx(325.690, abs=1e-3)
    smooth = smmd_matrix(vocab, mode="smooth")
    assert float(smooth[0, 1] / kernel[0, 1]) == pytest.approx(-0.00153520, rel=1e-5)
    plain = smmd_matrix(vocab, mode="mmd", squash=None)
    assert float(plain.sum(axis=1).mean()) == pytest.approx(5.0054, abs=1e-4)
    labels = jnp.array([0, 347, 999])
    values = smmd(jnp.zeros((3, 1001)), labels, vocab)
    assert np.isfinite(values).all() and (values > 0).all()


def test_known_values():
    parts = [
        smmd(*stacked(), DIGITS, matrix=smmd_matrix(DIGITS, mode=mode))
        for mode in ("mmd", "smooth", "smmd")
    ]
    np.testing.assert_allclose(parts[2], smmd(*stacked(), DIGITS), rtol=1e-6)
    for i, name in enumerate(CASES):
        mmd, smooth, both = KNOWN[name]
        assert float(parts[2][i]) == pytest.approx(both, abs=2e-6)
        if mmd is not None:
            assert float(parts[0][i]) == pytest.approx(mmd, abs=2e-6)
            assert float(parts[1][i]) == pytest.approx(ALPHA * smooth, abs=2e-6)
    mean = smmd(jnp.asarray(S_LOGITS), jnp.asarray(S_LABELS), DIGITS, reduction="mean")
    assert mean == pytest.approx(1.290371, abs=2e-6)


def twin(vocab, logits, labels, weights, *, sigma=2.0, alpha="auto", kernel="gaussian"):
    """Of digits, whose squashed distance is the plain one."""
    values = vocab.values.astype(np.float64)
    distance = np.abs(values[:, None] - values[None, :])
    sigmas = sigma if isinstance(sigma, tuple) else (sigma,)
    power = 2 if kernel == "gaussian" else 1
    similar = np.mean([np.exp(-((distance / s) ** power) / power) for s in sigmas], 0)
    degree = np.diag(similar.sum(axis=1))
    if alpha == "auto":
        alpha = 1 / (2 * similar.sum(axis=1).mean())

    def loss(z, label):
        if vocab.row[label] < 0:
            return 0.0
        r = softmax(z[vocab.token_ids]) - (np.arange(len(vocab)) == vocab.row[label])
        return max(r @ similar @ r + alpha * (r @ (degree - similar) @ r), 0.0)

    return per_position(loss, logits, labels, weights)


@pytest.mark.parametrize("name", MATRICES)
def test_values_and_gradients_in_float64(name, vocab, batch):
    options = MATRICES[name]

    def loss(*args, **rest):
        return smmd(*args, matrix=smmd_matrix(vocab, **options), **rest)

    assert_equals_twin(loss, partial(twin, vocab, **options), batch, vocab)
    wrong = options | {"alpha": 0.2}
    with pytest.raises(AssertionError):
        assert_equals_twin(loss, partial(twin, vocab, **wrong), batch, vocab)


def test_options_may_be_traced(vocab, batch):
    logits, labels, _ = batch

    def loss(sigma, squash, alpha):
        matrix = smmd_matrix(vocab, sigma=sigma, squash=squash, alpha=alpha)
        return smmd(logits, labels, vocab, matrix=matrix, reduction="mean")

    options = [(2.0, 9.0, 0.1), (1.0, 3.0, 1.0)]
    swept = jax.jit(jax.vmap(loss))(*jnp.array(options).T)
    np.testing.assert_allclose(swept, [loss(*o) for o in options], rtol=1e-5)
    several = jnp.array([1.0, 2.0])
    np.testing.assert_allclose(
        jax.jit(lambda s: smmd_matrix(vocab, sigma=s))(several),
        smmd_matrix(vocab, sigma=(1.0, 2.0)),
        rtol=1e-6,
    )


def test_a_known_matrix_is_a_constant_of_the_program(vocab):
    program = jax.make_jaxpr(lambda: smmd_matrix(vocab))()
    assert not program.eqns


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(0, 2**31))
def test_it_is_never_negative_whatever_the_matrix(seed):
    rng = np.random.default_rng(seed)
    logits = jnp.asarray(rng.normal(size=(10, 12)).astype(np.float32) * 4)
    half = rng.normal(size=(10, 10)).astype(np.float32)
    for matrix in (None, jnp.asarray(half + half.T)):
        assert (smmd(logits, jnp.arange(10), DIGITS, matrix=matrix) >= 0).all()


def test_edges(vocab, batch):
    _, labels, weights = batch
    counted = (labels != -100) & (weights != 0) & (jnp.asarray(vocab.row)[labels] >= 0)
    for support in ("numbers", "full"):
        check_edges(partial(smmd, support=support), vocab, batch, counted)
    check_bfloat16(smmd, vocab, batch)


def test_impossible_options_are_refused(unhooked):
    for options, message in (
        ({"sigma": 0.0}, "sigma .*0.0"),
        ({"sigma": (1.0, -2.0)}, "-2.0"),
        ({"alpha": -1.0}, "alpha .*-1.0"),
        ({"alpha": "most"}, "'most'"),
        ({"kernel": "box"}, "'box'"),
        ({"mode": "both"}, "'both'"),
    ):
        with pytest.raises(ValueError, match=message):
            smmd_matrix(DIGITS, **options)
    with pytest.raises(ValueError, match=r"\(3, 3\).*10 number"):
        smmd(*stacked(), DIGITS, matrix=jnp.eye(3))

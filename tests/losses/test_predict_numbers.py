"""Expected numbers with their mass, and penalties on them that others wrote."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ntl_jax import (
    ntl_dot_product,
    predict_numbers,
    predict_numbers_from_stats,
    stats_from_logits,
)
from ntl_jax.losses.dot_product import huber
from tests.losses.number_level_cases import VOCAB, VOCABULARY
from tests.losses.number_text import COLUMNS, encode
from tests.parity.loss_cases import HALF_ULP, TOLERANCE

LABELS = encode("a12.5", "90_-7")
LOGITS = np.random.default_rng(5).normal(size=(2, 5, COLUMNS)).astype(np.float32) * 2


def by_hand(logits):
    """(expected number, mass) in float64."""
    powers = np.exp(logits.astype(np.float64))
    numbers = powers[..., VOCAB.token_ids]
    mass = numbers.sum(axis=-1) / powers.sum(axis=-1)
    value = (numbers @ VOCAB.values.astype(np.float64)) / numbers.sum(axis=-1)
    return value, mass


def rounded(pair):
    return tuple(x.astype(np.float32) for x in pair)


def test_predictions_and_their_mass():
    actual = jax.jit(predict_numbers, static_argnums=1)(LOGITS, VOCAB)
    chex.assert_trees_all_close(actual, rounded(by_hand(LOGITS)), rtol=1e-5)
    with pytest.raises(AssertionError):
        chex.assert_trees_all_close(actual, rounded(by_hand(LOGITS * 1.001)), rtol=1e-5)


def test_predictions_are_those_of_ntloss():
    ntloss, torch = pytest.importorskip("ntloss"), pytest.importorskip("torch")
    loss = ntloss.NTLossDotProduct(VOCABULARY, vocab_size=COLUMNS)
    expected = [x.numpy() for x in loss.predict_numbers(torch.tensor(LOGITS))]
    actual = list(predict_numbers(jnp.asarray(LOGITS), VOCAB))
    chex.assert_trees_all_close(actual, expected, rtol=TOLERANCE)


def test_stats_of_any_labels_give_the_same_predictions_as_padded_logits():
    padded = jnp.pad(LOGITS, ((0, 0), (0, 0), (0, 3)), constant_values=50.0)

    @jax.jit
    def both(logits, padded):
        stats = stats_from_logits(logits, LABELS, VOCAB)
        return predict_numbers_from_stats(stats, VOCAB), predict_numbers(padded, VOCAB)

    chex.assert_trees_all_close(*both(LOGITS, padded), rtol=1e-6)


def test_predictions_of_half_precision_and_of_confident_logits():
    half = jnp.asarray(LOGITS).astype(jnp.bfloat16)
    value, mass = predict_numbers(half, VOCAB)
    assert value.dtype == mass.dtype == jnp.float32
    expected = rounded(by_hand(np.asarray(half.astype(jnp.float32))))
    chex.assert_trees_all_close((value, mass), expected, rtol=1e-5)
    sure = jnp.full(COLUMNS, -1e30).at[VOCAB.token_ids[3]].set(1e30)
    value, mass = predict_numbers(sure, VOCAB)
    assert (float(value), float(mass)) == (float(VOCAB.values[3]), 1.0)


def test_predictions_have_gradients():
    def total(logits):
        value, mass = predict_numbers(logits, VOCAB)
        return value.sum() + mass.sum()

    gradient = jax.jit(jax.grad(total))(jnp.asarray(LOGITS))
    step = np.zeros_like(LOGITS, np.float64)
    step[1, 2, VOCAB.token_ids[4]] = 1e-4
    ends = [sum(map(np.sum, by_hand(LOGITS + s))) for s in (step, -step)]
    slope = (ends[0] - ends[1]) / 2e-4
    assert float(gradient[step != 0][0]) == pytest.approx(slope, rel=1e-3)


# name: (JAX penalty, the same in torch, elementwise).
PENALTIES = {
    "optax.squared_error": (
        optax.squared_error,
        lambda torch, x, y: torch.nn.functional.mse_loss(x, y, reduction="none"),
    ),
    "optax.huber_loss": (
        lambda x, y: optax.huber_loss(x, y, delta=2.0),
        lambda torch, x, y: torch.nn.functional.huber_loss(
            x, y, delta=2.0, reduction="none"
        ),
    ),
    "optax.log_cosh": (
        optax.log_cosh,
        lambda torch, x, y: torch.log(torch.cosh(x - y)),
    ),
    "lambda": (
        lambda x, y: (x - y) ** 4 / (1.0 + y),
        lambda torch, x, y: (x - y) ** 4 / (1.0 + y),
    ),
    "pinball": (
        lambda x, y: jnp.maximum(0.3 * (y - x), 0.7 * (x - y)),
        lambda torch, x, y: torch.maximum(0.3 * (y - x), 0.7 * (x - y)),
    ),
}


def in_torch(penalty, logits):
    """(losses [2, 5], gradient of their sum) at the digits, from the formula."""
    torch = pytest.importorskip("torch")
    z = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    labels, ids = np.array(LABELS), torch.tensor(VOCAB.token_ids, dtype=torch.long)
    is_digit = np.isin(labels, VOCAB.token_ids)
    truth = np.where(
        is_digit, VOCAB.values[VOCAB.row[np.where(is_digit, labels, 0)]], 0
    )
    q = torch.softmax(z[..., ids], dim=-1)
    guess = (q * torch.tensor(VOCAB.values, dtype=torch.float64)).sum(dim=-1)
    loss = penalty(torch, guess, torch.tensor(truth, dtype=torch.float64))
    loss = torch.where(torch.tensor(is_digit), loss, 0.0)
    loss.sum().backward()
    return [x.numpy().astype(np.float32) for x in (loss.detach(), z.grad)]


def in_jax(penalty, logits):
    @jax.jit
    def run(logits):
        def loss(z):
            return ntl_dot_product(z, LABELS, VOCAB, penalty=penalty)

        value, pull = jax.vjp(loss, logits)
        return value, pull(jnp.ones_like(value))[0]

    return list(run(jnp.asarray(logits)))


@pytest.mark.parametrize("name", PENALTIES)
def test_penalties_of_others(name):
    ours, theirs = PENALTIES[name]
    expected = in_torch(theirs, LOGITS)
    actual = in_jax(ours, LOGITS)
    chex.assert_trees_all_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["optax.log_cosh", "lambda"])
def test_penalties_of_half_precision_logits(name):
    ours, theirs = PENALTIES[name]
    half = jnp.asarray(LOGITS).astype(jnp.bfloat16)
    value, gradient = in_jax(ours, half)
    assert value.dtype == jnp.float32 and gradient.dtype == jnp.bfloat16
    expected = in_torch(theirs, np.asarray(half.astype(jnp.float32)))
    chex.assert_trees_all_close(value, expected[0], rtol=1e-4, atol=1e-5)
    gradient = gradient.astype(jnp.float32)
    chex.assert_trees_all_close(gradient, expected[1], rtol=HALF_ULP, atol=1e-5)


def test_a_wrong_delta_is_seen():
    theirs = PENALTIES["optax.huber_loss"][1]
    expected = in_torch(theirs, LOGITS)
    for actual, reference in zip(
        in_jax(lambda x, y: huber(x, y, delta=2.01), LOGITS), expected, strict=True
    ):
        with pytest.raises(AssertionError):
            chex.assert_trees_all_close(actual, reference, rtol=1e-4, atol=1e-5)

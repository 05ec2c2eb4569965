"""Values that any correct number token loss has, worked out by hand or in the paper."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax import (
    NumberVocab,
    cross_entropy,
    ntl_dot_product,
    ntl_huber,
    ntl_mae,
    ntl_mse,
    ntl_was,
)
from ntl_jax.losses import softmax as number_softmax

DIGITS = NumberVocab.from_mapping(
    {str(i): i for i in range(10)} | {"a": 10}, vocab_size=11
)
LOSSES = (ntl_was, ntl_mse, ntl_mae, ntl_huber)


def peak(digit: int) -> np.ndarray:
    """Logit 5 on one digit and 0.01 on everything else."""
    logits = np.full(11, 0.01, np.float32)
    logits[digit] = 5.0
    return logits


UNIFORM = np.zeros(11, np.float32)
HALVES = np.where(np.isin(np.arange(11), (0, 8)), 0.0, -1e4).astype(np.float32)
KNOWN = {
    # (logits, label): WAS, MSE, MAE, Huber
    "uniform-4": (UNIFORM, 4, (2.5, 0.25, 0.5, 0.125)),
    "uniform-0": (UNIFORM, 0, (4.5, 20.25, 4.5, 4.0)),
    "0-or-8": (HALVES, 4, (4.0, 0.0, 0.0, 0.0)),
    "right": (peak(4), 4, (0.160322, 0.001028, 0.032064, 0.000514)),
    "below": (peak(3), 4, (1.096193, 0.816867, 0.903807, 0.408434)),
    "above": (peak(5), 4, (1.096193, 0.936899, 0.967936, 0.468450)),
    "far": (peak(9), 4, (4.839678, 22.197486, 4.711421, 4.211421)),
}


@pytest.mark.parametrize("case", KNOWN)
@pytest.mark.parametrize("loss", LOSSES, ids=lambda f: f.__name__)
def test_known_values(case, loss):
    logits, label, expected = KNOWN[case]
    value = loss(jnp.asarray(logits), jnp.asarray(label), DIGITS)
    assert value == pytest.approx(expected[LOSSES.index(loss)], abs=2e-6, rel=1e-6)


@pytest.mark.parametrize("digit", range(10))
def test_the_minimum_over_peaks_is_at_the_label(digit):
    labels = jnp.full(10, digit)
    logits = jnp.asarray(np.stack([peak(d) for d in range(10)]))
    for loss in LOSSES:
        assert int(jnp.argmin(loss(logits, labels, DIGITS))) == digit


@pytest.mark.parametrize(
    ("loss", "worst"),
    [(ntl_was, 9.0), (ntl_mse, 81.0), (ntl_mae, 9.0), (ntl_huber, 8.5)],
)
def test_reweigh_charges_a_hundredth_more_than_the_worst_number(loss, worst):
    all_text = jnp.full(11, -1e4).at[10].set(0.0)
    value = loss(all_text, jnp.asarray(4), DIGITS, reweigh=True)
    assert value == pytest.approx(1.01 * worst, rel=1e-6)
    half = jnp.full(11, -1e4).at[jnp.array([7, 10])].set(0.0)  # 7 or text, one to one
    inside = loss(half, jnp.asarray(4), DIGITS)
    value = loss(half, jnp.asarray(4), DIGITS, reweigh=True)
    assert value == pytest.approx(0.5 * float(inside) + 0.505 * worst, rel=1e-6)


def test_reweigh_of_all_mass_on_numbers_changes_nothing_and_is_never_negative():
    logits = jnp.full(11, -1e4).at[:10].set(jnp.linspace(-3.0, 3.0, 10))
    plain = ntl_was(logits, jnp.asarray(4), DIGITS)
    assert ntl_was(logits, jnp.asarray(4), DIGITS, reweigh=True) == pytest.approx(
        float(plain), rel=1e-6
    )
    assert ntl_was(jnp.asarray(peak(4)) * 20, jnp.asarray(4), DIGITS, reweigh=True) >= 0


def test_full_support_is_the_number_part_of_the_whole_softmax():
    logits = jax.random.normal(jax.random.key(0), (11,))
    p = jax.nn.softmax(logits)[:10]
    digits = jnp.arange(10.0)
    label = jnp.asarray(3)
    was = ntl_was(logits, label, DIGITS, support="full")
    assert was == pytest.approx(float(jnp.sum(p * jnp.abs(digits - 3))), rel=1e-6)
    mse = ntl_mse(logits, label, DIGITS, support="full")
    assert mse == pytest.approx(float((jnp.sum(p * digits) - 3) ** 2), rel=1e-5)
    assert was != pytest.approx(float(ntl_was(logits, label, DIGITS)), rel=1e-2)


def test_cross_entropy_of_a_uniform_guess_is_the_log_of_the_real_vocabulary():
    logits = jnp.zeros((1, 16))
    label = jnp.array([3])
    assert cross_entropy(logits, label)[0] == pytest.approx(np.log(16), rel=1e-6)
    padded = cross_entropy(logits, label, vocab_size=10)
    assert padded[0] == pytest.approx(np.log(10), rel=1e-6)


def test_label_smoothing_and_z_loss():
    logits = jax.random.normal(jax.random.key(1), (3, 11)) * 3
    wide = jnp.concatenate([logits, jnp.full((3, 5), 9.0)], axis=-1)
    labels = jnp.array([1, 10, 4])
    target = 0.9 * jax.nn.one_hot(labels, 11) + 0.1 / 11
    expected = -jnp.sum(target * jax.nn.log_softmax(logits), axis=-1)
    for z, vocab_size in ((logits, None), (wide, 11)):
        smooth = cross_entropy(z, labels, vocab_size=vocab_size, label_smoothing=0.1)
        np.testing.assert_allclose(smooth, expected, rtol=1e-5)
    lse = jax.nn.logsumexp(logits, axis=-1)
    difference = cross_entropy(logits, labels, z_loss=0.01) - cross_entropy(
        logits, labels
    )
    np.testing.assert_allclose(difference, 0.01 * lse**2, rtol=1e-4, atol=1e-6)


def test_dot_product_takes_any_penalty_of_prediction_and_target():
    def relative(prediction, target):
        return jnp.abs(prediction - target) / (1 + target)

    value = ntl_dot_product(
        jnp.zeros((2, 11)), jnp.array([4, 10]), DIGITS, penalty=relative, reweigh=True
    )
    mass, worst = 10 / 11, 9.0  # |9 - 0| / (1 + 0), the larger of the two directions
    assert value[0] == pytest.approx(mass * 0.1 + 1.01 * worst * (1 - mass), rel=1e-5)
    assert value[1] == 0


def test_a_penalty_with_an_infinite_slope_leaves_text_positions_alone():
    def root(prediction, target):
        return jnp.sqrt(jnp.abs(prediction - target))

    gradient = jax.grad(
        lambda z: ntl_dot_product(
            z, jnp.array([10, 4]), DIGITS, penalty=root, reduction="sum"
        )
    )(jnp.zeros((2, 11)))
    assert jnp.isfinite(gradient).all()
    assert not gradient[0].any() and gradient[1].any()


def test_huber_delta():
    logits, label = jnp.asarray(peak(9)), jnp.asarray(4)
    distance = float(ntl_mae(logits, label, DIGITS))
    assert ntl_huber(logits, label, DIGITS, delta=100.0) == pytest.approx(
        0.5 * distance**2, rel=1e-6
    )
    assert ntl_huber(logits, label, DIGITS, delta=0.5) == pytest.approx(
        0.5 * (distance - 0.25), rel=1e-6
    )


def test_one_number_token_is_always_right():
    vocab = NumberVocab.from_mapping({"7": 0, "a": 1}, vocab_size=2)
    for loss in LOSSES:
        value = loss(jnp.zeros((1, 2)), jnp.array([0]), vocab)
        assert value.tolist() == [0.0]


def test_unknown_options_are_named(unhooked):
    logits, labels = jnp.zeros((1, 11)), jnp.array([4])
    with pytest.raises(ValueError, match="'average'"):
        ntl_was(logits, labels, DIGITS, reduction="average")
    with pytest.raises(ValueError, match="'half'"):
        ntl_mse(logits, labels, DIGITS, support="half")
    with pytest.raises(ValueError, match=r"reweigh=True.*support='numbers'"):
        ntl_was(logits, labels, DIGITS, support="full", reweigh=True)
    with pytest.raises(ValueError, match=r"vocab_size=12.*11 columns"):
        cross_entropy(logits, labels, vocab_size=12)
    with pytest.raises(ValueError, match=r"\(2,\).*\(1,\)"):
        ntl_mae(logits, labels, DIGITS, weights=jnp.ones(2))


def test_reweigh_reads_its_constant(monkeypatch):
    all_text = jnp.full(11, -1e4).at[10].set(0.0)
    monkeypatch.setattr(number_softmax, "REWEIGH_FACTOR", 2.0)
    value = ntl_was(all_text, jnp.asarray(4), DIGITS, reweigh=True)
    assert value == pytest.approx(18.0, rel=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda *b: cross_entropy(*b[:2], label_smoothing=2.0),
            "label_smoothing .*2.0",
        ),
        (lambda *b: cross_entropy(*b[:2], z_loss=-1.0), "z_loss .*-1.0"),
        (lambda *b: ntl_huber(*b, delta=0.0), "delta .*0.0"),
    ],
)
def test_impossible_options_are_refused(call, message, vocab, batch):
    with pytest.raises(ValueError, match=message):
        call(*batch[:2], vocab)

"""NTIL: known values, a float64 twin of both forms, the rescaling, the edges."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ntl_jax import NumberVocab, ntl_was
from ntl_jax.losses.baselines import ntil, ntil_total
from tests.losses.baselines.checks import (
    DIGITS,
    S_LABELS,
    S_LOGITS,
    assert_equals_twin,
    check_bfloat16,
    check_edges,
    peak,
    softmax,
)

quick = jax.jit(ntil, static_argnames=("digits", "reduction"))
ONLY = {
    "token": {"relative_weight": 0.0, "magnitude_weight": 0.0},
    "relative": {"token_weight": 0.0, "relative_weight": 1.0, "magnitude_weight": 0.0},
    "magnitude": {"token_weight": 0.0, "relative_weight": 0.0, "magnitude_weight": 1.0},
    "row": {},
}


def spell(labels: str, guesses: str) -> tuple[jax.Array, jax.Array]:
    """Logits with 5 on each guessed digit, zeros elsewhere at "." and its label."""
    ids = {str(d): d for d in range(10)} | {".": 10, "a": 11}
    rows = [peak(int(c)) if c.isdigit() else np.zeros(12, np.float32) for c in guesses]
    return jnp.asarray(np.stack(rows)), jnp.array([ids[c] for c in labels])


@pytest.mark.parametrize(
    ("labels", "guesses", "expected"),
    [
        ("347", "352", (2.147640, 0.014164306, 0.014265577, 2.153326)),
        ("7", "8", (1.134670, 0.111111, 0.117783, 1.180449)),
        ("999", "000", (None, 0.999, 6.907755, 12.151208)),
        ("3.015", "3.015", (None, 0.0, 0.0, 0.258439)),
    ],
)
def test_known_values(labels, guesses, expected):
    batch = spell(labels, guesses)
    for value, options in zip(expected, ONLY.values(), strict=True):
        if value is not None:
            ours = float(quick(*batch, DIGITS, **options))
            assert ours == pytest.approx(value, abs=2e-6)


def test_a_base_of_one_is_the_mean_of_ntl_was():
    batch = jnp.asarray(S_LOGITS), jnp.asarray(S_LABELS), DIGITS
    ours = quick(*batch, place_base=1.0, **ONLY["token"])
    assert float(ours) == pytest.approx(2.049165, abs=2e-6)
    assert float(ours) == pytest.approx(
        float(ntl_was(*batch, reduction="mean")), rel=1e-6
    )


def test_expected_digits_of_a_known_number():
    batch = jnp.asarray(S_LOGITS), jnp.asarray(S_LABELS), DIGITS
    x = 361.458983
    for name, expected in (
        ("relative", (x - 347) / (x + 1)),
        ("magnitude", np.log((x + 1) / 348)),
    ):
        ours = quick(*batch, digits="expected", **ONLY[name])
        assert float(ours) == pytest.approx(expected, abs=2e-6)


def test_the_rescaled_total():
    ce, loss = jnp.array(3.386115), jnp.array(2.153326)
    assert float(ntil_total(ce, loss)) == pytest.approx(4.401949, abs=2e-6)
    by_ce, by_loss = jax.grad(ntil_total, argnums=(0, 1))(ce, loss)
    assert float(by_ce) == 1.0
    assert float(by_loss) == pytest.approx(0.3 * 3.386115 / 2.153326, rel=1e-6)
    twice = ntil_total(jnp.array(2.0), loss, coefficient=jnp.array(0.3))
    assert float(twice) == pytest.approx(2.6, rel=1e-6)
    for extreme in (0.0, 1e30):
        pair = jnp.array(extreme), jnp.array(0.0)
        chex.assert_tree_all_finite(jax.grad(ntil_total, argnums=(0, 1))(*pair))
        assert ntil_total(*pair) == pytest.approx(extreme)


def test_rows_without_digits_count_as_zero_and_empty_rows_not_at_all():
    logits = jnp.zeros((3, 2, 12))
    labels = jnp.array([[4, 11], [11, 11], [-100, -100]])
    alone = quick(logits[0], labels[0], DIGITS)
    rows = quick(logits, labels, DIGITS)
    np.testing.assert_allclose(rows, [alone, 0, 0], rtol=1e-6)
    mean = quick(logits, labels, DIGITS, reduction="mean")
    assert float(mean) == pytest.approx(float(alone) / 2, rel=1e-6)


def test_numbers_of_any_length():
    for labels, guesses in (("9" * 60, "0" * 60), ("0" * 60, "9" * 60)):
        logits, labels = spell(labels, guesses)
        for digits in ("straight_through", "expected"):
            value, gradient = jax.value_and_grad(quick)(
                logits, labels, DIGITS, digits=digits
            )
            chex.assert_tree_all_finite((value, gradient))
            magnitude = quick(
                logits, labels, DIGITS, digits=digits, **ONLY["magnitude"]
            )
            if digits == "straight_through":  # 1e-59 is taken for 1e-30
                assert float(magnitude) == pytest.approx(31 * np.log(10), rel=1e-3)


def row_loss(d, y, w, x, base):
    """The formula on the numbers of a row: lists of runs, each over its digits."""
    token = weight = 0.0
    relative, magnitude, first = [], [], []
    for run in range(len(d)):
        n = len(y[run])
        place = np.arange(n)[::-1]
        q = softmax(d[run])
        distance = (q * np.abs(np.arange(10) - y[run][:, None])).sum(axis=-1)
        token += (w[run] * base**place * distance).sum()
        weight += w[run].sum()
        guess = np.where(w[run] > 0, x[run], y[run]) @ 10.0**place
        truth = y[run] @ 10.0**place
        relative.append(abs(guess - truth) / (max(guess, truth) + 1))
        magnitude.append(abs(np.log((guess + 1) / (truth + 1))))
        first.append(w[run][0])
    if not weight:
        return 0.0
    share = np.array(first) / max(sum(first), 1e-300)  # 0 where no first digit counts
    parts = [(np.array(p) * share).sum() for p in (relative, magnitude)]
    return token / weight + 0.2 * parts[0] + 0.2 * parts[1]


def runs_of(row):
    """Index arrays of the maximal runs of digits."""
    at = [t for t, label in enumerate(row) if 0 <= label < 10]
    return np.split(at, np.flatnonzero(np.diff(at) > 1) + 1) if at else []


def twin(how, start, logits, labels, weights, base=1.2):
    """Losses of rows. ``start`` is where the hard digits are taken, as constants."""
    total = np.zeros(len(labels))
    for i, row in enumerate(labels):
        runs = runs_of(row)
        d = [logits[i, run, :10] for run in runs]
        soft = [softmax(z / 0.1) @ np.arange(10) for z in d]
        if how == "expected":
            x = [softmax(z) @ np.arange(10) for z in d]
        else:
            d0 = [start[i, run, :10] for run in runs]
            soft0 = [softmax(z / 0.1) @ np.arange(10) for z in d0]
            hard = [z.argmax(axis=-1) for z in d0]
            x = [h + s - s0 for h, s, s0 in zip(hard, soft, soft0, strict=True)]
        y = [row[run].astype(float) for run in runs]
        total[i] = row_loss(d, y, [weights[i, run] for run in runs], x, base)
    return total


@pytest.fixture(scope="module")
def rows():
    """Three rows, one with two numbers and one without; close calls between digits."""
    labels = np.array(
        [[3, 4, 7, 10, 0, 5], [11, 9, 1, 11, -100, 2], [11, 11, 10, 11, 11, 11]],
        np.int32,
    )
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(3, 6, 12)).astype(np.float32) * 0.3
    weights = rng.uniform(0.5, 2.0, size=labels.shape).astype(np.float32)
    weights[0, 1] = 0
    return jnp.asarray(logits), jnp.asarray(labels), jnp.asarray(weights)


@pytest.mark.parametrize("how", ["straight_through", "expected"])
def test_values_and_gradients_in_float64(how, rows):
    start = np.asarray(rows[0], np.float64)
    loss = partial(ntil, digits=how)
    assert_equals_twin(loss, partial(twin, how, start), rows, DIGITS)
    with pytest.raises(AssertionError):  # a base a thousandth off is seen
        wrong = partial(twin, how, start, base=1.2012)
        assert_equals_twin(loss, wrong, rows, DIGITS)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 2**31), st.sampled_from(["straight_through", "expected"]))
def test_values_of_any_rows(seed, how):
    rng = np.random.default_rng(seed)
    kinds = np.array([*range(10), 0, 0, 10, 11, -100])
    labels = rng.choice(kinds, size=(3, 6)).astype(np.int32)
    logits = rng.normal(size=(3, 6, 12)).astype(np.float32) * 2
    weights = rng.choice([0.0, 0.5, 1.0, 2.0], size=(3, 6)).astype(np.float32)
    ours = quick(jnp.asarray(logits), labels, DIGITS, digits=how, weights=weights)
    z, w = logits.astype(np.float64), weights.astype(np.float64)
    np.testing.assert_allclose(ours, twin(how, z, z, labels, w), rtol=1e-5, atol=1e-5)


def test_hard_digits_have_no_gradient_but_that_of_close_calls(rows):
    logits, labels, _ = rows
    numbers = partial(quick, labels=labels, vocab=DIGITS, **ONLY["relative"])
    gradient = jax.grad(lambda z, **o: numbers(z, **o).sum())
    assert np.abs(gradient(logits)).max() > 1e-3
    best = logits == logits[..., :10].max(axis=-1, keepdims=True)
    certain = jnp.where(best, 5.0, logits)
    assert np.abs(gradient(certain)).max() < 1e-15
    assert np.abs(gradient(certain, digits="expected")).max() > 1e-4


def test_noise_moves_the_digits_and_nothing_else(rows):
    logits, labels, _ = rows
    key = jax.random.key(3)
    noisy = (
        jnp.asarray(logits).at[..., :10].add(0.5 * jax.random.gumbel(key, (3, 6, 10)))
    )
    ours = quick(logits, labels, DIGITS, key=key, noise=0.5, **ONLY["relative"])
    moved = quick(noisy, labels, DIGITS, **ONLY["relative"])
    np.testing.assert_allclose(ours, moved, rtol=1e-6)
    assert (ours != quick(logits, labels, DIGITS, **ONLY["relative"])).any()
    none = quick(logits, labels, DIGITS, key=key, noise=0.0)
    np.testing.assert_array_equal(none, quick(logits, labels, DIGITS))
    np.testing.assert_array_equal(
        quick(logits, labels, DIGITS, key=key, **ONLY["token"]),
        quick(logits, labels, DIGITS, **ONLY["token"]),
    )


def test_a_sweep_over_its_options_is_a_vmap(rows):
    logits, labels, _ = rows

    def loss(base, relative):
        return quick(
            logits,
            labels,
            DIGITS,
            place_base=base,
            relative_weight=relative,
            reduction="mean",
        )

    swept = jax.jit(jax.vmap(loss))(jnp.array([1.0, 1.5]), jnp.array([0.0, 1.0]))
    np.testing.assert_allclose(swept, [loss(1.0, 0.0), loss(1.5, 1.0)], rtol=1e-6)


def test_segments_end_a_number():
    logits, labels = spell("12", "21")
    joined = quick(logits, labels, DIGITS, **ONLY["relative"])
    parted = quick(
        logits, labels, DIGITS, segment_ids=jnp.array([0, 1]), **ONLY["relative"]
    )
    assert float(joined) == pytest.approx(9 / 22, rel=1e-6)
    assert float(parted) == pytest.approx(1 / 3, rel=1e-6)


@pytest.mark.parametrize("how", ["straight_through", "expected"])
def test_edges(how, rows):
    _, labels, weights = rows
    counted = (labels >= 0) & (labels < 10) & (weights != 0)
    loss = partial(ntil, digits=how)
    check_edges(loss, DIGITS, rows, counted)
    check_bfloat16(loss, DIGITS, rows)


def test_impossible_options_are_refused(unhooked):
    batch = jnp.zeros((1, 12)), jnp.array([4]), DIGITS
    for options, message in (
        ({"digits": "soft"}, "'soft'"),
        ({"digits": "expected", "key": jax.random.key(0)}, "straight_through"),
        ({"temperature": 0.0}, r"temperature .*0.0"),
        ({"place_base": -1.0}, r"place_base .*-1.0"),
    ):
        with pytest.raises(ValueError, match=message):
            ntil(*batch, **options)
    vocab = NumberVocab.from_mapping(
        {"1": 0, "12": 1, "a": 2}, vocab_size=3, policy="numbers"
    )
    with pytest.raises(ValueError, match=r"token 1 .*12"):
        ntil(jnp.zeros((1, 3)), jnp.array([0]), vocab)

"""NTL-WAS over any distance, and exact W1 to any target, against SciPy and PyTorch."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from ntl_jax import NumberVocab, distances, ntl_was, ntl_was_cdf
from ntl_jax.losses import softmax as number_softmax
from ntl_jax.losses import wasserstein

DIGITS = NumberVocab.from_mapping(
    {str(i): i for i in range(10)} | {"a": 10}, vocab_size=11
)
TOLERANCE = 1e-5  # in float32, absolute and relative
SETTINGS = settings(max_examples=60, deadline=None, derandomize=True)
BATCH = 24  # targets a spacing: 60 x 24 = 1440 cases


def vocab_of(values) -> NumberVocab:
    """Number tokens of these values, in this order, after one token of text."""
    worth = {f"n{i}": float(value) for i, value in enumerate(values)}
    tokens = {"text": 0} | {name: i + 1 for i, name in enumerate(worth)}
    return NumberVocab.from_mapping(tokens, vocab_size=len(tokens), policy=worth.get)


def draw(numbers, seed, positions=BATCH):
    """Logits, labels that are numbers, and targets, some of them with zeros."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(positions, numbers + 1)).astype(np.float32) * 3
    labels = rng.integers(1, numbers + 1, size=positions).astype(np.int32)
    target = rng.dirichlet(np.full(numbers, 0.5), size=positions)
    target = np.where(target < 0.05, 0, target) + 1e-3 * (
        target == target.max(-1)[:, None]
    )
    target /= target.sum(-1, keepdims=True)
    return logits, labels, target.astype(np.float32)


def softmax(logits):
    e = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def assert_w1(values, logits, target, *, slip=0.0, **options):
    """That ntl_was_cdf is SciPy's distance, relative to the range of the values."""
    vocab = vocab_of(values)
    labels = jnp.ones(len(logits), jnp.int32)
    actual = ntl_was_cdf(
        jnp.asarray(logits), labels, vocab, target=jnp.asarray(target + slip), **options
    )
    values = vocab.values.astype(np.float64)
    expected = [
        scipy.stats.wasserstein_distance(values, values, q, t)
        for q, t in zip(softmax(logits[:, 1:]), target, strict=True)
    ]
    np.testing.assert_allclose(
        actual, expected, rtol=TOLERANCE, atol=TOLERANCE * np.ptp(values)
    )


@st.composite
def spacings(draw):
    size = draw(st.sampled_from([2, 5, 10]))  # few sizes, to compile little
    eighths = st.lists(st.integers(-5000, 5000), min_size=size, max_size=size)
    return [i / 8 for i in draw(eighths.filter(lambda values: len(set(values)) > 1))]


@SETTINGS
@given(spacings(), st.integers(0, 2**31))
def test_w1_of_any_target_and_any_spacing_is_scipys(values, seed):
    logits, _, target = draw(len(values), seed)
    assert_w1(values, logits, target)


def test_w1_of_a_thousand_numbers_is_scipys():
    values = np.random.default_rng(0).permutation(1000) ** 1.5
    logits, _, target = draw(1000, seed=1, positions=3)
    assert_w1(values, logits, target)
    assert_w1(np.sort(values), logits, target)  # no reordering


def test_wrong_steps_and_wrong_targets_are_seen():
    values = [3.0, 0.0, 7.0, 2.0, 100.0]
    logits, _, target = draw(5, seed=2)
    assert_w1(values, logits, target)
    with pytest.raises(AssertionError):
        assert_w1(values, logits, target, gaps=False)
    with pytest.raises(AssertionError):
        assert_w1(values, logits, target, slip=np.float32(0.001))
    with pytest.raises(AssertionError):
        assert_w1(values, logits, target, support="full")


def peak(digit):
    return np.where(np.arange(11) == digit, 5.0, 0.01).astype(np.float32)


@pytest.mark.parametrize("gaps", [True, False])
def test_known_values_of_digits(gaps):
    halves = np.where(np.isin(np.arange(11), (0, 8)), 0.0, -1e4).astype(np.float32)
    rows = [np.zeros(11, np.float32), np.zeros(11, np.float32), halves]
    rows += [peak(d) for d in (4, 3, 5, 9)]
    labels = jnp.array([4, 0, 4, 4, 4, 4, 4])
    known = [2.5, 4.5, 4.0, 0.160322, 1.096193, 1.096193, 4.839678]
    loss = ntl_was_cdf(jnp.asarray(np.stack(rows)), labels, DIGITS, gaps=gaps)
    np.testing.assert_allclose(loss, known, rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize("values", [[5.0, -1.0, 100.0, 2.5, 2.5], [0.0, 1.0, 2.0]])
def test_a_label_alone_is_ntl_was(values):
    vocab = vocab_of(values)
    logits, labels, _ = map(jnp.asarray, draw(len(values), seed=3))
    over_a_matrix = partial(ntl_was, distance=distances.euclidean(vocab))
    forms = [{}, {"support": "full"}, {"reweigh": True}]

    @jax.jit
    def every(z):
        def totals(z):
            return {
                name: jnp.stack(
                    [loss(z, labels, vocab, reduction="sum", **form) for form in forms]
                )
                for name, loss in losses.items()
            }

        return totals(z), jax.jacrev(totals)(z)

    losses = {"was": ntl_was, "cdf": ntl_was_cdf, "matrix": over_a_matrix}
    for of in every(logits):
        chex.assert_trees_all_close(of["cdf"], of["was"], rtol=1e-4, atol=1e-4)
        chex.assert_trees_all_close(of["matrix"], of["was"], rtol=1e-6, atol=1e-5)


def test_rows_of_a_distance_are_the_true_numbers():
    matrix = np.random.default_rng(0).uniform(0, 5, (3, 3)).astype(np.float32)
    vocab = vocab_of([7.0, 3.0, 5.0])
    logits, labels, _ = draw(3, seed=4)
    loss = ntl_was(
        jnp.asarray(logits), jnp.asarray(labels), vocab, distance=jnp.asarray(matrix)
    )
    expected = (softmax(logits[:, 1:]) * matrix[labels - 1]).sum(-1)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert (
        np.abs((softmax(logits[:, 1:]) * matrix.T[labels - 1]).sum(-1) - loss).max()
        > 0.1
    )


def test_reweigh_charges_the_largest_entry():
    uneven = NumberVocab.from_mapping({"0": 0, "7": 1, "9": 2, "a": 3}, vocab_size=4)
    squashed = distances.squashed(uneven, 3.0)

    @jax.jit
    def reweighed(logits, label):
        options = {"reweigh": True}
        return jnp.stack(
            [
                ntl_was(logits, label, uneven, distance=squashed, **options),
                ntl_was_cdf(logits, label, uneven, **options),
                ntl_was_cdf(logits, label, uneven, gaps=False, **options),
            ]
        )

    all_text = jnp.full(4, -1e4).at[3].set(0.0)
    worst = np.array([3, 9, 2])
    np.testing.assert_allclose(reweighed(all_text, jnp.asarray(1)), 1.01 * worst, 1e-6)


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


def with_gradient(loss, logits):
    """(value, gradient) of the sum of a loss over positions, each times another."""
    weights = jnp.linspace(0.5, 1.5, logits.shape[0])
    values = loss(logits)
    return values, jax.grad(lambda z: jnp.sum(loss(z) * weights))(logits)


def torch_cdf(torch, logits, target, vocab, *, gaps, reweigh):
    """W1 by cumulative distributions, in float64, from the formula."""
    z = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    order = np.argsort(vocab.values, kind="stable")
    columns = torch.tensor(vocab.token_ids[order].astype(np.int64))
    q = torch.softmax(z[:, columns], -1)
    t = torch.tensor(target.astype(np.float64)[:, order])
    t = t / t.sum(-1, keepdim=True)
    steps = np.diff(vocab.values[order].astype(np.float64))
    steps = torch.tensor(steps if gaps else np.ones_like(steps))
    difference = torch.cumsum(q, -1) - torch.cumsum(t, -1)
    loss = (difference[:, :-1].abs() * steps).sum(-1)
    if reweigh:
        mass = torch.softmax(z, -1)[:, columns].sum(-1)
        loss = mass * loss + 1.01 * steps.sum() * (1 - mass)
    weights = torch.linspace(0.5, 1.5, len(logits), dtype=torch.float64)
    (loss * weights).sum().backward()
    return loss.detach().numpy(), z.grad.numpy()


@pytest.mark.parametrize("gaps", [True, False])
@pytest.mark.parametrize("reweigh", [False, True])
def test_cdf_against_torch_in_float64(torch, gaps, reweigh):
    vocab = vocab_of([2.5, 10.0, -3.0, 7.0, 7.0, 0.0])
    logits, labels, target = draw(6, seed=5)
    labels = jnp.asarray(labels)

    @jax.jit
    def ours(logits, target):
        return with_gradient(
            lambda z: ntl_was_cdf(
                z, labels, vocab, target=target, gaps=gaps, reweigh=reweigh
            ),
            logits,
        )

    expected = torch_cdf(torch, logits, target, vocab, gaps=gaps, reweigh=reweigh)
    actual = ours(logits, 3 * target)  # any row sums
    chex.assert_trees_all_close(actual, expected, rtol=TOLERANCE, atol=TOLERANCE)
    for slip in ((logits * 1.001, target), (logits, target + 0.001)):
        for wrong, right in zip(ours(*slip), expected, strict=True):
            with pytest.raises(AssertionError):
                chex.assert_trees_all_close(
                    wrong, right, rtol=TOLERANCE, atol=TOLERANCE
                )


class Tokenizer:
    """What ntloss asks of a tokenizer that has all digits."""

    def get_vocab(self):
        return {str(i): i for i in range(10)} | {"a": 10}

    def add_tokens(self, tokens):
        assert set(tokens) <= set(self.get_vocab())

    def __len__(self):
        return 11


def ntloss_squashed(torch, logits, labels, factor, reweigh):
    """(value, gradient) of ntloss 0.3.2, in float32."""
    ntloss = pytest.importorskip("ntloss")
    loss = ntloss.NTLoss(
        Tokenizer(), vocab_size=11, squash_factor=factor, reweigh=reweigh
    )
    z = torch.tensor(logits[None], requires_grad=True)
    y = torch.tensor(np.asarray(labels)[None], dtype=torch.long)
    value = loss(z, y, reduction="none")
    value.backward(torch.linspace(0.5, 1.5, len(logits))[None])
    return value.detach().numpy()[0], z.grad.numpy()[0]


@pytest.mark.parametrize("reweigh", [False, True])
def test_squashed_distances_against_ntloss(torch, reweigh):
    rng = np.random.default_rng(6)
    logits = rng.normal(size=(12, 11)).astype(np.float32) * 3
    labels = jnp.asarray(np.r_[np.arange(10), 10, -100].astype(np.int32))

    @jax.jit
    def ours(factor):
        matrix = distances.squashed(DIGITS, factor)
        return with_gradient(
            lambda z: ntl_was(z, labels, DIGITS, distance=matrix, reweigh=reweigh),
            jnp.asarray(logits),
        )

    for factor in (1.5, 2.0, 3.0, 9.0, 20.0):
        expected = ntloss_squashed(torch, logits, labels, factor, reweigh)
        actual = ours(jnp.float32(factor))
        chex.assert_trees_all_close(actual, expected, rtol=TOLERANCE, atol=TOLERANCE)
        for wrong, right in zip(
            ours(jnp.float32(factor * 1.01)), expected, strict=True
        ):
            with pytest.raises(AssertionError):
                chex.assert_trees_all_close(
                    wrong, right, rtol=TOLERANCE, atol=TOLERANCE
                )


def test_a_wrong_reweighing_constant_is_seen(torch, monkeypatch):
    logits, labels = np.zeros((1, 11), np.float32), np.array([4], np.int32)
    expected = ntloss_squashed(torch, logits, labels, 2.0, True)[0]
    matrix = distances.squashed(DIGITS, 2.0)

    def ours():
        return ntl_was(
            jnp.asarray(logits),
            jnp.asarray(labels),
            DIGITS,
            distance=matrix,
            reweigh=True,
        )

    np.testing.assert_allclose(ours(), expected, rtol=TOLERANCE)
    monkeypatch.setattr(number_softmax, "REWEIGH_FACTOR", 1.0)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(ours(), expected, rtol=TOLERANCE)


def test_full_support_is_the_mass_times_the_distance():
    logits, labels, target = map(jnp.asarray, draw(5, seed=7))
    vocab = vocab_of([0.0, 2.0, 3.0, 9.0, 4.0])
    mass = jax.nn.softmax(logits)[:, 1:].sum(-1)
    inside = ntl_was_cdf(logits, labels, vocab, target=target)
    full = ntl_was_cdf(logits, labels, vocab, target=target, support="full")
    np.testing.assert_allclose(full, mass * inside, rtol=1e-5, atol=1e-6)


def test_both_ways_to_sum_in_order_agree(monkeypatch):
    x = jax.random.normal(jax.random.key(0), (4, 6))
    vocab = vocab_of([3.0, 1.0, 2.0, 9.0, 1.0, 0.0])
    pairs = wasserstein._sums_in_order(x, vocab)
    monkeypatch.setattr(wasserstein, "_FEW_NUMBERS", 0)
    scanned = wasserstein._sums_in_order(x, vocab)
    np.testing.assert_allclose(pairs, scanned, rtol=1e-6, atol=1e-6)

"""ntloss's classes: signatures, errors and what differs on purpose.

Values and gradients are compared over a grid in tests/parity.
"""

import inspect

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax import NumberVocab, compat, ntl_was
from ntl_jax.compat import NTLoss, NTLossDotProduct, NumberLevelLoss
from ntl_jax.losses.dot_product import absolute
from tests.parity.loss_cases import DIGITS, IRREGULAR, TOLERANCE

CLASSES = ("NTLoss", "NTLossDotProduct", "NumberLevelLoss")
V = DIGITS.vocab_size
LABELS = np.array([[5, 7, 15, 9, 1, -100], [0, 4, 4, 13, 2, 10]])  # 12.3a_, 5bbc07


@pytest.fixture(scope="module")
def logits():
    return np.random.default_rng(0).normal(size=(2, 6, V)).astype(np.float32)


@pytest.fixture(params=CLASSES)
def loss(request):
    return getattr(compat, request.param)(DIGITS, vocab_size=V)


def parameters(function):
    return [(p.name, p.default, p.kind) for p in signature(function)]


def signature(function):
    return inspect.signature(function).parameters.values()


@pytest.mark.parametrize("name", CLASSES)
def test_signatures_are_those_of_ntloss(name):
    ntloss = pytest.importorskip("ntloss")
    mine, original = getattr(compat, name), getattr(ntloss, name)
    assert parameters(mine.forward) == parameters(original.forward)
    assert parameters(mine.__call__)[1:] == parameters(original.forward)[1:]
    of_mine, of_original = parameters(mine), parameters(original)
    if name == "NTLossDotProduct":  # the default is a function of another library
        assert of_mine.pop()[0] == of_original.pop()[0] == "loss_function"
    assert of_mine == of_original


WRONG = {
    "two dimensions": {"logits": np.zeros((6, V), np.float32)},
    "no batch": {
        "logits": np.zeros((0, 6, V), np.float32),
        "labels": np.zeros((0, 6), np.int64),
    },
    "integer logits": {"logits": np.zeros((2, 6, V), np.int32)},
    "floating labels": {"labels": LABELS.astype(np.float32)},
    "boolean labels": {"labels": LABELS > 0},
    "short labels": {"labels": LABELS[:, 1:]},
    "labels of one row": {"labels": LABELS[0]},
    "a label too high": {"labels": np.where(LABELS == 13, V, LABELS)},
    "too many columns": {"logits": np.zeros((2, 6, V + 1), np.float32)},
    "too few columns": {"logits": np.zeros((2, 6, V - 1), np.float32)},
    "one weight a row": {"loss_weights": np.ones(2, np.float32)},
    "a negative weight": {"loss_weights": np.where(LABELS == 7, -1, 1)},
    "an unknown reduction": {"reduction": "max"},
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("name", CLASSES)
def test_wrong_calls_raise_what_ntloss_raises(name, change, logits):
    ntloss, torch = pytest.importorskip("ntloss"), pytest.importorskip("torch")
    call = {"logits": logits, "labels": LABELS} | change
    tensors = {
        key: torch.tensor(value) if isinstance(value, np.ndarray) else value
        for key, value in call.items()
    }
    original = getattr(ntloss, name)(DIGITS, vocab_size=V)
    with pytest.raises((TypeError, ValueError, IndexError)) as expected:
        original(**tensors)
    with pytest.raises(expected.type):
        getattr(compat, name)(DIGITS, vocab_size=V)(**call)


def test_errors_name_the_numbers_and_the_remedy(logits):
    loss = NTLoss(DIGITS, vocab_size=V)
    with pytest.raises(ValueError, match=r"18 columns.*17.*Give vocab_size=18"):
        loss(np.zeros((2, 6, 18), np.float32), LABELS)
    with pytest.raises(IndexError, match=r"label 17 is outside .* 17 tokens"):
        loss(logits, np.where(LABELS == 13, V, LABELS))
    with pytest.raises(IndexError, match=r"label -100 .* ignore_index=4"):
        loss(logits, LABELS, ignore_index=4)
    with pytest.raises(ValueError, match=r"the least is -2\.0"):
        loss(logits, LABELS, np.where(LABELS == 5, -2.0, 1.0))
    with pytest.raises(ValueError, match="squash_factor must be above 1, not 1"):
        NTLoss(DIGITS, vocab_size=V, squash_factor=1)


def test_tensors_of_another_library_are_refused(logits):
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="JAX or NumPy array, not Tensor"):
        NTLoss(DIGITS, vocab_size=V)(torch.tensor(logits), LABELS)


class Tokenizer:
    """Digits but for those that are missing; counts how often it is asked to grow."""

    def __init__(self, missing=""):
        tokens = ["<pad>", "a", *(d for d in "0123456789" if d not in missing)]
        self.vocab = {token: i for i, token in enumerate(tokens)}
        self.asked = 0

    def __len__(self):
        return len(self.vocab)

    def get_vocab(self):
        return dict(self.vocab)

    def add_tokens(self, tokens):
        self.asked += 1


@pytest.mark.parametrize("name", CLASSES)
def test_the_tokenizer_is_never_changed(name):
    tokenizer = Tokenizer()
    loss = getattr(compat, name)(tokenizer)
    assert loss.vocab_size == 12 and tokenizer.asked == 0
    lacking = Tokenizer(missing="37")
    with pytest.raises(ValueError, match="no token for 3, 7"):
        getattr(compat, name)(lacking)
    assert lacking.asked == 0


def test_numbers_are_those_of_ntloss():
    ntloss = pytest.importorskip("ntloss")
    for tokenizer, digit_level in ((DIGITS, True), (DIGITS, False), (IRREGULAR, False)):
        options = {"vocab_size": tokenizer.vocab_size, "digit_level": digit_level}
        mine, original = (
            NTLoss(tokenizer, **options),
            ntloss.NTLoss(tokenizer, **options),
        )
        for name in ("is_number_token", "number_token_ids", "number_values_dense"):
            expected = getattr(original, name).numpy()
            np.testing.assert_array_equal(getattr(mine, name), expected)


def test_reweigh_is_on_by_default(logits):
    loss = NTLoss(DIGITS, vocab_size=V)
    batch = jnp.asarray(logits), jnp.asarray(LABELS)
    expected = ntl_was(*batch, loss.numbers, reduction="mean", reweigh=True)
    chex.assert_trees_all_equal(loss(logits, LABELS), expected)
    plain = NTLoss(DIGITS, vocab_size=V, reweigh=False)(logits, LABELS)
    assert abs(plain - expected) > 0.1


def test_under_jit_vmap_and_grad(loss, logits):
    eager = loss(logits, LABELS, reduction="none")
    assert eager.shape == LABELS.shape and eager.dtype == jnp.float32

    def tokens(z, y):
        return loss(z, y, reduction="none")

    def row(z, y):
        return loss(z[None], y[None], reduction="none")[0]

    batch = jnp.asarray(logits), jnp.asarray(LABELS)
    chex.assert_trees_all_close(jax.jit(tokens)(*batch), eager, rtol=1e-6, atol=1e-6)
    rows = jax.jit(jax.vmap(row))(*batch)
    chex.assert_trees_all_close(rows, eager, rtol=1e-5, atol=1e-6)
    gradient = jax.jit(jax.grad(loss))(*batch)
    assert gradient.any() and bool(jnp.isfinite(gradient).all())


@pytest.mark.parametrize("width", [np.int16, np.int32, np.int64, np.uint8])
def test_labels_of_any_width(loss, logits, width):
    labels = np.where(LABELS < 0, 4, LABELS)
    expected = loss(logits, labels)
    assert loss(logits, labels.astype(width)) == expected
    assert loss(jnp.asarray(logits), jnp.asarray(labels.astype(width))) == expected


def test_weights_of_any_kind(loss, logits):
    weights = (LABELS != 9).astype(int)
    expected = loss(logits, LABELS, weights.astype(np.float32))
    assert loss(logits, LABELS, weights) == expected
    assert loss(logits, LABELS, weights > 0) == expected
    assert loss(jnp.asarray(logits), jnp.asarray(LABELS), weights > 0) == expected
    assert loss(logits, LABELS) != expected


@pytest.mark.parametrize("empty", ["no numbers", "no weight"])
def test_an_empty_batch_is_a_zero_that_can_be_differentiated(loss, logits, empty):
    labels = LABELS if empty == "no weight" else np.full_like(LABELS, 4)
    weights = np.zeros(LABELS.shape, np.float32) if empty == "no weight" else None
    for reduction in ("mean", "sum"):
        value, gradient = jax.value_and_grad(loss)(logits, labels, weights, reduction)
        assert value == 0 and not gradient.any()
    assert not loss(logits, labels, weights, "none").any()


def test_bfloat16_logits_give_float32(loss, logits):
    half = jnp.asarray(logits, jnp.bfloat16)
    value, gradient = jax.value_and_grad(loss)(half, LABELS)
    assert value.dtype == jnp.float32 and gradient.dtype == jnp.bfloat16


@pytest.mark.parametrize("digit_level", [True, False])
def test_predicted_numbers(digit_level):
    ntloss, torch = pytest.importorskip("ntloss"), pytest.importorskip("torch")
    tokenizer = DIGITS if digit_level else IRREGULAR
    columns = tokenizer.vocab_size
    logits = np.random.default_rng(1).normal(size=(2, 3, columns)).astype(np.float32)
    options = {"vocab_size": columns, "digit_level": digit_level}
    mine = NTLossDotProduct(tokenizer, **options)
    original = ntloss.NTLossDotProduct(tokenizer, **options)
    expected = [x.numpy() for x in original.predict_numbers(torch.tensor(logits))]
    number, mass = mine.predict_numbers(logits)
    chex.assert_trees_all_close(
        [number, mass], expected, rtol=TOLERANCE, atol=TOLERANCE
    )
    with pytest.raises(AssertionError):  # another temperature
        chex.assert_trees_all_close(
            [*mine.predict_numbers(logits * 0.99)],
            expected,
            rtol=TOLERANCE,
            atol=TOLERANCE,
        )
    with pytest.raises(ValueError, match="columns"):
        mine.predict_numbers(logits[..., 1:])


def test_a_loss_function_of_ones_own(logits):
    ntloss, torch = pytest.importorskip("ntloss"), pytest.importorskip("torch")
    # Steeper above than below, so that the worst pair depends on its direction.
    original = ntloss.NTLossDotProduct(
        DIGITS,
        V,
        loss_function=lambda x, y, reduction="none": torch.expm1((x - y) / 4) ** 2,
    )
    mine = NTLossDotProduct(
        DIGITS, V, loss_function=lambda x, y: jnp.expm1((x - y) / 4) ** 2
    )
    expected = original(torch.tensor(logits), torch.tensor(LABELS)).item()
    assert float(mine(logits, LABELS)) == pytest.approx(expected, rel=1e-5)


def test_the_gradient_of_a_right_prediction_is_that_of_ntloss():
    """Half the mass on 0 and half on 8 is a 4, at the kink of the absolute value."""
    ntloss, torch = pytest.importorskip("ntloss"), pytest.importorskip("torch")
    logits = np.full((1, 1, V), -1e4, np.float32)
    logits[..., [DIGITS.ids["0"], DIGITS.ids["8"]]] = 0
    labels = np.array([[DIGITS.ids["4"]]])
    z = torch.tensor(logits, requires_grad=True)
    original = ntloss.NTLossDotProduct(
        DIGITS, V, loss_function=torch.nn.functional.l1_loss
    )
    original(z, torch.tensor(labels)).backward()
    mine = NTLossDotProduct(DIGITS, V, loss_function=absolute)
    value, gradient = jax.value_and_grad(mine)(logits, labels)
    assert value == 0 and not z.grad.any() and not gradient.any()


def test_only_a_bare_point_joins_digits(logits):
    tokens = DIGITS.get_vocab() | {"▁.": 16}
    marked = np.where(np.equal(LABELS, DIGITS.ids["."]), 16, LABELS)

    class Marked(Tokenizer):
        def get_vocab(self):
            return dict(tokens)

    joined, apart = (
        NumberLevelLoss(Marked(), V, float_level=True)(logits, labels, None, "none")
        for labels in (LABELS, marked)
    )
    assert (np.asarray(joined[0]) != 0).sum() == 1
    assert (np.asarray(apart[0]) != 0).sum() == 2


def test_points_that_no_token_is_cannot_join_digits():
    tokens = {k: v for k, v in DIGITS.get_vocab().items() if k != "."}

    class Pointless(Tokenizer):
        def get_vocab(self):
            return dict(tokens)

    with pytest.raises(ValueError, match="no such token"):
        NumberLevelLoss(Pointless(), V, float_level=True)
    NumberLevelLoss(Pointless(), V)


def test_the_vocabulary_serves_the_functions(logits):
    loss = NTLoss(DIGITS, vocab_size=V)
    same = NumberVocab.from_mapping(DIGITS.get_vocab(), vocab_size=V)
    assert loss.numbers == same

"""Weights by place: the forms by hand, their mean, and a loss that takes them."""

from functools import cache, partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ntl_jax import digit_weights, ntl_was, number_spans
from tests.losses.number_text import COLUMNS, VOCAB, encode

WIDTH = 16


@cache
def compiled(**options):
    find = partial(digit_weights, vocab=VOCAB, **options)
    return jax.jit(lambda labels, base: find(labels, base=base))


def weights_of(text, base=2.0, **options):
    """The weights of one text, with a base that is traced."""
    weights = compiled(**options)(encode(text, width=WIDTH), jnp.float32(base))
    assert weights.dtype == jnp.float32
    return np.asarray(weights)[0, : len(text)].tolist()


def test_geometric():
    assert weights_of("a347a7") == [1, 4, 2, 1, 1, 1]
    assert weights_of("12.34") == [8, 4, 1, 2, 1]
    assert weights_of("12.34", points="never") == [2, 1, 1, 2, 1]
    assert weights_of("1,234") == [1, 1, 4, 2, 1]
    assert weights_of("1,234", commas=True) == [8, 1, 4, 2, 1]
    assert weights_of("347", base=1.2) == pytest.approx([1.44, 1.2, 1])  # NTIL's
    assert weights_of("347", base=0.5) == [0.25, 0.5, 1]
    assert weights_of("3_47") == [1, 1, 2, 1]


def test_linear():
    assert weights_of("a3470", form="linear") == [1, 4, 3, 2, 1]
    assert weights_of("3.47", form="linear", base=3.0) == [5, 1, 3, 1]


def test_segments_end_a_number():
    segments = jnp.array([[0, 0, 1, 1]])
    weights = jax.jit(
        lambda labels: digit_weights(labels, VOCAB, base=2.0, segment_ids=segments)
    )(encode("3471"))
    assert weights.tolist() == [[2, 1, 2, 1]]


FORMS = st.sampled_from(["geometric", "linear"])


@settings(max_examples=100, deadline=None)
@given(st.text("0123456789.a", max_size=WIDTH), st.floats(1, 15), FORMS)
def test_a_mean_of_one_in_every_number(text, base, form):
    plain = np.array(weights_of(text, base, form=form))
    scaled = np.array(weights_of(text, base, form=form, normalise=True))
    runs = np.asarray(compiled_runs(encode(text, width=WIDTH)))[0, : len(text)]
    for run in set(runs) - {-1}:
        mean = plain[runs == run].mean()
        np.testing.assert_allclose(scaled[runs == run], plain[runs == run] / mean, 1e-5)
    assert (scaled[runs == -1] == 1).all() and (plain[runs == -1] == 1).all()


@jax.jit
def compiled_runs(labels):
    """The run of each digit, -1 elsewhere."""
    spans = number_spans(labels, VOCAB)
    return jnp.where(spans.digit, spans.run, -1)


@pytest.mark.parametrize("base", [0.01, 0.5, 1.0, 1.0 + 1e-6, 1.2, 10.0])
def test_long_numbers_stay_finite(base):
    labels = encode("9" * 500)
    plain, scaled = (
        compiled(normalise=normalise)(labels, jnp.float32(base))
        for normalise in (False, True)
    )
    chex.assert_tree_all_finite((plain, scaled))
    assert float(plain.min()) >= 0 and float(plain.max()) <= 1.01e18
    assert float(scaled.mean()) == pytest.approx(1, rel=1e-4)


def test_a_loss_counts_leading_digits_more():
    labels = encode("347")
    logits = jnp.zeros((1, 3, COLUMNS))

    @jax.jit
    def losses(logits):
        weights = digit_weights(labels, VOCAB, base=2.0)
        plain = ntl_was(logits, labels, VOCAB)
        return plain, ntl_was(logits, labels, VOCAB, weights=weights, reduction="mean")

    plain, mean = losses(logits)
    assert float(mean) == pytest.approx(float(plain[0] @ jnp.array([4.0, 2, 1])) / 7)
    assert float(mean) != pytest.approx(float(plain.mean()))


def test_a_base_can_be_learnt():
    labels = encode("347", width=WIDTH)
    for normalise, expected in ((False, 2 * 2.0 + 1), (True, 0.0)):
        weigh = compiled(normalise=normalise)
        slope = jax.grad(lambda base, f=weigh: f(labels, base).sum())(2.0)
        assert float(slope) == pytest.approx(expected, abs=1e-5)
    slope = jax.grad(
        lambda base: compiled(form="linear", normalise=True)(labels, base).sum()
    )(3.0)
    assert float(slope) == pytest.approx(0, abs=1e-5)
    # At 1 the closed form of the sum is 0 / 0; the weight is 3 b^2 / (b^2 + b + 1).
    slope = jax.grad(lambda base: compiled(normalise=True)(labels, base)[0, 0])(1.0)
    assert float(slope) == pytest.approx(1.0, rel=1e-4)


def test_impossible_options_are_named(unhooked):
    labels = encode("1")
    with pytest.raises(ValueError, match="'square'"):
        digit_weights(labels, VOCAB, form="square")
    with pytest.raises(ValueError, match=r"-1\.0"):
        digit_weights(labels, VOCAB, base=-1.0)
    with pytest.raises(ValueError, match=r"0\.5"):
        digit_weights(labels, VOCAB, form="linear", base=0.5)

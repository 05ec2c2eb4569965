"""Sums over the digits of a number, by a loop, in rows longer than their reach."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax import NumberVocab
from ntl_jax.losses import number_spans
from ntl_jax.losses.span_sums import broadcast_first_digit, span_sum

DIGITS = NumberVocab.from_mapping(
    {str(d): d for d in range(10)} | {"a": 10}, vocab_size=11
)
REACH = 5
# Runs of up to 5 digits that begin at every place of a block of 5.
ROWS = [
    "".join(f"{'7' * n}a" for n in order)
    for order in ((5, 5, 5, 5, 5), (1, 5, 4, 5, 5, 3))
]
LABELS = jnp.array([[10 if c == "a" else int(c) for c in row[:28]] for row in ROWS])


def looped(x, spans):
    sums = np.zeros_like(x)
    for row, head in zip(*np.nonzero(np.asarray(spans.first)), strict=True):
        here = np.asarray(spans.run[row]) == np.asarray(spans.run[row, head])
        sums[row, head] = x[row, here & np.asarray(spans.digit[row])].sum()
    return sums


def sums_and_gradient(x, spans, reach):
    values, pull = jax.vjp(lambda x: span_sum(x, spans, reach=reach), x)
    (gradient,) = pull(x)  # any cotangent
    return values, gradient


@pytest.mark.parametrize("reach", [None, REACH, 9])
def test_every_digit_within_reach_counts(reach):
    spans = number_spans(LABELS, DIGITS)
    x = np.random.default_rng(0).normal(size=LABELS.shape).astype(np.float32)
    values, gradient = sums_and_gradient(jnp.asarray(x), spans, reach)
    np.testing.assert_allclose(values, looped(x, spans), rtol=1e-5, atol=1e-6)
    head = np.take_along_axis(x, np.asarray(spans.head).clip(0, 27), axis=-1)
    np.testing.assert_array_equal(gradient, np.where(spans.digit, head, 0))


def test_too_short_a_reach_is_seen():
    spans = number_spans(LABELS, DIGITS)
    x = jnp.ones(LABELS.shape)
    assert (span_sum(x, spans, reach=2) != span_sum(x, spans)).any()


def test_a_flag_of_the_first_digit_is_that_of_all():
    spans = number_spans(LABELS[0, :12], DIGITS)
    flag = jnp.arange(12) == 6
    chex.assert_trees_all_equal(
        broadcast_first_digit(flag, spans), (jnp.arange(12) // 6 == 1) & spans.digit
    )

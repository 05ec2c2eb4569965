"""The fused head against the dense path: values, gradients, masks, memory, errors."""

import dataclasses
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax import NumberStats, NumberVocab, stats_from_hidden, stats_from_logits
from tests.losses.fused_cases import (
    VOCAB,
    Case,
    assert_close,
    dense_logits,
    dense_stats,
    random_cotangent,
)

BOTH = pytest.mark.parametrize("backward", ["tokens", "columns"])
CASES = [
    Case(),
    Case(backward="columns"),
    Case(shape=(13,), tile_tokens=4),  # a prime length, with a last tile to fill up
    Case(shape=(13,), tile_tokens=4, backward="columns"),
    Case(shape=(3, 5), tile_tokens=1, logit_scale=1.0),  # one position of each row
    Case(shape=(3, 5), tile_tokens=1000, bias=False),  # one tile
    Case(shape=(3, 5), tile_tokens=1000, bias=False, backward="columns"),
    Case(shape=(2, 2, 3), tile_tokens=8, soft_cap=None),
    Case(shape=(2, 2, 3), tile_tokens=8, soft_cap=None, backward="columns"),
    Case(shape=()),
]
BFLOAT16 = 2.0**-7  # its rounding twice, relative to the largest entry


def fused_stats(case, head, labels, **options):
    hidden, kernel, bias = head
    options = case.options | case.tiling | options
    return stats_from_hidden(hidden, kernel, labels, VOCAB, bias=bias, **options)


@partial(jax.jit, static_argnums=(0, 1))
def pulled(stats_of, case, head, labels, cotangent, **options):
    """The stats, and the gradients of hidden, kernel and bias."""
    stats, pull = jax.vjp(lambda head: stats_of(case, head, labels, **options), head)
    return stats, pull(cotangent)[0]


def reference(case, head, labels, **options):
    return dense_stats(head, labels, **(case.options | options))


def zero_cotangent(shape) -> NumberStats:
    flat = jnp.zeros(shape, jnp.float32)
    numbers = jnp.zeros((*shape, len(VOCAB)), jnp.float32)
    return NumberStats(flat, flat, numbers, flat, flat)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients_of_any_cotangent_equal_the_dense_path(case):
    head, labels = case.head(), case.labels()
    cotangent = random_cotangent(zero_cotangent(case.shape))
    actual = pulled(fused_stats, case, head, labels, cotangent)
    expected = pulled(reference, case, head, labels, cotangent)
    assert_close(actual, expected)
    for field in NumberStats._fields[:-1]:  # and the comparison sees all but top
        changed = cotangent._replace(**{field: getattr(cotangent, field) * 1.01})
        with pytest.raises(AssertionError):
            assert_close(actual, pulled(reference, case, head, labels, changed))


@BOTH
@pytest.mark.parametrize(
    "change", [{"logit_scale": 0.71}, {"soft_cap": 3.05}, {"soft_cap": None}], ids=str
)
def test_a_wrong_option_is_seen(backward, change):
    case = Case(backward=backward)
    head, labels = case.head(), case.labels()
    cotangent = random_cotangent(zero_cotangent(case.shape))
    actual = pulled(fused_stats, case, head, labels, cotangent)
    other = dataclasses.replace(case, **change)
    expected = pulled(reference, other, head, labels, cotangent)
    for a, b in zip(actual, expected, strict=True):
        with pytest.raises(AssertionError):
            assert_close(a, b)


@BOTH
@pytest.mark.parametrize("columns", [257, 509])
def test_a_prime_number_of_columns_all_real(backward, columns):
    digits = {str(d): 25 * d + 3 for d in range(10)}
    vocab = NumberVocab.from_mapping(digits, vocab_size=columns)
    rng = np.random.default_rng(0)
    hidden = jnp.asarray(rng.normal(size=(23, 3)), jnp.float32)
    kernel = jnp.asarray(rng.normal(size=(3, columns)), jnp.float32)
    labels = jnp.asarray(rng.integers(0, columns, size=23))

    @jax.jit
    def both(hidden, kernel):
        fused, pull = jax.vjp(
            lambda h, k: stats_from_hidden(
                h, k, labels, vocab, tile_tokens=7, backward=backward
            ),
            hidden,
            kernel,
        )
        dense, pull_dense = jax.vjp(
            lambda h, k: dense_stats((h, k, None), labels, vocab=vocab), hidden, kernel
        )
        cotangent = random_cotangent(dense)
        return (fused, pull(cotangent)), (dense, pull_dense(cotangent))

    assert_close(*both(hidden, kernel))


@BOTH
def test_the_gradient_of_twice_the_loss_is_twice_the_gradient(backward):
    case = Case(backward=backward)
    head, labels = case.head(), case.labels()
    cotangent = random_cotangent(zero_cotangent(case.shape))
    twice = jax.tree.map(lambda x: 2 * x, cotangent)
    once = pulled(fused_stats, case, head, labels, cotangent)[1]
    doubled = pulled(fused_stats, case, head, labels, twice)[1]
    chex.assert_trees_all_equal(doubled, jax.tree.map(lambda x: 2 * x, once))


@BOTH
def test_each_position_has_a_gradient_of_its_own(backward):
    case = Case(shape=(5,), tile_tokens=2, backward=backward)
    head, labels = case.head(), case.labels()
    one_hot = jnp.eye(5, dtype=jnp.float32)

    @partial(jax.jit, static_argnums=0)
    def jacobian(stats_of):
        _, pull = jax.vjp(lambda head: stats_of(case, head, labels).lse, head)
        return jax.vmap(pull)(one_hot)

    assert_close(jacobian(fused_stats), jacobian(reference))


@BOTH
def test_directional_derivatives_match_float64_finite_differences(backward):
    case = Case(backward=backward)
    head, labels = case.head(), case.labels()
    cotangent = random_cotangent(zero_cotangent(case.shape))
    gradient = pulled(fused_stats, case, head, labels, cotangent)[1]
    wide = [np.asarray(x, np.float64) for x in (*head, *cotangent)]
    ids = np.where(np.asarray(labels) == -100, 0, np.asarray(labels))

    def mixture(hidden, kernel, bias):
        z = case.logit_scale * (hidden @ kernel + bias)[..., : VOCAB.vocab_size]
        z = case.soft_cap * np.tanh(z / case.soft_cap)
        lse = np.log(np.exp(z).sum(-1))
        label_logit = np.take_along_axis(z, ids[..., None], -1)[..., 0]
        parts = (lse, label_logit, z[..., VOCAB.token_ids], z.sum(-1))
        return sum(np.sum(a * b) for a, b in zip(parts, wide[3:-1], strict=True))

    rng = np.random.default_rng(2)
    for i, ours in enumerate(gradient):
        direction = rng.normal(size=ours.shape)
        moved = [list(wide[:3]), list(wide[:3])]
        for point, step in zip(moved, (1e-5, -1e-5), strict=True):
            point[i] = point[i] + step * direction
        slope = (mixture(*moved[0]) - mixture(*moved[1])) / 2e-5
        actual = np.sum(np.asarray(ours, np.float64) * direction)
        np.testing.assert_allclose(actual, slope, rtol=2e-5)
        with pytest.raises(AssertionError):
            np.testing.assert_allclose(1.001 * actual, slope, rtol=2e-5)


@BOTH
def test_bfloat16_is_as_good_as_its_rounding(backward):
    case = Case(backward=backward, logits_dtype="float32")
    labels = case.labels()
    half = case.head(dtype=jnp.bfloat16)
    upcast = jax.tree.map(lambda x: x.astype(jnp.float32), half)
    cotangent = random_cotangent(zero_cotangent(case.shape))
    stats, gradient = pulled(fused_stats, case, half, labels, cotangent)
    expected, exact = pulled(reference, case, upcast, labels, cotangent)
    assert_close(stats, expected)  # products of bfloat16 are exact in float32
    assert all(x.dtype == jnp.bfloat16 for x in gradient)
    gradient = jax.tree.map(lambda x: x.astype(jnp.float32), gradient)
    assert_close(gradient, exact, BFLOAT16)
    with pytest.raises(AssertionError):
        assert_close(gradient, exact, BFLOAT16 / 32)


@BOTH
@pytest.mark.parametrize("plain", [False, True])
def test_bfloat16_logits_are_those_of_the_dense_path(backward, plain):
    head = {"bias": False, "logit_scale": 1.0, "soft_cap": None} if plain else {}
    case = Case(backward=backward, **head)
    labels = case.labels()
    half = case.head(dtype=jnp.bfloat16)
    cotangent = random_cotangent(zero_cotangent(case.shape))

    def rounded(case, head, labels):
        logits = dense_logits(*head, **case.options).astype(jnp.bfloat16)
        return stats_from_logits(logits, labels, VOCAB)

    stats, gradient = pulled(fused_stats, case, half, labels, cotangent)
    expected, exact = pulled(rounded, case, half, labels, cotangent)
    assert_close(stats, expected)
    pairs = zip(jax.tree.leaves(gradient), jax.tree.leaves(exact), strict=True)
    for actual, wanted in pairs:
        wide = [x.astype(jnp.float32) for x in (actual, wanted)]
        assert_close(*wide, tolerance=2 * BFLOAT16)  # either side rounds


@BOTH
def test_a_float32_kernel_is_cast_to_the_hidden_states_and_keeps_its_gradient(backward):
    case = Case(backward=backward)
    labels = case.labels()
    hidden, kernel, bias = case.head()
    cotangent = random_cotangent(zero_cotangent(case.shape))
    mixed = (hidden.astype(jnp.bfloat16), kernel, bias)
    rounded = (mixed[0], kernel.astype(jnp.bfloat16), bias)
    stats, gradient = pulled(fused_stats, case, mixed, labels, cotangent)
    expected, rough = pulled(fused_stats, case, rounded, labels, cotangent)
    assert_close(stats, expected)
    assert [x.dtype for x in gradient] == [jnp.bfloat16, jnp.float32, jnp.float32]
    assert_close(gradient[1].astype(jnp.bfloat16), rough[1], BFLOAT16)


@BOTH
def test_a_position_without_cotangent_gives_exactly_nothing(backward):
    case = Case(backward=backward)
    (hidden, kernel, bias), labels = case.head(), case.labels()
    cotangent = random_cotangent(zero_cotangent(case.shape))
    cotangent = jax.tree.map(lambda x: x.at[0, 2].set(0).at[1, 6].set(0), cotangent)
    spoilt = hidden.at[0, 2].set(jnp.nan).at[1, 6].set(jnp.inf)
    gradient = pulled(fused_stats, case, (spoilt, kernel, bias), labels, cotangent)[1]
    expected = pulled(fused_stats, case, (hidden, kernel, bias), labels, cotangent)[1]
    chex.assert_trees_all_equal(gradient, expected)
    assert not gradient[0][0, 2].any() and gradient[0][0, 1].any()


@BOTH
def test_extreme_logits_and_columns_that_are_shut(backward):
    case = Case(soft_cap=None, backward=backward)
    (hidden, kernel, bias), labels = case.head(), case.labels()
    hidden = hidden.at[0, 0].set(1e30).at[0, 1].set(-1e30).at[1, 0].set(0)
    bias = bias.at[5].set(-jnp.inf)
    cotangent = random_cotangent(zero_cotangent(case.shape))
    stats, gradient = pulled(
        fused_stats, case, (hidden, kernel, bias), labels, cotangent
    )
    chex.assert_tree_all_finite((stats, gradient))
    assert not gradient[1][:, 5].any() and gradient[2][5] == 0
    assert not gradient[1][:, VOCAB.vocab_size :].any()
    assert not gradient[2][VOCAB.vocab_size :].any()


@BOTH
def test_no_tokens_at_all(backward):
    case = Case(shape=(2, 0), backward=backward)
    cotangent = zero_cotangent((2, 0))
    stats, gradient = pulled(fused_stats, case, case.head(), case.labels(), cotangent)
    assert stats.lse.shape == (2, 0) and not gradient[1].any()


@BOTH
def test_transformations_change_nothing(backward):
    case = Case(shape=(2, 3, 4), tile_tokens=4, backward=backward)
    head, labels = case.head(), case.labels()

    def loss(head, labels):
        stats = fused_stats(case, head, labels)
        return sum((jnp.sum(jnp.sin(x)) for x in stats), start=jnp.zeros(()))

    def by_vmap(head):
        rows = jax.vmap(loss, in_axes=((0, None, None), 0))
        return jnp.sum(rows(head, labels))

    def by_scan(head):
        def add(total, row):
            return total + loss((row[0], *head[1:]), row[1]), None

        start = jnp.zeros((), jnp.float32)
        return jax.lax.scan(jax.checkpoint(add), start, (head[0], labels))[0]

    expected = jax.jit(jax.value_and_grad(loss))(head, labels)
    assert_close(jax.jit(jax.value_and_grad(by_vmap))(head), expected)
    assert_close(jax.jit(jax.value_and_grad(by_scan))(head), expected)
    assert_close(jax.value_and_grad(jax.checkpoint(loss))(head, labels), expected)


def test_one_trace_for_all_label_contents():
    case = Case()
    head = case.head()
    chex.clear_trace_counter()

    @jax.jit
    @chex.assert_max_traces(n=1)
    def lse(labels):
        return fused_stats(case, head, labels).label_logit.sum()

    everything = (case.labels(), jnp.full_like(case.labels(), -100))
    assert lse(everything[0]) != lse(everything[1])


def test_another_ignore_index():
    case = Case()
    head, labels = case.head(), case.labels()
    moved = jnp.where(labels == -100, 4, jnp.where(labels == 4, 5, labels))
    actual = fused_stats(case, head, moved, ignore_index=4)
    assert_close(actual, reference(case, head, moved, ignore_index=4))


def test_errors_name_what_is_wrong(unhooked):
    case = Case()
    (hidden, kernel, bias), labels = case.head(), case.labels()
    good = dict(hidden=hidden, kernel=kernel, labels=labels, vocab=VOCAB, bias=bias)

    def refused(error, match, **change):
        with pytest.raises(error, match=match):
            stats_from_hidden(**(good | change))

    refused(TypeError, "hidden must be floating point, not int32", hidden=labels)
    refused(TypeError, "kernel must be floating", kernel=jnp.ones((5, 37), jnp.int32))
    refused(TypeError, "labels must be integers", labels=labels.astype(jnp.float32))
    refused(ValueError, r"labels of shape \(2, 7\), not \(14,\)", labels=labels.ravel())
    refused(ValueError, r"\[5, V\], not \[37, 5\]; transpose", kernel=kernel.T)
    refused(ValueError, r"bias of shape \(37,\), not \(31,\)", bias=bias[:31])
    refused(ValueError, "30", kernel=kernel[:, :30], bias=None)
    refused(ValueError, r"soft_cap must be .* finite, or None, not 0", soft_cap=0)
    refused(ValueError, "tile_tokens must be at least 1, not 0", tile_tokens=0)
    refused(ValueError, "'tokens' or 'columns', not 'rows'", backward="rows")

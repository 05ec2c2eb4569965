"""Attention, its masks and its cache, against a NumPy twin written head by head."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax.kernels.attention.dispatch import attend
from ntl_jax.models.attention import make_attention_mask, start_cache

TOLERANCE = 1e-5  # a block


def twin(q, k, v, scale, bias, mask):
    """Float64, one row, one head and one query after another."""
    q, k, v, bias = (np.asarray(x, np.float64) for x in (q, k, v, bias))
    batch, length, heads, _ = q.shape
    keys = k.shape[1]
    bias = np.broadcast_to(bias, (batch, heads, length, keys))
    mask = np.broadcast_to(np.asarray(mask), bias.shape)
    out = np.empty(q.shape)
    for b, n, t in np.ndindex(batch, heads, length):
        group = n // (heads // k.shape[2])
        scores = scale * k[b, :, group] @ q[b, t, n] + bias[b, n, t]
        scores = scores[mask[b, n, t]]
        weights = np.exp(scores - scores.max())
        out[b, t, n] = weights / weights.sum() @ v[b, mask[b, n, t], group]
    return out


def draw(groups=4, seed=0):
    draw = np.random.default_rng(seed).standard_normal
    q = draw((2, 5, 4, 8), np.float32)
    k, v = draw((2, 2, 7, groups, 8), np.float32)
    bias = draw((1, 4, 5, 7), np.float32)
    mask = np.random.default_rng(seed).random((2, 1, 5, 7)) < 0.6
    mask[..., 0] = True
    return q, k, v, bias, mask


@pytest.mark.parametrize("groups", [4, 2, 1])
def test_equals_the_twin(groups):
    q, k, v, bias, mask = draw(groups)
    want = twin(q, k, v, 0.3, bias, mask)
    attended = jax.jit(attend)(q, k, v, scale=0.3, bias=bias, mask=mask)
    chex.assert_trees_all_close(attended, want.astype(np.float32), atol=TOLERANCE)
    if groups > 1:  # heads read their own group's keys
        attended = attend(q, k[:, :, ::-1], v, scale=0.3, bias=bias, mask=mask)
        assert np.abs(attended - want).max() > 0.1
    for change in ({"scale": 0.2}, {"bias": None}, {"mask": None}):
        options = {"scale": 0.3, "bias": bias, "mask": mask} | change
        assert np.abs(attend(q, k, v, **options) - want).max() > 0.01


def test_groups_equal_repeated_heads_in_value_and_gradient():
    q, k, v, bias, mask = draw(2)

    def total(q, k, v, repeats):
        k, v = (jnp.repeat(x, repeats, axis=2) for x in (k, v))
        return jnp.sum(attend(q, k, v, scale=0.3, bias=bias, mask=mask) ** 3)

    got = jax.value_and_grad(total, (0, 1, 2))(q, k, v, 1)
    want = jax.value_and_grad(total, (0, 1, 2))(q, k, v, 2)
    chex.assert_trees_all_close(got, want, rtol=1e-4, atol=1e-4)


def test_scale_may_be_traced():
    q, k, v, *_ = draw()
    want = attend(q, k, v, scale=0.3)
    got = jax.jit(lambda scale: attend(q, k, v, scale=scale))(jnp.float32(0.3))
    chex.assert_trees_all_close(got, want, atol=TOLERANCE)


def test_a_query_that_sees_nothing_gets_the_mean_and_finite_gradients():
    q, k, v, bias, mask = draw()
    mask[1, 0, 2] = False

    def attended(q, k, v):
        return attend(q, k, v, scale=0.3, bias=bias, mask=mask)

    out = attended(q, k, v)
    chex.assert_trees_all_close(out[1, 2], v[1].mean(axis=0), atol=TOLERANCE)
    grads = jax.grad(lambda *x: jnp.sum(attended(*x) ** 2), (0, 1, 2))(q, k, v)
    assert all(np.isfinite(g).all() for g in grads)


def test_hidden_keys_have_no_gradient():
    q, k, v, bias, mask = draw()
    mask[:, :, :, 3] = False

    def total(k, v):
        return jnp.sum(attend(q, k, v, scale=0.3, bias=bias, mask=mask) ** 2)

    for grad in jax.grad(total, (0, 1))(k, v):
        assert not grad[:, 3].any() and np.abs(grad[:, 0]).min() > 0


@pytest.mark.parametrize("groups", [4, 2])
def test_dropout_is_given_the_probabilities_of_all_heads(groups):
    q, k, v, _, mask = draw(groups)
    seen = []

    def dropout(weights):
        seen.append(weights)
        keep = (jnp.arange(4) == 1)[None, :, None, None]
        return jnp.where(keep, weights, 0.0)

    out = attend(q, k, v, scale=0.3, mask=mask, dropout=dropout)
    assert seen[0].shape == (2, 4, 5, 7)
    chex.assert_trees_all_close(seen[0].sum(-1), jnp.ones((2, 4, 5)), atol=1e-6)
    want = attend(q, k, v, scale=0.3, mask=mask)
    chex.assert_trees_all_close(out[:, :, 1], want[:, :, 1], atol=1e-6)
    assert not out[:, :, jnp.array([0, 2, 3])].any()


@pytest.mark.parametrize("groups", [4, 2])
def test_bfloat16_stays_close_and_its_softmax_is_float32(groups):
    q, k, v, bias, mask = draw(groups)
    want = attend(q, k, v, scale=0.3, bias=bias, mask=mask)
    low = (jnp.asarray(x, jnp.bfloat16) for x in (q, k, v))
    got = attend(*low, scale=0.3, bias=bias, mask=mask)
    assert got.dtype == jnp.bfloat16
    assert np.abs(got.astype(np.float32) - want).max() < 0.05


def test_heads_that_do_not_divide_are_named():
    q, k, v, *_ = draw(groups=3)
    with pytest.raises(ValueError, match=r"3 .*4 "):
        attend(q, k, v, scale=1.0)


def test_padding_and_other_segments_are_not_visible():
    attention_mask = np.array([[0, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]])
    segments = jnp.array([[1, 1, 1, 2, 2, 2], [5, 4, 4, 4, 0, 0]])
    got = make_attention_mask(jnp.asarray(attention_mask), segments, segments)
    for b, t, s in np.ndindex(2, 6, 6):
        want = attention_mask[b, s] and segments[b, s] == segments[b, t]
        assert got[b, 0, t, s] == bool(want)
    assert make_attention_mask(jnp.asarray(attention_mask)).shape == (2, 1, 1, 6)
    assert make_attention_mask() is None


@pytest.mark.parametrize("masked", [False, True])
def test_causal_is_a_mask_of_earlier_keys(masked):
    q, k, v, bias, mask = draw()
    k, v, bias, mask = k[:, :5], v[:, :5], bias[..., :5], mask[..., :5]
    earlier = np.tril(np.ones((1, 1, 5, 5), bool))
    options = {"scale": 0.3, "bias": bias}
    want = attend(q, k, v, mask=earlier & mask if masked else earlier, **options)
    got = attend(q, k, v, mask=mask if masked else None, causal=True, **options)
    chex.assert_trees_all_equal(got, want)
    with pytest.raises(ValueError, match=r"4 .*5 .*causal"):
        attend(q[:, :4], k, v, scale=0.3, causal=True)


def test_cache_starts_with_the_prompt_and_counts_on():
    keys, values = np.random.default_rng(0).standard_normal((2, 3, 2, 4, 1, 8))
    cache = start_cache(keys, values, jnp.array([[0, 0, 1, 1], [1, 1, 1, 1]]), 2)
    assert cache.keys.shape == (3, 2, 6, 1, 8)
    np.testing.assert_array_equal(cache.positions, [2, 4])
    want = [[0, 0, 1, 1, 1, 0], [1, 1, 1, 1, 1, 0]]
    np.testing.assert_array_equal(cache.seen_by_next(), want)
    later = cache.advanced(cache.keys, cache.values)
    np.testing.assert_array_equal(later.positions, [3, 5])
    want = [[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]]
    np.testing.assert_array_equal(later.seen_by_next(), want)
    assert start_cache(keys, values, None, 2).seen.sum() == 8

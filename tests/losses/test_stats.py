"""NumberStats: values, the hand-written gradient, masks and errors."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from ntl_jax.losses.stats import MASKED_LOGIT, NumberStats, stats_from_logits


def by_autodiff(logits, labels, vocab):
    """The definition, left to jax.grad."""
    z = logits[..., : vocab.vocab_size].astype(jnp.float32)
    top = jax.lax.stop_gradient(jnp.max(z, axis=-1))
    z = z - top[..., None]
    label = jnp.where(labels == -100, 0, labels)
    return NumberStats(
        jax.nn.logsumexp(z, axis=-1),
        jnp.take_along_axis(z, label[..., None], axis=-1)[..., 0],
        z[..., vocab.token_ids],
        jnp.sum(z, axis=-1),
        top,
    )


def random_cotangent(stats, seed=1):
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda x: jnp.asarray(rng.normal(size=x.shape).astype(np.float32)), stats
    )


def test_values_and_gradient_of_any_cotangent_match_autodiff(vocab, batch):
    logits, labels, _ = batch
    ours, pull = jax.vjp(lambda z: stats_from_logits(z, labels, vocab), logits)
    reference, pull_reference = jax.vjp(lambda z: by_autodiff(z, labels, vocab), logits)
    chex.assert_trees_all_close(ours, reference, rtol=1e-6, atol=1e-6)
    cotangent = random_cotangent(ours)
    gradient, expected = pull(cotangent), pull_reference(cotangent)
    chex.assert_trees_all_close(gradient, expected, rtol=1e-6, atol=1e-6)
    for field in NumberStats._fields[:-1]:  # and the comparison sees all but top
        changed = cotangent._replace(**{field: getattr(cotangent, field) * 1.01})
        with pytest.raises(AssertionError):
            chex.assert_trees_all_close(pull(changed), expected, rtol=1e-6, atol=1e-6)


def test_check_grads(vocab, batch):
    logits, labels, _ = batch

    def mixture(z):
        stats = stats_from_logits(jnp.asarray(z), labels, vocab)
        top = stats.top
        parts = (
            stats.lse,
            stats.label_logit + top,
            stats.number_logits + top[..., None],
            stats.logit_sum + vocab.vocab_size * top,
        )
        return sum((jnp.sum(jnp.sin(x)) for x in parts), start=jnp.zeros(()))

    check_grads(mixture, (logits,), order=1, modes=["rev"], eps=1e-2, rtol=1e-2)


def test_a_single_position_and_vmap_equal_the_batch(vocab, batch):
    logits, labels, _ = batch
    whole = stats_from_logits(logits, labels, vocab)
    rows = jax.vmap(lambda z, y: stats_from_logits(z, y, vocab))(logits, labels)
    chex.assert_trees_all_close(rows, whole, rtol=1e-6, atol=1e-6)
    single = stats_from_logits(logits[1, 2], labels[1, 2], vocab)
    expected = jax.tree.map(lambda x: x[1, 2], whole)
    chex.assert_trees_all_close(single, expected, rtol=1e-6, atol=1e-6)
    chex.assert_shape(single.number_logits, (10,))


def test_vmap_of_the_gradient_equals_the_gradient_of_the_batch(vocab, batch):
    logits, labels, _ = batch

    def total(z, y):
        return jnp.sum(stats_from_logits(z, y, vocab).lse)

    rows = jax.vmap(jax.grad(total))(logits, labels)
    chex.assert_trees_all_close(rows, jax.grad(total)(logits, labels), atol=1e-6)


def test_padded_columns_change_nothing_and_get_no_gradient(vocab, batch):
    logits, labels, _ = batch
    wide = jnp.concatenate([logits, jnp.full_like(logits[..., :5], 50.0)], axis=-1)
    ours, pull = jax.vjp(lambda z: stats_from_logits(z, labels, vocab), wide)
    expected, pull_narrow = jax.vjp(
        lambda z: stats_from_logits(z, labels, vocab), logits
    )
    chex.assert_trees_all_close(ours, expected, rtol=1e-6, atol=1e-6)
    cotangent = random_cotangent(ours)
    (gradient,), (narrow,) = pull(cotangent), pull_narrow(cotangent)
    chex.assert_trees_all_close(gradient[..., :14], narrow, rtol=1e-6, atol=1e-6)
    assert not gradient[..., 14:].any()


def test_bfloat16_logits_are_read_in_float32_and_get_a_bfloat16_gradient(vocab, batch):
    logits, labels, _ = batch
    half = logits.astype(jnp.bfloat16)
    ours, pull = jax.vjp(lambda z: stats_from_logits(z, labels, vocab), half)
    upcast, pull_upcast = jax.vjp(
        lambda z: stats_from_logits(z, labels, vocab), half.astype(jnp.float32)
    )
    chex.assert_trees_all_equal(ours, upcast)
    cotangent = random_cotangent(ours)
    (gradient,), (expected,) = pull(cotangent), pull_upcast(cotangent)
    assert gradient.dtype == jnp.bfloat16
    chex.assert_trees_all_equal(gradient, expected.astype(jnp.bfloat16))


def test_the_softmax_of_huge_logits_still_sums_to_one(vocab):
    logits = jnp.linspace(9999.0, 10001.0, 14)[None]
    total = jax.grad(lambda z: jnp.sum(stats_from_logits(z, y, vocab).lse))
    y = jnp.array([3])
    assert abs(float(total(logits).sum()) - 1) < 1e-6


def test_infinite_logits_have_no_probability_and_no_gradient(vocab):
    logits = jnp.zeros((1, 14)).at[0, 4].set(-jnp.inf)
    labels = jnp.array([3])
    stats, pull = jax.vjp(lambda z: stats_from_logits(z, labels, vocab), logits)
    chex.assert_trees_all_close(stats.lse[0], jnp.log(13.0), rtol=1e-6)
    (gradient,) = pull(random_cotangent(stats))
    assert gradient[0, 4] == 0
    chex.assert_tree_all_finite((stats, gradient))


def test_a_position_without_cotangent_has_gradient_zero_even_if_it_holds_nan(vocab):
    logits = jnp.zeros((2, 14)).at[0].set(jnp.nan)
    labels = jnp.array([-100, 3])
    gradient = jax.grad(
        lambda z: stats_from_logits(z, labels, vocab).lse[1].astype(jnp.float32)
    )(logits)
    chex.assert_tree_all_finite(gradient)
    assert not gradient[0].any() and gradient[1].any()


def test_nan_at_a_position_that_counts_is_not_hidden(vocab):
    logits = jnp.zeros((1, 14)).at[0, 1].set(jnp.nan)
    labels = jnp.array([3])
    gradient = jax.grad(lambda z: jnp.sum(stats_from_logits(z, labels, vocab).lse))
    assert jnp.isnan(gradient(logits)).all()


def test_ids_outside_the_vocabulary_are_clipped(vocab, batch):
    logits, _, _ = batch
    labels = jnp.array([[14, 99, -1, -5, -100, 13]] * 2)
    stats = stats_from_logits(logits, labels, vocab)
    expected = logits[:, jnp.arange(6), jnp.array([13, 13, 0, 0, 0, 13])]
    chex.assert_trees_all_close(
        stats.label_logit + stats.top, expected, rtol=1e-6, atol=1e-6
    )


def test_masked_logit_survives_a_sum_over_any_vocabulary():
    assert np.isfinite(np.float32(MASKED_LOGIT) * np.float32(1_000_000))


def test_errors_name_the_numbers(vocab, batch, unhooked):
    logits, labels, _ = batch
    with pytest.raises(ValueError, match=r"13 columns.*vocab_size=14"):
        stats_from_logits(logits[..., :13], labels, vocab)
    with pytest.raises(ValueError, match=r"\(2, 6, 14\).*\(2, 6\), not \(2, 5\)"):
        stats_from_logits(logits, labels[:, :5], vocab)
    with pytest.raises(TypeError, match="floating point, not int32"):
        stats_from_logits(logits.astype(jnp.int32), labels, vocab)
    with pytest.raises(TypeError, match="integers, not float32"):
        stats_from_logits(logits, labels.astype(jnp.float32), vocab)

"""Objective: terms, counts, accumulation, sweeps, and what is static."""

import dataclasses
import math
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax import (
    Objective,
    Term,
    cross_entropy,
    ntl_huber,
    ntl_mae,
    ntl_mse,
    ntl_was,
    stats_from_logits,
)

EVERYTHING = Objective(ce=1.0, was=0.3, mse=0.2, mae=0.1, huber=0.05, huber_delta=2.0)


def terms_of(objective, logits, labels, vocab, weights=None):
    stats = stats_from_logits(logits, labels, vocab)
    return objective(stats, labels, vocab, weights=weights)


def loss_of(objective, logits, labels, vocab, weights=None, counts=None):
    return objective.total(terms_of(objective, logits, labels, vocab, weights), counts)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reweigh", [False, True])
def test_terms_are_the_losses(vocab, batch, weighted, reweigh):
    logits, labels, weights = batch
    weights = weights if weighted else None
    objective = dataclasses.replace(EVERYTHING, reweigh=reweigh, label_smoothing=0.1)
    terms = terms_of(objective, logits, labels, vocab, weights)
    on_numbers = {
        "was": ntl_was,
        "mse": ntl_mse,
        "mae": ntl_mae,
        "huber": partial(ntl_huber, delta=2.0),
    }
    means = {
        name: loss(
            logits, labels, vocab, weights=weights, reduction="mean", reweigh=reweigh
        )
        for name, loss in on_numbers.items()
    }
    means["ce"] = cross_entropy(
        logits, labels, weights=weights, reduction="mean", label_smoothing=0.1
    )
    assert set(terms) == set(means) == set(objective.names)
    for name, mean in means.items():
        np.testing.assert_allclose(terms[name].mean, mean, rtol=1e-6, err_msg=name)
    expected = sum(getattr(objective, name) * means[name] for name in means)
    np.testing.assert_allclose(objective.total(terms), expected, rtol=1e-6)


def test_the_default_is_ce_and_a_third_of_was(vocab, batch):
    logits, labels, _ = batch
    ce = cross_entropy(logits, labels, reduction="mean")
    was = ntl_was(logits, labels, vocab, reduction="mean")
    total = loss_of(Objective(), logits, labels, vocab)
    np.testing.assert_allclose(total, ce + 0.3 * was, rtol=1e-6)


def test_counts(vocab, batch):
    _, labels, weights = batch
    digits = np.isin(labels, vocab.token_ids)
    assert (np.count_nonzero(labels != -100), digits.sum()) == (10, 7)
    assert Objective().counts(labels, vocab) == {"ce": 10.0, "was": 7.0}
    everywhere = Objective(denominator="all").counts(labels, vocab)
    assert everywhere == {"ce": 10.0, "was": 10.0}
    weighted = Objective().counts(labels, vocab, weights)
    kept = np.asarray(labels != -100)
    np.testing.assert_allclose(weighted["ce"], np.asarray(weights)[kept].sum(), 1e-6)
    np.testing.assert_allclose(weighted["was"], np.asarray(weights)[digits].sum(), 1e-6)


def test_counts_are_those_of_the_terms(vocab, batch):
    logits, labels, weights = batch
    for objective in (EVERYTHING, dataclasses.replace(EVERYTHING, denominator="all")):
        terms = terms_of(objective, logits, labels, vocab, weights)
        counts = objective.counts(labels, vocab, weights)
        assert {name: term.count for name, term in terms.items()} == counts


def test_all_as_denominator_is_one_over_n(vocab, batch):
    logits, labels, _ = batch
    objective = Objective(ce=None, was=1.0, denominator="all")
    total = loss_of(objective, logits, labels, vocab)
    expected = ntl_was(logits, labels, vocab, reduction="sum") / 10
    np.testing.assert_allclose(total, expected, rtol=1e-6)


def test_unequal_micro_batches_add_up_to_the_big_batch(vocab):
    # One row of text alone, one with one digit, one with seven.
    labels = jnp.array(
        [[1, 4, *[-100] * 5], [1, 3, 4, 1, 4, -100, -100], [0, 2, 3, 5, 6, 7, 8]]
    )
    logits = jax.random.normal(jax.random.key(0), (3, 7, 14))

    @jax.jit
    def whole(logits):
        return loss_of(EVERYTHING, logits, labels, vocab)

    @jax.jit
    def of_row(row, i):
        counts = EVERYTHING.counts(labels, vocab)
        return loss_of(EVERYTHING, row[None], labels[i][None], vocab, counts=counts)

    value, gradient = jax.value_and_grad(whole)(logits)
    parts = [jax.value_and_grad(of_row)(logits[i], i) for i in range(3)]
    np.testing.assert_allclose(sum(v for v, _ in parts), value, rtol=1e-6)
    chex.assert_trees_all_close(
        jnp.stack([g for _, g in parts]), gradient, rtol=1e-5, atol=1e-7
    )
    # Means of means, the mistake that this guards against, are far off.
    means = [loss_of(EVERYTHING, logits[i], labels[i], vocab) for i in range(3)]
    assert abs(float(sum(means)) / 3 - float(value)) > 1e-2


def test_terms_of_parts_add_up(vocab, batch):
    logits, labels, weights = batch
    whole = terms_of(EVERYTHING, logits, labels, vocab, weights)
    rows = [
        terms_of(EVERYTHING, logits[i], labels[i], vocab, weights[i]) for i in range(2)
    ]
    added = jax.tree.map(lambda a, b: a + b, *rows)
    chex.assert_trees_all_close(added, whole, rtol=1e-6)
    assert isinstance(added["ce"], Term)


def test_a_batch_without_numbers_is_trained_by_cross_entropy_alone(vocab, batch):
    logits, labels, _ = batch
    text = jnp.where(labels == -100, -100, 4)
    value, gradient = jax.value_and_grad(lambda z: loss_of(EVERYTHING, z, text, vocab))(
        logits
    )
    expected = jax.value_and_grad(lambda z: cross_entropy(z, text, reduction="mean"))(
        logits
    )
    chex.assert_trees_all_close((value, gradient), expected, rtol=1e-6, atol=1e-8)


def test_vmap_over_coefficients_equals_one_run_each(vocab, batch):
    logits, labels, _ = batch
    sweep = [Objective(was=w, mse=m) for w, m in ((0.0, 0.0), (0.3, 0.0), (0.0, 2.0))]
    stacked = jax.tree.map(lambda *c: jnp.array(c, jnp.float32), *sweep)
    run = jax.jit(
        jax.vmap(jax.value_and_grad(loss_of, argnums=1), in_axes=(0, None, None, None))
    )
    values, gradients = run(stacked, logits, labels, vocab)
    for i, objective in enumerate(sweep):
        expected = jax.value_and_grad(loss_of, argnums=1)(
            objective, logits, labels, vocab
        )
        chex.assert_trees_all_close(
            (values[i], gradients[i]), expected, rtol=1e-6, atol=1e-7
        )
    # A coefficient of 0 is the same as none at all.
    alone = loss_of(Objective(was=None), logits, labels, vocab)
    np.testing.assert_allclose(values[0], alone, rtol=1e-6)


def test_coefficients_are_leaves_and_absent_terms_are_none(vocab, batch):
    assert jax.tree.leaves(Objective(was=None, mse=2.0))[:2] == [1.0, 2.0]
    paths = [jax.tree_util.keystr(p) for p, _ in jax.tree.leaves_with_path(Objective())]
    assert paths == [".ce", ".was", ".sigma", ".huber_delta", ".tau"]
    assert jax.tree.structure(Objective()) == jax.tree.structure(Objective(was=0.5))
    assert jax.tree.structure(Objective()) != jax.tree.structure(Objective(mse=0.5))
    assert jax.tree.structure(Objective()) != jax.tree.structure(
        Objective(reweigh=True)
    )
    back = jax.tree.map(lambda c: c, EVERYTHING)
    assert back == EVERYTHING and back.huber_delta == 2.0


def test_changing_a_coefficient_does_not_retrace(vocab, batch):
    logits, labels, _ = batch
    chex.clear_trace_counter()
    step = jax.jit(chex.assert_max_traces(loss_of, n=1))
    values = [step(Objective(was=w), logits, labels, vocab) for w in (0.0, 0.3, 1.0)]
    assert values[0] < values[1] < values[2]


def test_absent_terms_cost_nothing(vocab, batch):
    logits, labels, _ = batch

    def size(objective):
        return len(
            jax.make_jaxpr(loss_of, static_argnums=3)(
                objective, logits, labels, vocab
            ).eqns
        )

    assert size(Objective(was=None)) < size(Objective()) < size(Objective(mse=0.1))


def test_ignore_index_is_passed_on(vocab, batch):
    logits, labels, _ = batch
    objective = Objective(ignore_index=4)
    shifted = jnp.where(labels == -100, 4, jnp.where(labels == 4, 13, labels))
    stats = stats_from_logits(logits, shifted, vocab, ignore_index=4)
    total = objective.total(objective(stats, shifted, vocab))
    plain = jnp.where(shifted == 4, -100, shifted)
    np.testing.assert_allclose(
        total, loss_of(Objective(), logits, plain, vocab), rtol=1e-6
    )


def test_errors_name_what_is_wrong(unhooked):
    with pytest.raises(ValueError, match=r"'numbers' or 'all', not 'mean'"):
        Objective(denominator="mean")
    with pytest.raises(ValueError, match=r"label_smoothing must be in \[0, 1\), not 1"):
        Objective(label_smoothing=1.0)
    with pytest.raises(ValueError, match="coefficient for one of ce, gce, was"):
        Objective(ce=None, was=None)
    with pytest.raises(ValueError, match="'label' or 'gaussian', not 'mean'"):
        Objective(cdf_target="mean")
    with pytest.raises(ValueError, match="squash or distance, not both"):
        Objective(squash=2.0, distance=jnp.ones((10, 10)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        Objective().was = 0.5


@pytest.mark.parametrize("name", ["ce", "was", "raft"])
@pytest.mark.parametrize("kind", [float, np.float32])
@pytest.mark.parametrize("value", [-0.5, math.nan, math.inf])
def test_what_is_no_coefficient_is_refused(name, kind, value, unhooked):
    message = rf"coefficient {name} must be at least 0 and finite, not {value}\."
    with pytest.raises(ValueError, match=message):
        Objective(**{name: kind(value)})


def test_coefficients_may_be_traced(vocab, batch, unhooked):
    logits, labels, _ = batch

    @jax.jit
    def loss(was):
        return loss_of(Objective(was=was), logits, labels, vocab)

    for was in (0.0, 0.3):
        expected = loss_of(Objective(was=was), logits, labels, vocab)
        np.testing.assert_allclose(loss(was), expected, rtol=1e-6)

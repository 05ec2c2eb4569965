"""Every loss as a term of an Objective, with its options, counts and weights."""

import dataclasses
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax import (
    Objective,
    cross_entropy,
    digit_weights,
    distances,
    gaussian_cross_entropy,
    gaussian_targets,
    ntl_huber,
    ntl_was,
    ntl_was_cdf,
    number_level_loss,
    stats_from_logits,
)
from ntl_jax.losses.baselines import (
    digit_entropy,
    dist2,
    ntil,
    raft,
    raft_cross_entropy_weights,
    smmd,
)

ALONE = partial(Objective, ce=None, was=None)
BASELINES = ("dist2", "smmd", "digit_entropy", "ntil", "raft")
EVERY = ("ce", "gce", "was", "cdf", "mse", "mae", "huber", "number_level", *BASELINES)


def soft_cdf(logits, labels, vocab, **options):
    target = gaussian_targets(labels, vocab, 0.7)
    return ntl_was_cdf(logits, labels, vocab, target=target, **options)


def squashed_was(logits, labels, vocab, **options):
    distance = distances.squashed(vocab, 3.0)
    return ntl_was(logits, labels, vocab, distance=distance, **options)


def circular_was(logits, labels, vocab, **options):
    distance = distances.circular(vocab, 10)
    return ntl_was(logits, labels, vocab, distance=distance, **options)


CASES = {
    "gce": (ALONE(gce=1.0, sigma=0.7), partial(gaussian_cross_entropy, sigma=0.7)),
    "cdf": (ALONE(cdf=1.0), ntl_was_cdf),
    "soft cdf": (ALONE(cdf=1.0, cdf_target="gaussian", sigma=0.7), soft_cdf),
    "squash": (ALONE(was=1.0, squash=3.0), squashed_was),
    "huber": (ALONE(huber=1.0, huber_delta=2.0), partial(ntl_huber, delta=2.0)),
    "dist2": (ALONE(dist2=1.0, tau=2.0), partial(dist2, tau=2.0)),
    "smmd": (ALONE(smmd=1.0), smmd),
    "number_level": (ALONE(number_level=1.0), number_level_loss),
    "log": (
        ALONE(number_level=1.0, log_space=True),
        partial(number_level_loss, log_space=True),
    ),
    "digit_entropy": (ALONE(digit_entropy=1.0), digit_entropy),
    "ntil": (ALONE(ntil=1.0), ntil),
    "expected ntil": (
        ALONE(ntil=1.0, ntil_digits="expected"),
        partial(ntil, digits="expected"),
    ),
    "raft": (ALONE(raft=1.0), raft),
}


def total_of(objective, logits, labels, vocab, **options):
    stats = stats_from_logits(logits, labels, vocab)
    return objective.total(objective(stats, labels, vocab, **options))


@pytest.mark.parametrize("name", CASES)
def test_a_term_is_its_loss(name, vocab, batch):
    objective, loss = CASES[name]
    logits, labels, weights = batch
    run = jax.jit(partial(total_of, objective), static_argnums=2)
    actual = run(logits, labels, vocab, weights=weights)
    expected = jax.jit(
        partial(loss, weights=weights, reduction="mean"), static_argnums=2
    )(logits, labels, vocab)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
    assert abs(float(actual)) > 1e-3
    doubled = jax.tree.map(lambda x: x, objective)
    for term in objective.names:
        doubled = dataclasses.replace(doubled, **{term: 2.0})
    np.testing.assert_allclose(
        run.__wrapped__(logits, labels, vocab, weights=weights) * 2,
        total_of(doubled, logits, labels, vocab, weights=weights),
        rtol=1e-6,
    )


def test_a_matrix_of_costs(vocab, batch):
    logits, labels, _ = batch
    distance = distances.circular(vocab, 10)
    total = total_of(ALONE(was=1.0, distance=distance), logits, labels, vocab)
    expected = circular_was(logits, labels, vocab, reduction="mean")
    np.testing.assert_allclose(total, expected, rtol=1e-6)


def everything(**options):
    return Objective(**{name: 0.1 for name in EVERY}, **options)


def test_counts_are_those_of_the_terms(vocab, batch):
    logits, labels, weights = batch

    @jax.jit
    def both(objective, logits, weights):
        stats = stats_from_logits(logits, labels, vocab)
        terms = objective(stats, labels, vocab, weights=weights)
        return terms, objective.counts(labels, vocab, weights)

    for objective in (everything(), everything(denominator="all", place_base=2.0)):
        terms, counts = both(objective, logits, weights)
        assert set(terms) == set(EVERY)
        chex.assert_trees_all_equal({k: t.count for k, t in terms.items()}, counts)


def test_raft_takes_the_score_out_of_cross_entropy(vocab, batch):
    logits, labels, _ = batch
    left = raft_cross_entropy_weights(labels, vocab)
    assert float(left.sum()) < float((labels != -100).sum())
    for objective, weights in (
        (Objective(was=None, raft=0.0), left),
        (Objective(was=None, raft=0.0, ce_on_score=True), None),
    ):
        expected = cross_entropy(logits, labels, weights=weights, reduction="mean")
        total = total_of(objective, logits, labels, vocab)
        np.testing.assert_allclose(total, expected, rtol=1e-6)


def test_weights_by_place_are_for_single_tokens(vocab, batch):
    logits, labels, weights = batch
    objective = Objective(was=0.5, number_level=0.2, place_base=1.5)
    by_place = digit_weights(labels, vocab, base=1.5) * weights
    assert float(jnp.max(by_place / jnp.maximum(weights, 1e-3))) > 1.2
    expected = (
        cross_entropy(logits, labels, weights=weights, reduction="mean")
        + 0.5 * ntl_was(logits, labels, vocab, weights=by_place, reduction="mean")
        + 0.2
        * number_level_loss(logits, labels, vocab, weights=weights, reduction="mean")
    )
    total = total_of(objective, logits, labels, vocab, weights=weights)
    np.testing.assert_allclose(total, expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.bool_, jnp.bfloat16])
def test_weights_by_place_multiply_weights_of_any_dtype(vocab, batch, dtype):
    _, labels, weights = batch
    objective, kept = Objective(place_base=1.5), weights != 0
    counts = objective.counts(labels, vocab, kept.astype(dtype))
    expected = objective.counts(labels, vocab, kept.astype(jnp.float32))
    assert counts == expected
    assert expected["was"] > Objective().counts(labels, vocab, kept)["was"]


def test_numbers_end_with_their_segment(vocab):
    # 53 and 7 packed after each other, or as one number 537.
    labels = jnp.array([[0, 9, 10]])
    logits = jax.random.normal(jax.random.key(0), (1, 3, 14))
    objective = ALONE(number_level=1.0, digit_entropy=1.0)

    @jax.jit
    def total_and_counts(segment_ids):
        total = total_of(objective, logits, labels, vocab, segment_ids=segment_ids)
        return total, objective.counts(labels, vocab, segment_ids=segment_ids)

    (apart, counts), (joined, _) = map(
        total_and_counts, (jnp.array([[1, 1, 2]]), jnp.array([[1, 1, 1]]))
    )
    assert not np.isclose(apart, joined)
    assert counts["number_level"] == 2.0


def test_a_sweep_over_parameters_is_one_program(vocab, batch):
    logits, labels, _ = batch
    sigmas, squashes = jnp.array([0.3, 1.0, 2.0]), jnp.array([1.0, 2.0, 9.0])
    run = jax.jit(
        lambda sigma, squash: total_of(
            Objective(ce=None, gce=1.0, was=0.3, sigma=sigma, squash=squash),
            logits,
            labels,
            vocab,
        )
    )
    swept = jax.vmap(run)(sigmas, squashes)
    for i in range(3):
        one = Objective(
            ce=None,
            gce=1.0,
            was=0.3,
            sigma=float(sigmas[i]),
            squash=float(squashes[i]),
        )
        expected = total_of(one, logits, labels, vocab)
        np.testing.assert_allclose(swept[i], expected, rtol=1e-5)

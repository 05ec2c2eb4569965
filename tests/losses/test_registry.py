"""The registry of losses, what follows from it, and a loss that a subclass adds."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax import Objective, objective_from_hidden, stats_from_logits
from ntl_jax.losses.cross_entropy import cross_entropy_from_stats
from ntl_jax.losses.terms import TERMS, Coefficients, term
from train.config import NUMBER_TERMS, LossConfig
from train.config.loss import PER_ROW_TERMS

FIELDS = {field.name: field for field in dataclasses.fields(Objective)}


def toy_from_stats(stats, labels, vocab, *, factor, **options):
    """Cross-entropy once more, scaled."""
    value, weight = cross_entropy_from_stats(stats, labels, vocab, **options)
    return factor * value, weight


@dataclasses.dataclass(frozen=True)
class WithToy(Objective):
    toy: float | None = term(toy_from_stats, "labels", factor="tau")


def test_every_option_of_a_loss_is_a_field_and_every_field_is_used():
    read = {name for entry in TERMS.values() for name in entry.options.values()}
    assert read <= set(FIELDS)
    # These the Objective reads itself.
    itself = {"denominator", "place_base", "ce_on_score", "ignore_index"}
    assert read | itself | set(TERMS) == set(FIELDS)


def test_configs_and_objectives_hold_the_same_losses_and_defaults():
    for field in dataclasses.fields(LossConfig):
        assert field.default == FIELDS[field.name].default or field.name == "was"
    missing = set(FIELDS) - {field.name for field in dataclasses.fields(LossConfig)}
    assert missing == {"distance", "ignore_index"}
    assert LossConfig().objective() == Objective(was=None)


def test_lists_of_losses_follow_from_the_registry():
    assert set(TERMS) == {field.name for field in dataclasses.fields(Coefficients)}
    assert set(NUMBER_TERMS) == set(TERMS) - {"ce"}
    assert PER_ROW_TERMS == ("ntil", "raft")
    # The order of names in the names of runs, and of sums in programs: both are kept.
    assert NUMBER_TERMS[5:8] == ("number_level", "dist2", "smmd")
    assert NUMBER_TERMS[-1] == "gce"
    every = Objective(**dict.fromkeys(TERMS, 1.0))
    assert every.names == tuple(TERMS)
    assert every.names[7:10] == ("dist2", "smmd", "number_level")


def test_an_added_loss_is_trained(vocab, batch):
    logits, labels, weights = batch

    @jax.jit
    @partial(jax.value_and_grad, argnums=1)
    def loss(objective, logits):
        stats = stats_from_logits(logits, labels, vocab)
        return objective.total(objective(stats, labels, vocab, weights=weights))

    added, plain = WithToy(ce=None, toy=2.0, tau=1.5), Objective(ce=3.0)
    for a, b in zip(loss(added, logits), loss(plain, logits), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    assert WithToy().names == Objective().names
    with pytest.raises(ValueError, match="toy"):
        WithToy(ce=None, was=None)


def test_an_added_loss_is_a_leaf_and_trained_from_hidden_states(vocab, batch):
    _, labels, _ = batch
    hidden = jax.random.normal(jax.random.key(0), (*labels.shape, 8))
    kernel = jax.random.normal(jax.random.key(1), (8, vocab.vocab_size))
    run = partial(objective_from_hidden, vocab=vocab)
    paths = jax.tree.leaves_with_path(WithToy(toy=2.0))
    assert ".toy" in [jax.tree_util.keystr(path) for path, _ in paths]
    swept = jax.tree.map(lambda *x: jnp.array(x), WithToy(toy=0.0), WithToy(toy=2.0))
    totals, terms = jax.vmap(run, in_axes=(0, None, None, None))(
        swept, hidden, kernel, labels
    )
    toy = jax.tree.map(lambda x: x[0], terms["toy"])
    np.testing.assert_allclose(totals[1] - totals[0], 2 * toy.mean, rtol=1e-5)
    grads = jax.grad(lambda h: run(WithToy(toy=0.5), h, kernel, labels)[0])(hidden)
    expected = jax.grad(lambda h: run(Objective(ce=1.5), h, kernel, labels)[0])(hidden)
    np.testing.assert_allclose(grads, expected, rtol=1e-5, atol=1e-6)

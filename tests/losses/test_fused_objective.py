"""The objective from hidden states against the dense path."""

import dataclasses
from functools import partial

import chex
import jax
import jax.numpy as jnp
import pytest

from ntl_jax import Objective, objective_from_hidden
from ntl_jax.losses.stats import NumberStats
from ntl_jax.losses.terms import TERMS
from tests.losses.fused_cases import VOCAB, Case, assert_close, dense_stats

EVERYTHING = Objective(was=0.3, mse=0.2, mae=0.1, huber=0.05, huber_delta=2.0)
OBJECTIVES = {
    "ce": Objective(was=None),
    "ce_smoothed_z": Objective(was=None, label_smoothing=0.1, z_loss=1e-2),
    "was": Objective(ce=None, was=1.0),
    "everything": EVERYTHING,
    "reweigh": dataclasses.replace(EVERYTHING, reweigh=True, label_smoothing=0.1),
    "full": dataclasses.replace(EVERYTHING, support="full", z_loss=1e-2),
    "one_over_n": dataclasses.replace(EVERYTHING, denominator="all"),
    "soft": Objective(
        gce=0.5, cdf=0.2, dist2=0.1, smmd=0.3, cdf_target="gaussian", place_base=1.2
    ),
    "whole": Objective(number_level=0.5, digit_entropy=0.1, ntil=0.2, raft=0.1),
}
FLAT = Case(shape=(13,), tile_tokens=4, bias=False, soft_cap=None)
GRID = [
    (Case(), name) for name in ("ce_smoothed_z", "full", "reweigh", "soft", "whole")
]
GRID += [(FLAT, name) for name in ("ce", "was", "everything", "one_over_n")]


def fused_total(case, objective, head, labels, weights=None, **step):
    hidden, kernel, bias = head
    options = case.options | step | {"weights": weights, "bias": bias}
    options |= {"tile_tokens": case.tile_tokens, "logits_dtype": case.logits_dtype}
    return objective_from_hidden(objective, hidden, kernel, labels, VOCAB, **options)


def dense_total(case, objective, head, labels, weights=None, segment_ids=None):
    options = case.options | {"ignore_index": objective.ignore_index}
    stats = dense_stats(head, labels, **options)
    terms = objective(stats, labels, VOCAB, weights=weights, segment_ids=segment_ids)
    return objective.total(terms), terms


@partial(jax.jit, static_argnums=(0, 1))
def differentiated(total_of, case, objective, head, labels, weights=None):
    """((total, terms), gradients of the objective, the head and the weights)."""
    argnums = (1, 2) if weights is None else (1, 2, 4)
    run = jax.value_and_grad(total_of, argnums=argnums, has_aux=True)
    return run(case, objective, head, labels, weights)


@pytest.mark.parametrize(("case", "name"), GRID, ids=str)
def test_values_and_gradients_equal_the_dense_path(case, name):
    objective, head, labels = OBJECTIVES[name], case.head(), case.labels()
    weights = case.weights() if case.bias else None
    actual = differentiated(fused_total, case, objective, head, labels, weights)
    expected = differentiated(dense_total, case, objective, head, labels, weights)
    assert_close(actual, expected)
    wrong = jax.tree.map(lambda c: 1.001 * c, objective)
    with pytest.raises(AssertionError):
        assert_close(
            differentiated(fused_total, case, wrong, head, labels, weights), expected
        )


KINDS = [(name, kind) for name in TERMS for kind in ("numbers", "reweigh", "full")]
KINDS.remove(("number_level", "reweigh"))  # which it refuses


def cotangents_with_and_without_a_move(total):
    """Those of log sum, label logit and logit sum where nothing moves, others moved."""
    stats = dense_stats(Case().head(), Case().labels())
    stays = jnp.arange(Case().shape[-1]) % 2 == 0
    moved = NumberStats(
        stats.log_sum + jnp.where(stays, 0.0, 1.5)[None],
        stats.label_logit - jnp.where(stays, 0.0, 0.5)[None],
        stats.number_logits,
        stats.logit_sum + jnp.where(stays, 0.0, 2.0)[None],
        stats.top,
    )
    cotangent_of = jax.jit(jax.grad(total))
    return (
        jax.tree.map(lambda x: x[:, stays], c._replace(number_logits=None))
        for c in (cotangent_of(stats), cotangent_of(moved))
    )


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_what_a_position_asks_of_its_sums_depends_on_no_other(name, kind):
    """The assumption that lets a tile be pulled back before the next is pushed."""
    options = {"reweigh": True} if kind == "reweigh" else {"support": kind}
    objective = Objective(**(dict.fromkeys(TERMS) | {name: 1.0}), **options)
    labels, weights = Case().labels(), Case().weights() + 0.1

    def total(stats):
        return objective.total(objective(stats, labels, VOCAB, weights=weights))

    chex.assert_trees_all_equal(*cotangents_with_and_without_a_move(total))


def test_a_product_of_two_positions_is_seen():
    def total(stats):
        return jnp.sum(stats.lse[:, 0] * stats.lse[:, 1])

    with pytest.raises(AssertionError):
        chex.assert_trees_all_equal(*cotangents_with_and_without_a_move(total))


def test_packed_rows():
    case, objective = Case(), OBJECTIVES["whole"]
    head, labels = case.head(), case.labels()
    segment_ids = jnp.array([[0, 0, 1, 1, 1, 2, 2], [0, 0, 0, 0, 0, 0, 1]])

    @partial(jax.jit, static_argnums=0)
    def run(total_of, segment_ids):
        total = partial(total_of, case, objective, segment_ids=segment_ids)
        return jax.value_and_grad(total, has_aux=True)(head, labels)

    actual = run(fused_total, segment_ids)
    assert_close(actual, run(dense_total, segment_ids))
    with pytest.raises(AssertionError):
        assert_close(actual, run(dense_total, jnp.zeros_like(segment_ids)))


def test_the_gradient_of_twice_the_total_is_twice_the_gradient():
    case = Case()
    head, labels = case.head(), case.labels()

    @partial(jax.jit, static_argnums=0)
    def gradient(factor):
        return jax.grad(
            lambda head: factor * fused_total(case, EVERYTHING, head, labels)[0]
        )(head)

    doubled = jax.tree.map(lambda x: 2 * x, gradient(1.0))
    chex.assert_trees_all_equal(gradient(2.0), doubled)


def test_terms_have_no_gradient():
    case = Case()
    head, labels = case.head(), case.labels()

    def of_term(head):
        return fused_total(case, EVERYTHING, head, labels)[1]["ce"].sum

    gradient = jax.jit(jax.grad(of_term))(head)
    assert not any(x.any() for x in gradient)


def test_micro_batches_with_the_counts_of_the_step_add_up():
    case = Case()
    (hidden, kernel, bias), labels = case.head(), case.labels()
    labels = labels.at[0].set(jnp.where(labels[0] == -100, -100, 1))  # no number
    whole = differentiated(
        fused_total, case, EVERYTHING, (hidden, kernel, bias), labels
    )

    @jax.jit
    def of_row(i):
        counts = EVERYTHING.counts(labels, VOCAB)

        def part(head):
            row = (hidden[i], *head)
            return fused_total(case, EVERYTHING, row, labels[i], counts=counts)[0]

        return jax.value_and_grad(part)((kernel, bias))

    added = jax.tree.map(lambda a, b: a + b, of_row(0), of_row(1))
    (total, _), (_, gradient) = whole
    assert_close(added, (total, gradient[1:]))


@pytest.mark.parametrize("weighted", [False, True])
def test_a_batch_in_which_nothing_counts(weighted):
    case = Case()
    head, labels = case.head(), case.labels()
    weights = jnp.zeros(case.shape, jnp.float32) if weighted else None
    labels = labels if weighted else jnp.full_like(labels, -100)
    head = (head[0].at[0, 0].set(jnp.nan), *head[1:])
    (total, terms), (_, gradient, *_) = differentiated(
        fused_total, case, OBJECTIVES["reweigh"], head, labels, weights
    )
    assert total == 0 and all(t.sum == 0 and t.count == 0 for t in terms.values())
    assert not any(x.any() for x in gradient)


def test_nan_where_nothing_counts_reaches_nothing():
    case = Case()
    (hidden, kernel, bias), labels = case.head(), case.labels()
    labels = labels.at[0, 2].set(-100)
    weights = case.weights().at[1, 3].set(0)
    spoilt = hidden.at[0, 2].set(jnp.nan).at[1, 3].set(jnp.inf)
    run = partial(differentiated, fused_total, case, OBJECTIVES["reweigh"])
    actual = run((spoilt, kernel, bias), labels, weights)
    chex.assert_trees_all_equal(actual, run((hidden, kernel, bias), labels, weights))


def test_bfloat16_is_as_good_as_its_rounding():
    case = Case(logits_dtype="float32")
    half, labels = case.head(dtype=jnp.bfloat16), case.labels()
    upcast = jax.tree.map(lambda x: x.astype(jnp.float32), half)
    actual = differentiated(fused_total, case, EVERYTHING, half, labels)
    expected = differentiated(dense_total, case, EVERYTHING, upcast, labels)
    assert_close(actual[0], expected[0])
    gradient = actual[1][1]
    assert all(x.dtype == jnp.bfloat16 for x in gradient)
    gradient = jax.tree.map(lambda x: x.astype(jnp.float32), gradient)
    assert_close(gradient, expected[1][1], 2.0**-7)


def test_a_sweep_over_coefficients():
    case = Case()
    head, labels = case.head(), case.labels()
    sweep = [Objective(was=0.0), Objective(was=0.3), Objective(was=2.0)]
    stacked = jax.tree.map(lambda *c: jnp.array(c, jnp.float32), *sweep)
    run = partial(jax.value_and_grad(fused_total, argnums=2, has_aux=True), case)
    actual = jax.jit(jax.vmap(run, in_axes=(0, None, None)))(stacked, head, labels)
    for i, objective in enumerate(sweep):
        of_one = jax.tree.map(lambda x, i=i: x[i], actual)
        assert_close(of_one, jax.jit(run)(objective, head, labels))


def test_checkpoint_and_vmap_change_nothing():
    case = Case()
    head, labels = case.head(), case.labels()

    def total(head):
        return fused_total(case, EVERYTHING, head, labels)[0]

    def by_rows(head):
        hidden, *rest = head
        counts = EVERYTHING.counts(labels, VOCAB)

        def of_row(hidden, labels):
            row = (hidden, *rest)
            return fused_total(case, EVERYTHING, row, labels, counts=counts)[0]

        return jnp.sum(jax.vmap(of_row)(hidden, labels))

    expected = jax.jit(jax.value_and_grad(total))(head)
    assert_close(jax.jit(jax.value_and_grad(jax.checkpoint(total)))(head), expected)
    assert_close(jax.jit(jax.value_and_grad(by_rows))(head), expected)


def test_a_single_position_and_another_ignore_index():
    case, objective = Case(shape=()), dataclasses.replace(EVERYTHING, ignore_index=4)
    head = case.head()
    for label in (3, 4):
        args = (objective, head, jnp.int32(label))
        actual = differentiated(fused_total, case, *args)
        assert_close(actual, differentiated(dense_total, case, *args))


def test_errors_name_what_is_wrong(unhooked):
    hidden, labels = jnp.ones((3, 5)), jnp.ones(3, jnp.int32)
    with pytest.raises(ValueError, match="transpose an embedding table"):
        objective_from_hidden(Objective(), hidden, jnp.ones((37, 5)), labels, VOCAB)
    with pytest.raises(ValueError, match="one weight a label"):
        objective_from_hidden(
            Objective(),
            hidden,
            jnp.ones((5, 37)),
            labels,
            VOCAB,
            weights=jnp.ones((3, 1)),
        )

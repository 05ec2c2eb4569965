"""What every public loss must do, whichever way it is called and whatever it is given.

All of them are compiled as one program, [B, T, V] logits to {name: ([B, T] losses,
[B, T, V] gradient)}, which most tests run on other data.
"""

import inspect
import sys
from functools import cache, partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ntl_jax.losses
from ntl_jax.losses import baselines as baselines
from tests.losses.public_losses import (
    COLUMNS,
    IGNORED,
    LOSSES,
    PLAIN_FIRST,
    TOKENS,
    VOCAB,
    batch,
    extremes,
    losses_and_gradients,
    moved,
    total_and_tokens,
)

TRACES = []  # the shapes that the compiled program below was traced for


@jax.jit
def compiled(logits, labels, weights):
    TRACES.append(logits.shape)
    return losses_and_gradients(logits, labels, weights)


@cache
def standard():
    """The compiled program on the usual batch."""
    return jax.device_get(compiled(*batch()))


def assert_close(actual, expected, rtol=1e-5, atol=1e-5):
    assert actual.keys() <= expected.keys()
    for name in actual:
        chex.assert_trees_all_close(
            actual[name], expected[name], rtol=rtol, atol=atol, custom_message=name
        )


def public_losses(module) -> set[str]:
    found = set()
    for name, value in vars(module).items():
        if name.startswith("_") or not inspect.isfunction(value):
            continue
        if [*inspect.signature(value).parameters][:2] == ["logits", "labels"]:
            found.add(name)
    return found - {"stats_from_logits"}


def test_the_table_holds_every_public_loss():
    public = public_losses(ntl_jax.losses) | public_losses(baselines)
    assert "ntl_was" in public
    assert public == {key.split()[0] for key in LOSSES}


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_says_something(name):
    tokens, gradient = standard()[name]
    assert np.count_nonzero(tokens) >= 2 and np.count_nonzero(gradient) >= 20
    chex.assert_tree_all_finite((tokens, gradient))


@pytest.mark.parametrize("name", PLAIN_FIRST)
def test_eager_is_jit(name):
    _, tokens = total_and_tokens(name, *map(jnp.asarray, batch()))
    chex.assert_trees_all_close(tokens, standard()[name][0], rtol=1e-5, atol=1e-5)


def test_reductions():
    logits, labels, weights = batch()

    @jax.jit
    def reduced(logits, labels, weights):
        options = {"weights": weights, "ignore_index": IGNORED}
        return {
            name: [
                loss.call(logits, labels, VOCAB, reduction=reduction, **options)
                for reduction in ("sum", "mean")
            ]
            for name, loss in LOSSES.items()
        }

    for name, (total, mean) in reduced(logits, labels, weights).items():
        assert total == pytest.approx(standard()[name][0].sum(), rel=1e-5), name
        assert 0 < mean < total, name


@pytest.mark.parametrize(
    "names",
    [
        [name for name in LOSSES if " " not in name],
        pytest.param([n for n in LOSSES if " " in n], marks=pytest.mark.slow),
    ],
    ids=["functions", "options"],
)
def test_a_scan_over_checkpointed_rows_under_vmap_is_the_batch(names):
    def row_sum(name, *row):
        return total_and_tokens(name, *row)[0]

    def step(_, rows):
        functions = {name: jax.checkpoint(partial(row_sum, name)) for name in names}
        return None, {
            name: jax.vmap(jax.value_and_grad(f))(*rows)
            for name, f in functions.items()
        }

    rows = jax.tree.map(lambda x: jnp.asarray(x)[:, None, None], batch())
    _, results = jax.jit(lambda rows: jax.lax.scan(step, None, rows))(rows)
    actual = {name: (x[:, 0], g[:, 0, 0]) for name, (x, g) in results.items()}
    sums = {
        name: (x.reshape(len(x), -1).sum(axis=-1), gradient)
        for name, (x, gradient) in standard().items()
    }
    assert_close(actual, sums)


def read(labels: np.ndarray) -> np.ndarray:
    """Where a number loss may look at the logits: at digits, and signs of numbers."""
    kept = labels != IGNORED
    ids = np.where(kept, labels, 0)
    return kept & ((VOCAB.row[ids] >= 0) | (ids == TOKENS["-"]))


def test_nothing_off_the_support():
    _, labels, weights = batch()
    kept = labels != IGNORED
    number = kept & (VOCAB.row[np.where(kept, labels, 0)] >= 0)
    for name, (tokens, gradient) in standard().items():
        loss = LOSSES[name]
        if loss.counts == "rows":
            assert not gradient[~read(labels)].any(), name
            assert loss.by_row or not tokens[~number | (weights == 0)].any(), name
        else:
            where = (kept if loss.counts == "all" else number) & (weights != 0)
            assert not tokens[~where].any() and not gradient[~where].any(), name


def test_values_before_their_weights_are_0_off_the_support(monkeypatch):
    """What an objective is given; a weight of 0 afterwards hides nothing here."""
    for module in ("on_logits", "cross_entropy"):
        monkeypatch.setattr(
            sys.modules[f"ntl_jax.losses.{module}"],
            "reduce_tokens",
            lambda value, weight, reduction: jnp.stack([value, weight], axis=-1),
        )
    names = [name for name in LOSSES if "and NTL" not in name]  # reduces by itself

    @jax.jit
    def pairs(logits, labels, weights):
        options = {"weights": weights, "ignore_index": IGNORED, "reduction": None}
        return {n: LOSSES[n].call(logits, labels, VOCAB, **options) for n in names}

    logits, labels, weights = batch()
    number = (labels != IGNORED) & (VOCAB.row[np.maximum(labels, 0)] >= 0)
    for name, pair in pairs(logits, labels, weights).items():
        value, weight = np.moveaxis(np.asarray(pair), -1, 0)
        assert (weight[value != 0] > 0).all(), name
        if not LOSSES[name].by_row:
            counted = number if LOSSES[name].counts != "all" else labels != IGNORED
            np.testing.assert_array_equal(weight[weight != 0], weights[weight != 0])
            assert not weight[~counted | (weights == 0)].any(), name


@pytest.mark.parametrize("emptied", ["ignored", "text", "weights"])
def test_nothing_to_count(emptied):
    logits, labels, weights = batch()
    if emptied == "weights":
        weights = np.zeros_like(weights)
    else:
        labels = np.full_like(labels, IGNORED if emptied == "ignored" else 4)
    for name, arrays in compiled(logits, labels, weights).items():
        if emptied != "text" or LOSSES[name].counts != "all":
            assert not any(array.any() for array in arrays), name


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e30])
def test_what_is_not_counted_may_hold_anything(poison):
    logits, labels, weights = batch()
    kept = labels != IGNORED
    for where, without in (
        (kept, ()),
        # A weight is that of a number where several positions make one.
        (kept & (weights != 0), ("rows",)),
        # Text is what cross-entropy counts.
        (read(labels), ("all",)),
    ):
        poisoned = np.where(where[..., None], logits, np.float32(poison))
        for name, arrays in compiled(poisoned, labels, weights).items():
            if LOSSES[name].counts not in without:
                chex.assert_trees_all_equal(
                    arrays, standard()[name], custom_message=name
                )


@pytest.mark.parametrize("kind", extremes())
def test_extreme_logits_stay_finite(kind):
    _, labels, weights = batch()
    results = jax.device_get(compiled(extremes()[kind], labels, weights))
    bad = [name for name, arrays in results.items() if not all_finite(arrays)]
    assert not bad


def all_finite(arrays) -> bool:
    return all(np.isfinite(array).all() for array in arrays)


def test_a_constant_on_all_logits_changes_nothing():
    logits, labels, weights = batch()
    logits = np.round(logits * 64) / 64  # so that the sum with an integer is exact
    plain = compiled(logits, labels, weights)
    for constant in (-50, 20):
        shifted = compiled(logits + np.float32(constant), labels, weights)
        for name, loss in LOSSES.items():
            close = np.allclose(shifted[name][0], plain[name][0], rtol=1e-4, atol=1e-3)
            assert close is not loss.shifts, name
            if not loss.shifts:
                chex.assert_trees_all_close(
                    shifted[name], plain[name], rtol=1e-4, atol=1e-3
                )


def test_the_order_of_the_vocabulary_is_of_no_matter():
    logits, labels, weights = batch()
    places = np.random.default_rng(5).permutation(COLUMNS)
    columns = np.empty_like(logits)
    columns[..., places] = logits
    ids = np.append(places, IGNORED)[np.where(labels == IGNORED, COLUMNS, labels)]
    vocab = moved(places)

    @jax.jit
    def tokens(*data):
        return {name: total_and_tokens(name, *data, vocab)[1] for name in LOSSES}

    results = tokens(columns, ids.astype(np.int32), weights)
    assert_close(results, {name: x for name, (x, _) in standard().items()})


def test_slicing_is_masking():
    logits, labels, weights = batch()
    masked = compiled(logits, np.where([[1], [1], [0]], labels, IGNORED), weights)
    no_weight = compiled(logits, labels, weights * np.float32([[1], [1], [0]]))
    sliced = compiled(logits[:2], labels[:2], weights[:2])
    for results in (masked, no_weight):
        for name, arrays in results.items():
            assert not any(array[2].any() for array in arrays), name
        assert_close({k: (x[:2], g[:2]) for k, (x, g) in results.items()}, sliced)


def test_bfloat16_logits_are_worth_their_float32_copies():
    logits, labels, weights = batch()
    half = jnp.asarray(logits, jnp.bfloat16)
    expected = compiled(half.astype(jnp.float32), labels, weights)
    for name, (tokens, gradient) in compiled(half, labels, weights).items():
        assert tokens.dtype == jnp.float32 and gradient.dtype == jnp.bfloat16
        np.testing.assert_allclose(
            tokens, expected[name][0], rtol=1e-5, atol=1e-5, err_msg=name
        )
        np.testing.assert_allclose(
            gradient.astype(jnp.float32),
            expected[name][1],
            rtol=2**-8,
            atol=1e-5,
            err_msg=name,
        )


def test_one_trace_whatever_the_data_holds():
    logits, labels, weights = batch()
    for other in (labels[::-1], np.roll(labels, 1), np.full_like(labels, 13)):
        compiled(logits, np.ascontiguousarray(other), weights)
    seen = TRACES.count(logits.shape)
    compiled(logits * 2, labels, np.ones_like(weights))
    assert seen == TRACES.count(logits.shape) <= 2  # float32, and maybe bfloat16

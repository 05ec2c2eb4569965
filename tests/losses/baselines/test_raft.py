"""RAFT: known values, where the score is, a float64 twin, the edges."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax import NumberVocab, cross_entropy, ntl_mse
from ntl_jax.losses.baselines import raft, raft_cross_entropy_weights, score_positions
from tests.losses.baselines.checks import (
    DIGITS,
    assert_equals_twin,
    check_bfloat16,
    check_edges,
    peak,
    softmax,
    stacked,
)

END = 11
quick = jax.jit(raft, static_argnames="reduction")


def test_known_values():
    logits, labels = stacked()
    values = quick(logits[:, None], labels[:, None], DIGITS)[:, 0]
    assert float(values[0]) == pytest.approx(0.25, abs=2e-6)
    assert float(values[5]) == pytest.approx(22.197486, abs=2e-5)


def test_known_values_with_mass_off_the_grid():
    vocab = NumberVocab.from_mapping({str(i): i for i in range(10)}, vocab_size=20)
    logits = np.stack([np.zeros(20), np.pad(peak(4)[:10], (0, 10))]).astype(np.float32)
    logits[1, 10:] = 0.01
    labels = jnp.array([[4], [4]])
    values = quick(jnp.asarray(logits)[:, None], labels, vocab)[:, 0]
    np.testing.assert_allclose(values, [3.0625, 0.044489], atol=2e-6)
    renormalised = ntl_mse(jnp.asarray(logits)[:1, None], labels[:1], vocab)
    assert float(renormalised[0, 0]) == pytest.approx(0.25, abs=1e-6)


def test_known_values_on_a_grid_from_one_to_five():
    tokens = {str(i): i for i in range(1, 6)} | {"a": 0}
    vocab = NumberVocab.from_mapping(tokens, vocab_size=6)
    logits = np.zeros((2, 1, 6), np.float32)
    logits[1, 0, 5] = 5.0
    logits[:, :, 0] = -1e4
    values = quick(jnp.asarray(logits), jnp.array([[5], [5]]), vocab)[:, 0]
    np.testing.assert_allclose(values, [4.0, 0.004305], atol=2e-6)


def test_the_score_is_the_last_number_of_its_row():
    labels = jnp.array([[3, END, 4, END, -100], [END, END, -100, -100, -100]])
    last = score_positions(labels, DIGITS)
    assert last.tolist() == [[False, False, True, False, False], [False] * 5]
    second = score_positions(labels, DIGITS, from_end=2)
    assert second.tolist() == last.tolist()  # in the second row it is no number
    fourth = score_positions(labels, DIGITS, from_end=4)
    assert fourth[0].tolist() == [True, False, False, False, False]
    single = score_positions(jnp.array([4]), DIGITS)
    assert single.tolist() == [True]


def test_a_number_that_is_the_ignored_label_is_no_score():
    labels = jnp.array([3, 4, 4])
    assert score_positions(labels, DIGITS, ignore_index=4).tolist() == [
        True,
        False,
        False,
    ]


def test_the_mean_is_over_rows_with_a_score():
    logits = jnp.zeros((3, 2, 12))
    labels = jnp.array([[4, END], [0, END], [END, END]])
    mean = quick(logits, labels, DIGITS, reduction="mean")
    expected = (45 / 12 - 4) ** 2 / 2 + (45 / 12) ** 2 / 2
    assert mean == pytest.approx(expected, rel=1e-6)


def test_cross_entropy_leaves_the_score_out_unless_told(vocab, batch):
    logits, labels, weights = batch
    scores = score_positions(labels, vocab)
    kept = raft_cross_entropy_weights(labels, vocab, weights=weights)
    full = raft_cross_entropy_weights(labels, vocab, weights=weights, ce_on_score=True)
    assert scores.any() and not kept[scores].any()
    np.testing.assert_array_equal(kept[~scores], full[~scores])
    np.testing.assert_array_equal(full, jnp.where(labels == -100, 0, weights))
    masked = cross_entropy(logits, jnp.where(scores, -100, labels), weights=weights)
    np.testing.assert_allclose(cross_entropy(logits, labels, weights=kept), masked)
    none = jnp.zeros_like(scores)
    np.testing.assert_array_equal(
        raft_cross_entropy_weights(labels, vocab, scores=none, weights=weights), full
    )


def twin(vocab, at, logits, labels, weights):
    total = np.zeros(labels.shape)
    for index in np.argwhere(at):
        index = tuple(index)
        p = softmax(logits[index])[vocab.token_ids]
        y = vocab.values[vocab.row[labels[index]]]
        total[index] = weights[index] * ((p * vocab.values).sum() - y) ** 2
    return total


def test_values_and_gradients_in_float64(vocab, batch):
    _, labels, _ = batch
    at = np.asarray(score_positions(labels, vocab))
    assert at.sum() == 2  # one a row
    assert_equals_twin(raft, partial(twin, vocab, at), batch, vocab)
    given = jnp.zeros_like(at).at[0, 0].set(True)
    loss = partial(raft, scores=given)
    assert_equals_twin(loss, partial(twin, vocab, np.asarray(given)), batch, vocab)
    with pytest.raises(AssertionError):  # another position is seen
        assert_equals_twin(raft, partial(twin, vocab, np.asarray(given)), batch, vocab)


def test_edges(vocab, batch):
    _, labels, weights = batch
    counted = score_positions(labels, vocab) & (weights != 0)
    check_edges(raft, vocab, batch, counted)
    check_bfloat16(raft, vocab, batch)


def test_impossible_options_are_refused(unhooked):
    with pytest.raises(ValueError, match=r"from_end .*0"):
        score_positions(jnp.array([4]), DIGITS, from_end=0)
    with pytest.raises(ValueError, match=r"shape \(\)"):
        score_positions(jnp.array(4), DIGITS)

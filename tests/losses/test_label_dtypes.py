"""Labels in dtypes that are too narrow for ignore_index or for the vocabulary."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax import NumberVocab, Objective, objective_from_hidden, stats_from_logits
from ntl_jax.losses import digit_weights, shift_labels
from ntl_jax.losses.baselines import score_positions
from ntl_jax.losses.number_heads import xval_loss
from ntl_jax.losses.targets import clip_labels, label_is

# Unsigned labels are allowed, though the annotations have no word for them.
pytestmark = pytest.mark.usefixtures("unhooked")

# Bytes, as the models on bytes have them, and columns of their own beyond.
BYTES = {chr(i): i for i in range(256)}
VOCAB = NumberVocab.from_mapping(BYTES, vocab_size=300)
WRAPPED = 256 - 100  # what -100 is among bytes
TEXT = np.array([[*b"a-12.5", WRAPPED, 255], [*b"3 =47", 100, *b"9x"]])
OBJECTIVE = Objective(number_level=0.1, raft=0.1, place_base=1.2)


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.uint32])
def test_no_id_is_taken_for_another(dtype):
    rng = np.random.default_rng(0)
    hidden = jnp.asarray(rng.normal(size=(*TEXT.shape, 4)), jnp.float32)
    kernel = jnp.asarray(rng.normal(size=(4, 300)), jnp.float32)

    @jax.jit
    def both(labels):
        stats = stats_from_logits(hidden @ kernel, labels, VOCAB)
        fused = objective_from_hidden(OBJECTIVE, hidden, kernel, labels, VOCAB)
        return OBJECTIVE(stats, labels, VOCAB), fused

    wide, narrow = jnp.asarray(TEXT, jnp.int32), jnp.asarray(TEXT, dtype)
    chex.assert_trees_all_close(both(narrow), both(wide), rtol=1e-6)
    moved = both(narrow.at[0, 6].set(157))
    with pytest.raises(AssertionError):
        chex.assert_trees_all_close(moved, both(wide), rtol=1e-6)


def test_narrow_labels_of_a_wide_vocabulary():
    labels = jnp.array([100, 127, -3, -100], jnp.int8)
    assert clip_labels(labels, 300).tolist() == [100, 127, 0, 0]
    assert clip_labels(labels, 101).tolist() == [100, 100, 0, 0]
    assert clip_labels(jnp.array([156, 255], jnp.uint8), 300).tolist() == [156, 255]


def test_an_ignore_index_within_the_dtype_and_beyond():
    labels = jnp.array([255, 156, 1], jnp.uint8)
    assert label_is(labels, 255).tolist() == [True, False, False]
    assert not label_is(labels, -100).any() and not label_is(labels, 257).any()
    assert label_is(labels.astype(jnp.int8), -100).tolist() == [False, True, False]


def test_scores_and_numbers_of_bytes():
    labels = jnp.array([WRAPPED, ord("7"), WRAPPED], jnp.uint8)
    assert score_positions(labels, VOCAB, from_end=2).tolist() == [False, True, False]
    zeros = jnp.zeros(3)
    terms = xval_loss(jnp.zeros((3, 512)), zeros, labels, zeros, num_id=256 + WRAPPED)
    assert terms.mse.count == 0 and terms.ce.count == 3


def test_a_shift_refuses_what_it_cannot_hold():
    labels = jnp.array([1, 2, 3], jnp.uint8)
    with pytest.raises(ValueError, match=r"uint8 .*ignore_index=-100"):
        shift_labels(labels)
    assert shift_labels(labels, ignore_index=255).tolist() == [2, 3, 255]


@pytest.mark.parametrize("value", [None, 1.5, "pad"])
def test_an_ignore_index_is_an_integer(value):
    labels = jnp.asarray(TEXT)
    stats = stats_from_logits(jnp.zeros((*TEXT.shape, 300)), labels, VOCAB)
    with pytest.raises(TypeError, match=rf"ignore_index .*{value!r}.*-100"):
        digit_weights(labels, VOCAB, ignore_index=value)
    with pytest.raises(TypeError, match=r"ignore_index .*integer"):
        Objective(ignore_index=value)(stats, labels, VOCAB)


def test_floating_labels_are_refused_with_stats_too():
    stats = stats_from_logits(jnp.zeros((2, 8, 300)), jnp.asarray(TEXT), VOCAB)
    with pytest.raises(TypeError, match=r"labels .*float32"):
        OBJECTIVE(stats, jnp.asarray(TEXT, jnp.float32), VOCAB)

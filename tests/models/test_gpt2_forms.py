"""GPT-2 against itself: other layouts of rows, layers, vocabulary and dropout."""

import dataclasses
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax.hf.mapping import flatten
from ntl_jax.losses import (
    cross_entropy_from_stats,
    ntl_was_from_stats,
    stats_from_hidden,
    stats_from_logits,
)
from ntl_jax.models import GPT2Config, bind, init_params
from ntl_jax.numbers.vocab import NumberVocab
from tests.models.test_gpt2 import (
    assert_close,
    logits_and_gradient,
    relative_errors,
    run,
)
from tests.tiny_gpt2 import batch, real

TINY = GPT2Config(
    vocab_size=51,
    n_positions=48,
    n_embd=32,
    n_layer=2,
    n_head=4,
    initializer_range=0.2,
    bos_token_id=50,
    eos_token_id=50,
    pad_token_id=50,
)
UNTIED = dataclasses.replace(TINY, tie_word_embeddings=False)


@pytest.fixture(scope="module")
def params():
    return lively(TINY)


def lively(config, seed=0):
    """Fresh parameters, but no bias 0 and no scale 1."""

    def move(path, leaf):
        if path[-1].key not in ("bias", "scale"):
            return leaf
        key = jax.random.key(len(jax.tree_util.keystr(path)))
        return leaf + 0.3 * jax.random.normal(key, leaf.shape)

    params = init_params(config, jax.random.key(seed))
    return jax.tree_util.tree_map_with_path(move, params)


def gradient(config, params, data, key=None):
    return logits_and_gradient(config, params, data, key)[1]


def test_scanned_unrolled_and_recomputed_layers_agree(params):
    data, key = batch(), jax.random.key(1)
    grads = gradient(TINY, params, data, key)
    for change in ({"unroll_layers": True}, {"remat": True}, {"remat": "matmuls"}):
        other = gradient(dataclasses.replace(TINY, **change), params, data, key)
        assert max(relative_errors(other, grads).values()) < 1e-5
    calm = gradient(TINY, params, data)
    assert min(relative_errors(calm, grads).values()) > 1e-3


@pytest.mark.parametrize("padding", ["left", "right"])
def test_padded_rows_equal_rows_of_their_own(params, padding):
    data = batch(padding)
    logits = run(TINY, params, data)
    for row, seen in enumerate(real(data)):
        alone = {"input_ids": data["input_ids"][row : row + 1, seen]}
        assert_close(logits[row][seen], run(TINY, params, alone)[0], 1e-5)


def test_packed_rows_equal_separate_rows(params):
    draw = np.random.default_rng(0)
    lengths = (7, 1, 9, 5)
    texts = [draw.integers(0, 50, (1, n), dtype=np.int32) for n in lengths]
    ids = np.concatenate([*texts, np.full((1, 6), 50, np.int32)], axis=1)
    segments = np.repeat([3, 1, 2, 7, 0], [*lengths, 6])[None].astype(np.int32)
    packed = {"input_ids": ids, "segment_ids": segments}
    masked = packed | {"attention_mask": (segments > 0).astype(np.int32)}
    unmarked = run(TINY, params, {"input_ids": ids})[0]
    start = 0
    for text in texts:
        want = run(TINY, params, {"input_ids": text})[0]
        stop = start + text.shape[1]
        for data in (packed, masked):
            assert_close(run(TINY, params, data)[0, start:stop], want, 1e-5)
        if start:
            assert np.abs(unmarked[start:stop] - want).max() > 1e-2
        start = stop


def test_later_tokens_padding_and_other_segments_have_no_gradient(params):
    """Gradients of one position's logits with respect to every position's input."""
    segments = jnp.array([[1] * 4 + [2] * 8])
    mask = jnp.array([[0, 0] + [1] * 10])

    def logits_at(place, table_rows, **inputs):
        changed = dict(params, wte={"embedding": table_rows})
        ids = jnp.arange(12, dtype=jnp.int32)[None]
        untied = dict(changed, lm_head={"kernel": params["wte"]["embedding"].T})
        return jnp.sum(bind(UNTIED, untied)(ids, **inputs)[0, place] ** 2)

    def reached(place, **inputs):
        rows = jax.grad(partial(logits_at, place, **inputs))(params["wte"]["embedding"])
        return set(np.flatnonzero(np.abs(rows).max(axis=1)))

    assert reached(6) == set(range(7))
    assert reached(6, attention_mask=mask) == set(range(2, 7))
    assert reached(6, segment_ids=segments) == {4, 5, 6}
    assert reached(3, segment_ids=segments, attention_mask=mask) == {2, 3}


def test_a_row_with_nothing_to_see_stays_finite(params):
    data = batch()
    data["attention_mask"][1] = 0
    logits, grads = logits_and_gradient(TINY, params, data)
    assert np.isfinite(logits).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


def test_mask_may_be_bool_or_missing(params):
    data = batch()
    as_bool = dict(data, attention_mask=data["attention_mask"].astype(bool))
    chex.assert_trees_all_equal(run(TINY, params, data), run(TINY, params, as_bool))
    ones = dict(data, attention_mask=np.ones_like(data["attention_mask"]))
    missing = {"input_ids": data["input_ids"]}
    chex.assert_trees_all_close(
        run(TINY, params, ones), run(TINY, params, missing), atol=1e-5
    )


@pytest.mark.parametrize("config", [TINY, UNTIED], ids=["tied", "untied"])
def test_padded_vocabulary_changes_nothing(config):
    padded = config.pad_vocab(64)
    assert padded.rows == 64
    params, wide = lively(config), lively(padded)
    chex.assert_trees_all_equal(
        wide["wte"]["embedding"][:51], params["wte"]["embedding"]
    )
    data = batch()
    logits, grads = logits_and_gradient(config, params, data)
    wide_logits, wide_grads = logits_and_gradient(padded, wide, data)
    assert wide_logits.shape[-1] == 64 and (wide_logits[..., 51:] == -1e30).all()
    assert_close(wide_logits[..., :51], logits, 1e-5)
    flat, wide_flat = flatten(grads), flatten(wide_grads)
    for path, leaf in wide_flat.items():
        if path == "wte/embedding":
            assert not leaf[51:].any()
            leaf = leaf[:51]
        if path == "lm_head/kernel":
            assert not leaf[:, 51:].any()
            leaf = leaf[:, :51]
        assert_close(leaf, flat[path], 1e-4)


@pytest.mark.parametrize("fused", [False, True], ids=["logits", "hidden"])
def test_losses_are_the_same_over_a_padded_vocabulary(fused):
    digits = {str(digit): digit + 3 for digit in range(10)}
    vocab = NumberVocab.from_mapping(digits | {"": 50}, vocab_size=51)
    data, wide = batch(), lively(TINY.pad_vocab(64))
    labels = jnp.asarray(data["labels"])
    counted = real(data)[:, :, None]
    wide["wte"]["embedding"] = wide["wte"]["embedding"].at[51:].set(9.0)

    def total(params, config):
        model = bind(config, params)
        ids, mask = data["input_ids"], data["attention_mask"]
        hidden = model.hidden(ids, attention_mask=mask)
        hidden = jnp.where(counted, hidden, 0.0)  # of no meaning in padding
        if fused:
            stats = stats_from_hidden(hidden, model.head, labels, vocab)
        else:
            stats = stats_from_logits(model.logits(hidden), labels, vocab)
        weight = (labels != -100).astype(jnp.float32)
        cross = cross_entropy_from_stats(stats, labels, vocab, label_smoothing=0.1)[0]
        return jnp.sum((cross + ntl_was_from_stats(stats, labels, vocab)[0]) * weight)

    step = jax.jit(jax.value_and_grad(total), static_argnums=1)
    want, want_grads = step(lively(TINY), TINY)
    got, grads = step(wide, TINY.pad_vocab(64))
    assert_close(got, want, 1e-5)
    table = grads["wte"]["embedding"]
    assert not table[51:].any()
    assert_close(table[:51], want_grads["wte"]["embedding"], 1e-4)


def test_padding_is_logged_and_only_adds(caplog):
    with caplog.at_level("INFO"):
        assert GPT2Config.small().pad_vocab().vocab_rows == 50304
    assert "from 50257 to 50304" in caplog.text
    with pytest.raises(ValueError, match="vocab_rows is 50000, fewer than the 50257"):
        GPT2Config.small(vocab_rows=50000)


@pytest.mark.parametrize("config", [TINY, UNTIED], ids=["tied", "untied"])
def test_head_is_what_logits_multiply_by(config):
    model = bind(config, lively(config))
    ids = jnp.asarray(batch()["input_ids"])
    want = jnp.einsum("BTD,DV->BTV", model.hidden(ids), model.head)
    chex.assert_trees_all_close(model(ids), want, atol=1e-4)


def test_bfloat16_is_finite_and_close(params):
    data = batch()
    low = dataclasses.replace(TINY, dtype="bfloat16")
    want, grads = logits_and_gradient(TINY, params, data)
    got, low_grads = logits_and_gradient(low, params, data)
    assert got.dtype == jnp.float32
    seen = real(data)
    assert np.abs(got - want)[seen].max() < 0.05 * np.abs(want).max()
    for path, leaf in flatten(low_grads).items():
        assert leaf.dtype == jnp.float32
        want_leaf = flatten(grads)[path]
        assert np.linalg.norm(leaf - want_leaf) < 0.1 * np.linalg.norm(want_leaf), path


def test_dropout_needs_a_key_and_follows_it(params):
    data = batch("none")
    calm = run(TINY, params, data)
    first, again, other = (
        run(TINY, params, data, jax.random.key(seed)) for seed in (1, 1, 2)
    )
    chex.assert_trees_all_equal(first, again)
    assert np.abs(first - other).max() > 1e-2
    assert np.abs(first - calm).max() > 1e-2


@pytest.mark.parametrize("rate", ["embd_pdrop", "attn_pdrop", "resid_pdrop"])
def test_each_rate_drops_on_its_own(params, rate):
    none = {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
    data, key = batch("none"), jax.random.key(1)
    calm = run(TINY, params, data)
    without = dataclasses.replace(TINY, **none)
    chex.assert_trees_all_equal(run(without, params, data, key), calm)
    only = dataclasses.replace(TINY, **none | {rate: 0.1})
    assert np.abs(run(only, params, data, key) - calm).max() > 1e-2


def test_dropout_of_a_batch_in_parts_equals_the_whole(params):
    data, key = batch(rows=4), jax.random.key(5)
    whole = run(TINY, params, data, key)
    for rows, offset in (((0, 1), 0), ((2, 3), 2), ((1, 3), np.array([1, 2]))):
        rows = np.array(rows)
        part = run(TINY, params, {k: v[rows] for k, v in data.items()}, key, offset)
        chex.assert_trees_all_close(part, whole[rows], atol=1e-4)
    assert np.abs(run(TINY, params, data, key, 1) - whole).max() > 1e-2


def test_vmap_over_models_and_their_keys_equals_one_by_one(params):
    data = batch()
    both = jax.tree.map(lambda *x: jnp.stack(x), params, lively(TINY, seed=1))
    keys = jax.random.split(jax.random.key(0), 2)
    got = jax.vmap(lambda p, key: run(TINY, p, data, key))(both, keys)
    for index in range(2):
        one = jax.tree.map(lambda leaf, i=index: leaf[i], both)
        want = run(TINY, one, data, keys[index])
        chex.assert_trees_all_close(got[index], want, atol=1e-4)


def test_fresh_weights_have_hugging_faces_spread():
    config = GPT2Config(
        vocab_size=400,
        n_positions=64,
        n_embd=96,
        n_layer=3,
        tie_word_embeddings=False,
    )
    for path, leaf in flatten(init_params(config, jax.random.key(3))).items():
        if path.endswith("scale"):
            assert (leaf == 1).all()
        elif path.endswith("bias"):
            assert not leaf.any()
        else:
            residual = path.endswith(("o/kernel", "wo/kernel"))
            std = 0.02 / np.sqrt(6) if residual else 0.02
            assert abs(leaf.std() / std - 1) < 4 / np.sqrt(2 * leaf.size), path
            assert abs(leaf.mean()) < 4 * std / np.sqrt(leaf.size), path
            if "layers" in path:
                assert not np.array_equal(leaf[0], leaf[1]), path


def test_what_cannot_be_run_is_named(params):
    model = bind(TINY, params)
    ids = jnp.ones((2, 5), jnp.int32)
    with pytest.raises(ValueError, match=r"49 tokens .* n_positions = 48"):
        model(jnp.ones((1, 49), jnp.int32))
    with pytest.raises(ValueError, match=r"40 tokens and 9 to come are 49"):
        model.prefill(jnp.ones((1, 40), jnp.int32), None, 9)
    with pytest.raises(ValueError, match=r"\(2, 5\); one is \(2, 4\)"):
        model(ids, attention_mask=ids[:, :4])
    with pytest.raises(ValueError, match=r"\(2, 5\); one is \(1, 5\)"):
        model(ids, segment_ids=ids[:1])
    with pytest.raises(ValueError, match=r"\(5,\)"):
        model(ids[0])
    for change, text in (
        ({"dtype": "float16"}, "float16"),
        ({"activation_function": "swish"}, "swish"),
        ({"n_head": 5}, "n_embd 32 does not divide into n_head 5"),
        ({"n_layer": 0}, "n_layer is 0"),
        ({"attn_pdrop": 1.0}, r"attn_pdrop is 1\.0"),
        ({"n_inner": 0}, "n_inner is 0"),
    ):
        with pytest.raises(ValueError, match=text):
            dataclasses.replace(TINY, **change)

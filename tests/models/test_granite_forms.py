"""Granite against itself: other layouts of rows, layers, vocabulary and dropout."""

import dataclasses
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax.hf.mapping import flatten
from ntl_jax.models import GraniteConfig, bind, init_params
from tests.models.test_gpt2_decoding import (
    PROMPT,
    STEPS,
    decode,
    decoded,
    prefill,
    random_tokens,
    whole,
)
from tests.models.test_gpt2_forms import lively
from tests.models.test_granite import (
    assert_close,
    logits_and_gradient,
    relative_errors,
    run,
)
from tests.tiny_gpt2 import batch, real
from tests.tiny_granite import LONG, SIZES

DENSE = GraniteConfig(
    **SIZES | {"num_hidden_layers": 2, "pad_token_id": 50},
    initializer_range=0.2,
    rope_theta=40.0,
)
BIASED = dataclasses.replace(
    DENSE, tie_word_embeddings=False, attention_bias=True, mlp_bias=True
)
EXPERTS = dataclasses.replace(
    DENSE, num_local_experts=6, num_experts_per_tok=2, router_aux_loss_coef=0.5
)
CONFIGS = {"dense": DENSE, "experts": EXPERTS}


@pytest.fixture(params=CONFIGS, scope="module")
def model(request):
    """A config and parameters for it."""
    return CONFIGS[request.param], lively(CONFIGS[request.param])


# The dense model is the one of experts but for what it does at each position by itself.
experts_first = pytest.mark.parametrize(
    "model", ["experts", pytest.param("dense", marks=pytest.mark.slow)], indirect=True
)


def gradient(config, params, data, key=None):
    return logits_and_gradient(config, params, data, key)[2]


@experts_first
def test_scanned_unrolled_and_recomputed_layers_agree(model):
    config, params = model
    data, key = batch(length=LONG), jax.random.key(1)
    grads = gradient(config, params, data, key)
    for change in ({"unroll_layers": True}, {"remat": True}):
        other = gradient(dataclasses.replace(config, **change), params, data, key)
        assert max(relative_errors(other, grads).values()) < 1e-4
    calm = gradient(config, params, data)
    assert min(relative_errors(calm, grads).values()) > 1e-3


@pytest.mark.slow
def test_layers_whose_products_are_kept_agree(model):
    config, params = model
    data, key = batch(length=LONG), jax.random.key(1)
    grads = gradient(config, params, data, key)
    kept = dataclasses.replace(config, remat="matmuls")
    other = gradient(kept, params, data, key)
    assert max(relative_errors(other, grads).values()) < 1e-4


@pytest.mark.parametrize("padding", ["left", "right"])
def test_padded_rows_equal_rows_of_their_own(model, padding):
    config, params = model
    data = batch(padding, length=LONG)
    logits = run(config, params, data)
    for row, seen in enumerate(real(data)):
        alone = {"input_ids": data["input_ids"][row : row + 1, seen]}
        assert_close(logits[row][seen], run(config, params, alone)[0], 1e-5)


@experts_first
def test_packed_rows_equal_separate_rows(model):
    config, params = model
    draw = np.random.default_rng(0)
    lengths = (7, 1, 9, 5)
    texts = [draw.integers(0, 50, (1, n), dtype=np.int32) for n in lengths]
    ids = np.concatenate([*texts, np.full((1, 6), 50, np.int32)], axis=1)
    segments = np.repeat([3, 1, 2, 7, 0], [*lengths, 6])[None].astype(np.int32)
    packed = {"input_ids": ids, "segment_ids": segments}
    masked = packed | {"attention_mask": (segments > 0).astype(np.int32)}
    unmarked = run(config, params, {"input_ids": ids})[0]
    start = 0
    for text in texts:
        want = run(config, params, {"input_ids": text})[0]
        stop = start + text.shape[1]
        for data in (packed, masked):
            assert_close(run(config, params, data)[0, start:stop], want, 1e-5)
        if start:
            assert np.abs(unmarked[start:stop] - want).max() > 1e-2
        start = stop


@experts_first
def test_later_tokens_padding_and_other_segments_have_no_gradient(model):
    """Gradients of one position's logits with respect to every position's input."""
    config, params = model
    untied = dataclasses.replace(config, tie_word_embeddings=False)
    table = params["embed"]["embedding"]
    segments = jnp.array([[1] * 4 + [2] * 8])
    mask = jnp.array([[0, 0] + [1] * 10])

    def logits_at(place, rows, **inputs):
        changed = dict(params, embed={"embedding": rows}, lm_head={"kernel": table.T})
        ids = jnp.arange(12, dtype=jnp.int32)[None]
        return jnp.sum(bind(untied, changed)(ids, **inputs)[0, place] ** 2)

    def reached(place, **inputs):
        rows = jax.jit(jax.grad(partial(logits_at, place, **inputs)))(table)
        return set(np.flatnonzero(np.abs(rows).max(axis=1)))

    assert reached(6) == set(range(7))
    assert reached(6, attention_mask=mask) == set(range(2, 7))
    assert reached(6, segment_ids=segments) == {4, 5, 6}
    assert reached(3, segment_ids=segments, attention_mask=mask) == {2, 3}


def test_a_row_with_nothing_to_see_stays_finite(model):
    config, params = model
    data = batch(length=LONG)
    data["attention_mask"][1] = 0
    logits, router_loss, grads = logits_and_gradient(config, params, data)
    assert np.isfinite(logits).all() and np.isfinite(router_loss)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))
    data["attention_mask"][:] = 0
    if config.num_local_experts:
        assert logits_and_gradient(config, params, data)[1] == 0


@pytest.mark.parametrize("padding", ["left", "none"])
def test_every_decoding_step_equals_the_whole_sequence(model, padding):
    config, params = model
    data, tokens = batch(padding, length=PROMPT), random_tokens(3)
    want = np.asarray(run(config, params, whole(data, tokens)))[:, PROMPT - 1 :]
    got = decoded(config, params, data, tokens)
    assert_close(got.transpose(1, 0, 2), want, 1e-5)
    moved = decoded(config, params, data, np.roll(tokens, 1, axis=1))
    assert np.abs(moved.transpose(1, 0, 2) - want).max() > 1e-2


def test_cache_holds_key_heads_in_the_models_dtype(model):
    config = dataclasses.replace(model[0], dtype="bfloat16")
    data, tokens = batch(length=PROMPT), random_tokens(3)
    _, cache = prefill(config, model[1], data, STEPS)
    assert cache.keys.shape == (2, 3, PROMPT + STEPS, 2, 8)
    assert cache.keys.dtype == cache.values.dtype == jnp.bfloat16
    _, cache = decode(config, model[1], tokens[:, 0], cache)
    np.testing.assert_array_equal(cache.positions, data["attention_mask"].sum(1) + 1)


@pytest.mark.parametrize("config", [EXPERTS, BIASED], ids=["experts", "biased"])
def test_padded_vocabulary_changes_nothing(config):
    padded = config.pad_vocab(64)
    assert padded.rows == 64
    data = batch()
    logits, _, grads = logits_and_gradient(config, lively(config), data)
    wide_logits, _, wide = logits_and_gradient(padded, lively(padded), data)
    assert wide_logits.shape[-1] == 64 and (wide_logits[..., 51:] == -1e30).all()
    assert_close(wide_logits[..., :51], logits, 1e-5)
    for path, leaf in flatten(wide).items():
        if path == "embed/embedding":
            assert not leaf[51:].any()
            leaf = leaf[:51]
        if path == "lm_head/kernel":
            assert not leaf[:, 51:].any()
            leaf = leaf[:, :51]
        assert_close(leaf, flatten(grads)[path], 1e-4)


@pytest.mark.parametrize("config", [DENSE, BIASED, EXPERTS.pad_vocab(64)])
def test_head_is_what_logits_multiply_by(config):
    model = bind(config, lively(config))
    ids = jnp.asarray(batch()["input_ids"])
    want = jnp.einsum("BTD,DV->BTV", model.hidden(ids), model.head)
    chex.assert_trees_all_close(model(ids)[..., :51], want[..., :51], atol=1e-4)


def test_bfloat16_is_finite_and_close():
    data, params = batch(), lively(DENSE)
    low = dataclasses.replace(DENSE, dtype="bfloat16")
    want, _, grads = logits_and_gradient(DENSE, params, data)
    got, _, low_grads = logits_and_gradient(low, params, data)
    assert got.dtype == jnp.float32
    assert np.abs(got - want)[real(data)].max() < 0.05 * np.abs(want).max()
    for path, leaf in flatten(low_grads).items():
        assert leaf.dtype == jnp.float32
        want_leaf = flatten(grads)[path]
        assert np.linalg.norm(leaf - want_leaf) < 0.1 * np.linalg.norm(want_leaf), path


def test_bfloat16_experts_are_finite():
    # Not close at every token: a rounded score may choose another expert.
    low = dataclasses.replace(EXPERTS, dtype="bfloat16")
    params, data = lively(EXPERTS), batch(length=LONG)
    want, got = run(EXPERTS, params, data), run(low, params, data)
    seen = real(data)
    error = np.abs(got - want)[seen].max(axis=-1)
    assert np.median(error) < 0.05 * np.abs(want).max()
    grads = gradient(low, params, data)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


@experts_first
def test_dropout_of_a_batch_in_parts_equals_the_whole(model):
    config, params = model
    config = dataclasses.replace(config, attention_dropout=0.4)
    data, key = batch(rows=4), jax.random.key(5)
    together = run(config, params, data, key)
    rows = np.array([1, 3])
    part = jax.tree.map(lambda x: x[rows], data)
    apart = run(config, params, part, key, np.array([1, 2]))
    seen = real(part)
    assert_close(apart[seen], together[rows][seen], 1e-5)
    for other in (run(config, params, data), run(config, params, data, key, 1)):
        assert np.abs(other - together)[real(data)].max() > 1e-2


@experts_first
def test_models_run_under_vmap(model):
    """Many parameter sets at once, as a sweep trains them."""
    config, params = model
    data = batch("none", length=LONG)
    both = jax.tree.map(lambda leaf: jnp.stack([leaf, 1.1 * leaf]), params)
    got = jax.vmap(lambda p: gradient(config, p, data))(both)
    for index in range(2):
        own = jax.tree.map(lambda leaf, i=index: leaf[i], (both, got))
        want = gradient(config, own[0], data)
        assert max(relative_errors(own[1], want).values()) < 1e-4


@pytest.mark.parametrize("config", [BIASED, EXPERTS], ids=["biased", "experts"])
def test_fresh_weights_have_hugging_faces_spread(config):
    config = dataclasses.replace(config, initializer_range=0.03)
    for path, leaf in flatten(init_params(config, jax.random.key(3))).items():
        if path.endswith("scale"):
            assert (leaf == 1).all()
        elif path.endswith("bias"):
            assert not leaf.any()
        else:
            assert abs(leaf.std() / 0.03 - 1) < 4 / np.sqrt(2 * leaf.size), path
            if "layers" in path:
                assert not np.array_equal(leaf[0], leaf[1]), path


def test_shapes_and_lengths_that_disagree_are_named():
    model = bind(DENSE, lively(DENSE))
    ids = jnp.ones((2, 5), jnp.int32)
    with pytest.raises(ValueError, match=r"\(2, 5\).*\(2, 4\)"):
        model(ids, attention_mask=ids[:, :4])
    with pytest.raises(ValueError, match=r"\(5,\)"):
        model(ids[0])
    with pytest.raises(ValueError, match=r"5 tokens and 92 to come are 97.*= 96"):
        model.prefill(ids, None, 92)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 30}, "hidden_size 30 over num_attention_heads 32"),
        ({"num_key_value_heads": 5}, "num_key_value_heads 5 does not divide"),
        ({"num_local_experts": 4}, "num_experts_per_tok is 0 of num_local_experts 4"),
        ({"num_experts_per_tok": 4}, "is 4 of num_local_experts 0"),
        ({"logits_scaling": 0.0}, "logits_scaling is 0.0"),
        ({"dtype": "float16"}, "float16"),
        ({"vocab_rows": 49000}, "vocab_rows is 49000, fewer than the 49155"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"attention_dropout": 1.0}, "attention_dropout is 1.0"),
    ],
)
def test_impossible_configs_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        GraniteConfig.granite_3_2_2b(**change)
    experts = {"mlp_bias": True}
    with pytest.raises(ValueError, match="experts have no bias"):
        GraniteConfig.granite_3_1_1b_a400m(**experts)

"""Decoder-only models against themselves: other layouts of rows, layers, vocabulary."""

import dataclasses
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax.hf.mapping import flatten
from ntl_jax.models import GPT2Config, GraniteConfig, bind, init_params
from tests.models.cases import LONG, TINY, batch, real
from tests.models.running import (
    assert_close,
    gradient,
    lively,
    logits_and_gradient,
    relative_errors,
    run,
    step,
)

# How long rows are where experts must route them: GPT-2 has 48 positions.
LENGTHS = {"gpt2_tied": 20, "granite_dense": LONG, "granite_experts": LONG}
TABLE = {GPT2Config: "wte", GraniteConfig: "embed"}
PADDED_KINDS = ("gpt2_tied", "gpt2_untied", "granite_experts", "granite_biased")


@pytest.fixture(params=LENGTHS, scope="module")
def model(request):
    """A config, parameters for it, and a length of rows."""
    config = TINY[request.param]
    return config, lively(config), LENGTHS[request.param]


# The dense model is the one of experts but for what it does at each position by itself.
dense_is_slow = pytest.mark.parametrize(
    "model",
    [
        "gpt2_tied",
        "granite_experts",
        pytest.param("granite_dense", marks=pytest.mark.slow),
    ],
    indirect=True,
)
CHANGES = ({"unroll_layers": True}, {"remat": True}, {"remat": "matmuls"})


def changes():
    for name in LENGTHS:
        for change in CHANGES:
            slow = name == "granite_dense" or (
                name != "gpt2_tied" and change == {"remat": "matmuls"}
            )
            marks = pytest.mark.slow if slow else ()
            label = f"{name}-{'-'.join(map(str, *change.items()))}"
            yield pytest.param(name, change, marks=marks, id=label)


@pytest.mark.parametrize(("model", "change"), list(changes()), indirect=["model"])
def test_scanned_unrolled_and_recomputed_layers_agree(model, change):
    config, params, length = model
    data, key = batch(length=length), jax.random.key(1)
    grads = gradient(config, params, data, key)
    other = gradient(dataclasses.replace(config, **change), params, data, key)
    tolerance = 1e-5 if isinstance(config, GPT2Config) else 1e-4
    assert max(relative_errors(other, grads).values()) < tolerance
    calm = gradient(config, params, data)
    assert min(relative_errors(calm, grads).values()) > 1e-3


@pytest.mark.parametrize("padding", ["left", "right"])
def test_padded_rows_equal_unpadded_rows(model, padding):
    config, params, length = model
    data = batch(padding, length=length)
    logits = run(config, params, data)
    for row, seen in enumerate(real(data)):
        alone = {"input_ids": data["input_ids"][row : row + 1, seen]}
        assert_close(logits[row][seen], run(config, params, alone)[0], 1e-5)


@dense_is_slow
def test_packed_rows_equal_separate_rows(model):
    config, params, _ = model
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


@dense_is_slow
def test_later_tokens_padding_and_other_segments_have_no_gradient(model):
    """Gradients of one position's logits with respect to every position's input."""
    config, params, _ = model
    untied = dataclasses.replace(config, tie_word_embeddings=False)
    name = TABLE[type(config)]
    table = params[name]["embedding"]
    segments = jnp.array([[1] * 4 + [2] * 8])
    mask = jnp.array([[0, 0] + [1] * 10])

    def logits_at(place, rows, **inputs):
        changed = params | {name: {"embedding": rows}, "lm_head": {"kernel": table.T}}
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
    config, params, length = model
    data = batch(length=length)
    data["attention_mask"][1] = 0
    assert all(
        np.isfinite(x).all() for x in jax.tree.leaves(step(config, params, data))
    )
    data["attention_mask"][:] = 0
    assert step(config, params, data)[1] == 0


def test_mask_may_be_bool_or_missing():
    config, data = TINY["gpt2_tied"], batch()
    params = lively(config)
    as_bool = dict(data, attention_mask=data["attention_mask"].astype(bool))
    chex.assert_trees_all_equal(run(config, params, data), run(config, params, as_bool))
    ones = dict(data, attention_mask=np.ones_like(data["attention_mask"]))
    missing = {"input_ids": data["input_ids"]}
    chex.assert_trees_all_close(
        run(config, params, ones), run(config, params, missing), atol=1e-5
    )


@pytest.mark.parametrize("name", PADDED_KINDS)
def test_padded_vocabulary_changes_nothing(name):
    config = TINY[name]
    padded = config.pad_vocab(64)
    assert padded.rows == 64
    params, wide, data = lively(config), lively(padded), batch()
    table = f"{TABLE[type(config)]}/embedding"
    chex.assert_trees_all_equal(flatten(wide)[table][:51], flatten(params)[table])
    logits, grads = logits_and_gradient(config, params, data)
    wide_logits, wide_grads = logits_and_gradient(padded, wide, data)
    assert wide_logits.shape[-1] == 64 and (wide_logits[..., 51:] == -1e30).all()
    assert_close(wide_logits[..., :51], logits, 1e-5)
    for path, leaf in flatten(wide_grads).items():
        if path == table:
            assert not leaf[51:].any()
            leaf = leaf[:51]
        if path == "lm_head/kernel":
            assert not leaf[:, 51:].any()
            leaf = leaf[:, :51]
        assert_close(leaf, flatten(grads)[path], 1e-4)


@pytest.mark.parametrize("rows", [51, 64])
@pytest.mark.parametrize("name", PADDED_KINDS)
def test_head_is_what_logits_multiply_by(name, rows):
    config = dataclasses.replace(TINY[name], vocab_rows=rows)
    model = bind(config, lively(config))
    ids = jnp.asarray(batch()["input_ids"])
    want = jnp.einsum("BTD,DV->BTV", model.hidden(ids), model.head)
    chex.assert_trees_all_close(model(ids)[..., :51], want[..., :51], atol=1e-4)


@pytest.mark.parametrize("name", ["gpt2_tied", "granite_dense"])
def test_bfloat16_is_finite_and_close(name):
    config, data = TINY[name], batch()
    params, low = lively(config), dataclasses.replace(config, dtype="bfloat16")
    want, grads = logits_and_gradient(config, params, data)
    got, low_grads = logits_and_gradient(low, params, data)
    assert got.dtype == jnp.float32
    assert np.abs(got - want)[real(data)].max() < 0.05 * np.abs(want).max()
    for path, leaf in flatten(low_grads).items():
        assert leaf.dtype == jnp.float32
        want_leaf = flatten(grads)[path]
        assert np.linalg.norm(leaf - want_leaf) < 0.1 * np.linalg.norm(want_leaf), path


def test_bfloat16_experts_are_finite():
    # Not close at every token: a rounded score may choose another expert.
    config, data = TINY["granite_experts"], batch(length=LONG)
    params, low = lively(config), dataclasses.replace(config, dtype="bfloat16")
    want, got = run(config, params, data), run(low, params, data)
    error = np.abs(got - want)[real(data)].max(axis=-1)
    assert np.median(error) < 0.05 * np.abs(want).max()
    grads = gradient(low, params, data)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


def test_dropout_needs_a_key_and_follows_it():
    config, data = TINY["gpt2_tied"], batch("none")
    params = lively(config)
    calm = run(config, params, data)
    first, second, other = (
        run(config, params, data, jax.random.key(seed)) for seed in (1, 1, 2)
    )
    chex.assert_trees_all_equal(first, second)
    assert np.abs(first - other).max() > 1e-2
    assert np.abs(first - calm).max() > 1e-2


@pytest.mark.parametrize("rate", ["embd_pdrop", "attn_pdrop", "resid_pdrop"])
def test_each_rate_of_gpt2_drops_on_its_own(rate):
    config = TINY["gpt2_tied"]
    none = {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
    params, data, key = lively(config), batch("none"), jax.random.key(1)
    calm = run(config, params, data)
    without = dataclasses.replace(config, **none)
    chex.assert_trees_all_equal(run(without, params, data, key), calm)
    only = dataclasses.replace(config, **none | {rate: 0.1})
    assert np.abs(run(only, params, data, key) - calm).max() > 1e-2


@dense_is_slow
def test_dropout_of_a_batch_in_parts_equals_the_whole(model):
    config, params, _ = model
    if isinstance(config, GraniteConfig):
        config = dataclasses.replace(config, attention_dropout=0.4)
    data, key = batch(rows=4), jax.random.key(5)
    whole = run(config, params, data, key)
    for rows, offset in (((0, 1), 0), ((2, 3), 2), ((1, 3), np.array([1, 2]))):
        rows = np.array(rows)
        part = {k: v[rows] for k, v in data.items()}
        got = run(config, params, part, key, offset)
        assert_close(got[real(part)], whole[rows][real(part)], 1e-5)
    for other in (run(config, params, data), run(config, params, data, key, 1)):
        assert np.abs(other - whole)[real(data)].max() > 1e-2


@dense_is_slow
def test_models_run_under_vmap(model):
    """Many parameter sets and keys at once, as a sweep trains them."""
    config, params, length = model
    data = batch("none", length=length)
    both = jax.tree.map(lambda leaf: jnp.stack([leaf, 1.1 * leaf]), params)
    keys = jax.random.split(jax.random.key(0), 2)
    got = jax.vmap(lambda p, key: gradient(config, p, data, key))(both, keys)
    for index in range(2):
        one, grads = jax.tree.map(lambda leaf, i=index: leaf[i], (both, got))
        want = gradient(config, one, data, keys[index])
        assert max(relative_errors(grads, want).values()) < 1e-4


@pytest.mark.parametrize("name", ["gpt2_untied", "granite_biased", "granite_experts"])
def test_fresh_weights_have_hugging_faces_spread(name):
    config = dataclasses.replace(TINY[name], initializer_range=0.03)
    if isinstance(config, GPT2Config):
        wide = {"vocab_size": 400, "n_positions": 64, "n_embd": 96, "n_layer": 3}
        config = dataclasses.replace(config, **wide, initializer_range=0.02)
    for path, leaf in flatten(init_params(config, jax.random.key(3))).items():
        if path.endswith("scale"):
            assert (leaf == 1).all()
        elif path.endswith("bias"):
            assert not leaf.any()
        else:
            std = config.initializer_range
            if isinstance(config, GPT2Config):
                residual = path.endswith(("o/kernel", "wo/kernel"))
                std = std / np.sqrt(6) if residual else std
                assert abs(leaf.mean()) < 4 * std / np.sqrt(leaf.size), path
            assert abs(leaf.std() / std - 1) < 4 / np.sqrt(2 * leaf.size), path
            if "layers" in path:
                assert not np.array_equal(leaf[0], leaf[1]), path

"""T5's single steps equal the whole model, with beams that change places too."""

import dataclasses
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax.generate.decoder import Decoder, compute_params
from ntl_jax.models import T5Config, bind, init_params
from tests.generate.answers import SMALLER
from tests.models.cases import t5_batch as batch

TOLERANCE = 1e-5  # of a block, float32
CONFIG = T5Config(vocab_size=50, tie_word_embeddings=False, **SMALLER)


def whole(config, params, data, tokens):
    model = bind(config, params)
    mask = jnp.asarray(data["attention_mask"])
    return model.hidden(data["input_ids"], tokens, attention_mask=mask)


@partial(jax.jit, static_argnums=0)
def stepped(config, params, data, tokens, parents):
    """Hidden states [T, B, W, D] of beams that are given `tokens` [T, B, W].

    After step t beam w becomes the heir of beam parents[t, w].
    """
    steps, batch_size, beams = tokens.shape
    source = (data["input_ids"], data["attention_mask"], steps, beams)
    decoder = Decoder(config, params, *source)
    ancestry = jnp.zeros((batch_size, beams, steps), jnp.int32)
    cache, outputs = decoder.cache, []
    for t in range(steps):
        own = jnp.arange(beams, dtype=jnp.int32)[None]
        ancestry = ancestry.at[:, :, t].set(jnp.broadcast_to(own, (batch_size, beams)))
        given = None if beams == 1 else ancestry
        hidden, cache = decoder.step(tokens[t], jnp.int32(t), cache, given)
        outputs.append(hidden)
        ancestry = ancestry[:, parents[t]]
    return jnp.stack(outputs)


@pytest.mark.parametrize("tied", [True, False])
def test_every_step_equals_the_whole_model(tied):
    config = dataclasses.replace(CONFIG, tie_word_embeddings=tied)
    params, data = init_params(config, jax.random.key(0)), batch()
    tokens = data["labels"]
    want = jax.jit(whole, static_argnums=0)(config, params, data, tokens)
    given = jnp.asarray(tokens.T[..., None])
    parents = np.zeros((len(given), 1), np.int32)
    got = stepped(config, params, data, given, parents)[:, :, 0]
    chex.assert_trees_all_close(got, jnp.swapaxes(want, 0, 1), atol=TOLERANCE)
    # Neighbouring positions differ by far more: the comparison can fail.
    assert np.abs(want[:, 1:] - want[:, :-1]).max(axis=(0, 2)).min() > 100 * TOLERANCE


def test_beams_see_their_own_ancestors_alone():
    params, data = init_params(CONFIG, jax.random.key(0)), batch()
    steps, rows, beams = 6, 3, 3
    draw = np.random.default_rng(5)
    tokens = draw.integers(2, 50, (steps, rows, beams), dtype=np.int32)
    parents = draw.integers(0, beams, (steps, beams), dtype=np.int32)
    got = stepped(CONFIG, params, data, jnp.asarray(tokens), parents)
    histories = np.zeros((rows, beams, 0), np.int32)
    full = jax.jit(whole, static_argnums=0)
    for t in range(steps):
        histories = np.concatenate([histories, tokens[t][..., None]], axis=2)
        # Padded to one length: later tokens are never seen.
        padded = np.pad(histories, ((0, 0), (0, 0), (0, steps - 1 - t)))
        for beam in range(beams):
            want = full(CONFIG, params, data, padded[:, beam])[:, t]
            chex.assert_trees_all_close(got[t, :, beam], want, atol=TOLERANCE)
        histories = histories[:, parents[t]]
    unmoved = np.tile(np.arange(beams, dtype=np.int32), (steps, 1))
    wrong = stepped(CONFIG, params, data, jnp.asarray(tokens), unmoved)
    assert np.abs(wrong - got).max() > 100 * TOLERANCE  # the comparison can fail


@pytest.mark.parametrize("tied", [True, False])
def test_logits_equal_the_model_s(tied):
    config = dataclasses.replace(CONFIG, tie_word_embeddings=tied)
    params, data = init_params(config, jax.random.key(0)), batch()
    decoder = Decoder(config, params, data["input_ids"], None, 4)
    hidden = jnp.asarray(np.random.default_rng(0).normal(size=(3, 1, 16)), jnp.float32)
    logits = decoder.logits(hidden, 50)
    chex.assert_trees_all_close(logits, decoder.model.logits(hidden), atol=TOLERANCE)
    narrow = np.asarray(decoder.logits(hidden, 40))
    assert np.array_equal(narrow[..., :40], logits[..., :40])
    assert (narrow[..., 40:] == -np.inf).all()
    with pytest.raises(ValueError, match=r"vocab_size .*51.*50"):
        decoder.logits(hidden, 51)


def test_matrices_are_cast_once_and_the_model_computes_the_same():
    low = dataclasses.replace(CONFIG, dtype="bfloat16")
    params, data = init_params(low, jax.random.key(0)), batch()
    cast = compute_params(params, "bfloat16")
    assert cast["decoder"]["layers"]["mlp"]["wi"]["kernel"].dtype == jnp.bfloat16
    assert cast["decoder"]["relative_bias"]["embedding"].dtype == jnp.float32
    assert cast["decoder"]["final_norm"]["scale"].dtype == jnp.float32
    full = jax.jit(whole, static_argnums=0)
    want = full(low, params, data, data["labels"])
    assert np.array_equal(full(low, cast, data, data["labels"]), want)

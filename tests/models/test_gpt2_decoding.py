"""GPT-2 one token at a time: every step equals the whole sequence at once."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax.models import bind
from tests.models.test_gpt2 import assert_close, run
from tests.models.test_gpt2_forms import TINY, lively
from tests.tiny_gpt2 import batch, real

PROMPT, STEPS = 12, 8


@partial(jax.jit, static_argnums=(0, 3))
def prefill(config, params, data, length):
    model = bind(config, params)
    hidden, cache = model.prefill(data["input_ids"], data.get("attention_mask"), length)
    return model.logits(hidden)[:, 0], cache


@partial(jax.jit, static_argnums=0)
def decode(config, params, tokens, cache):
    model = bind(config, params)
    hidden, cache = model.decode_step(tokens, cache)
    return model.logits(hidden)[:, 0], cache


def decoded(config, params, data, tokens):
    """Logits after the prompt and after each of the tokens, [1 + STEPS, B, V]."""
    logits, cache = prefill(config, params, data, STEPS)
    steps = [logits]
    for token in tokens.T:
        logits, cache = decode(config, params, jnp.asarray(token), cache)
        steps.append(logits)
    return np.stack(steps)


def whole(data, tokens):
    """The prompt with the tokens behind it."""
    longer = {"input_ids": np.concatenate([data["input_ids"], tokens], axis=1)}
    if "attention_mask" in data:
        ones = np.ones_like(tokens)
        longer["attention_mask"] = np.concatenate([data["attention_mask"], ones], 1)
    return longer


def random_tokens(rows):
    return np.random.default_rng(4).integers(0, 50, (rows, STEPS), dtype=np.int32)


@pytest.mark.parametrize("unroll", [False, True], ids=["scanned", "unrolled"])
@pytest.mark.parametrize(("padding", "rows"), [("left", 3), ("none", 3), ("none", 1)])
def test_every_step_equals_the_whole_sequence(padding, rows, unroll):
    config = dataclasses.replace(TINY, unroll_layers=unroll)
    params = lively(config)
    data, tokens = batch(padding, rows=rows, length=PROMPT), random_tokens(rows)
    want = np.asarray(run(config, params, whole(data, tokens)))[:, PROMPT - 1 :]
    got = decoded(config, params, data, tokens)
    assert_close(got.transpose(1, 0, 2), want, 1e-5)


def test_one_left_padded_row_equals_its_prompt_alone():
    params = lively(TINY)
    data, tokens = batch(length=PROMPT), random_tokens(3)
    together = decoded(TINY, params, data, tokens)
    for row in range(3):
        seen = real(data)[row]
        padded = {k: v[row : row + 1] for k, v in data.items()}
        bare = {"input_ids": data["input_ids"][row : row + 1, seen]}
        for alone in (padded, bare):
            got = decoded(TINY, params, alone, tokens[row : row + 1])
            assert_close(got[:, 0], together[:, row], 1e-5)
    unmasked = decoded(TINY, params, {"input_ids": data["input_ids"]}, tokens)
    assert np.abs(unmasked - together).max() > 1e-2


def test_cache_counts_its_slots_and_positions():
    data = batch(length=PROMPT)
    _, cache = prefill(TINY, lively(TINY), data, STEPS)
    assert cache.keys.shape == (2, 3, PROMPT + STEPS, 4, 8)
    assert cache.filled == PROMPT and cache.seen[:, PROMPT:].sum() == 0
    np.testing.assert_array_equal(cache.positions, data["attention_mask"].sum(1))
    _, cache = decode(TINY, lively(TINY), jnp.array([1, 2, 3]), cache)
    assert cache.filled == PROMPT + 1 and cache.seen[:, PROMPT].all()
    np.testing.assert_array_equal(cache.positions, data["attention_mask"].sum(1) + 1)
    assert not cache.keys[:, :, PROMPT + 1 :].any()


def test_bfloat16_caches_bfloat16():
    config = dataclasses.replace(TINY, dtype="bfloat16")
    params = lively(config)
    data, tokens = batch(length=PROMPT), random_tokens(3)
    assert prefill(config, params, data, STEPS)[1].keys.dtype == jnp.bfloat16
    want = np.asarray(run(config, params, whole(data, tokens)))[:, PROMPT - 1 :]
    got = decoded(config, params, data, tokens).transpose(1, 0, 2)
    assert np.abs(got - want).max() < 0.05 * np.abs(want).max()


def test_decoding_runs_inside_a_loop():
    """One compiled loop: the cache keeps its shapes and types from step to step."""
    params = lively(TINY)
    data, tokens = batch(length=PROMPT), random_tokens(3)

    @jax.jit
    def loop(params, data, tokens):
        model = bind(TINY, params)
        mask = data["attention_mask"]
        hidden, cache = model.prefill(data["input_ids"], mask, STEPS)

        def step(cache, token):
            hidden, cache = model.decode_step(token, cache)
            return cache, model.logits(hidden)[:, 0]

        _, later = jax.lax.scan(step, cache, tokens.T)
        return jnp.concatenate([model.logits(hidden)[:, 0][None], later])

    want = decoded(TINY, params, data, tokens)
    assert_close(loop(params, data, tokens), want, 1e-5)


def test_a_row_of_nothing_but_padding_stays_finite():
    params = lively(TINY)
    data, tokens = batch(length=PROMPT), random_tokens(3)
    data["attention_mask"][1] = 0
    assert np.isfinite(decoded(TINY, params, data, tokens)).all()

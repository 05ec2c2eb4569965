"""Decoder-only models one token at a time: every step equals the whole sequence."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax.models import bind
from tests.models.cases import TINY, batch, real
from tests.models.running import (
    PROMPT,
    STEPS,
    assert_close,
    decode,
    decoded,
    lively,
    prefill,
    random_tokens,
    run,
    whole,
)

GPT2 = TINY["gpt2_tied"]
CONFIGS = {
    "gpt2": GPT2,
    "gpt2 unrolled": dataclasses.replace(GPT2, unroll_layers=True),
    "granite": TINY["granite_dense"],
    "experts": TINY["granite_experts"],
}


@pytest.fixture(scope="module")
def params():
    return lively(GPT2)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("padding", "rows"), [("left", 3), ("none", 3), ("none", 1)])
def test_every_step_equals_the_whole_sequence(padding, rows, name):
    if rows == 1 and not name.startswith("gpt2"):
        pytest.skip("one row is compared in one family")
    config = CONFIGS[name]
    params = lively(config)
    data, tokens = batch(padding, rows=rows, length=PROMPT), random_tokens(rows)
    want = np.asarray(run(config, params, whole(data, tokens)))[:, PROMPT - 1 :]
    assert_close(decoded(config, params, data, tokens).transpose(1, 0, 2), want, 1e-5)
    moved = decoded(config, params, data, np.roll(tokens, 1, axis=1))
    assert np.abs(moved.transpose(1, 0, 2) - want).max() > 1e-2


def test_one_left_padded_row_equals_its_prompt_alone(params):
    data, tokens = batch(length=PROMPT), random_tokens(3)
    together = decoded(GPT2, params, data, tokens)
    for row in range(3):
        seen = real(data)[row]
        padded = {k: v[row : row + 1] for k, v in data.items()}
        bare = {"input_ids": data["input_ids"][row : row + 1, seen]}
        for alone in (padded, bare):
            got = decoded(GPT2, params, alone, tokens[row : row + 1])
            assert_close(got[:, 0], together[:, row], 1e-5)
    unmasked = decoded(GPT2, params, {"input_ids": data["input_ids"]}, tokens)
    assert np.abs(unmasked - together).max() > 1e-2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "heads"), [("gpt2", 4), ("granite", 2), ("experts", 2)]
)
def test_cache_counts_its_slots_and_positions(name, heads, dtype):
    config = dataclasses.replace(CONFIGS[name], dtype=dtype)
    data, params = batch(length=PROMPT), lively(config)
    _, cache = prefill(config, params, data, STEPS)
    assert cache.keys.shape == (2, 3, PROMPT + STEPS, heads, 8)
    assert cache.keys.dtype == cache.values.dtype == jnp.dtype(dtype)
    assert cache.filled == PROMPT and cache.seen[:, PROMPT:].sum() == 0
    np.testing.assert_array_equal(cache.positions, data["attention_mask"].sum(1))
    _, cache = decode(config, params, jnp.array([1, 2, 3]), cache)
    assert cache.filled == PROMPT + 1 and cache.seen[:, PROMPT].all()
    np.testing.assert_array_equal(cache.positions, data["attention_mask"].sum(1) + 1)
    assert not cache.keys[:, :, PROMPT + 1 :].any()


def test_bfloat16_steps_are_close_to_the_whole_sequence(params):
    config = dataclasses.replace(GPT2, dtype="bfloat16")
    data, tokens = batch(length=PROMPT), random_tokens(3)
    want = np.asarray(run(config, params, whole(data, tokens)))[:, PROMPT - 1 :]
    got = decoded(config, params, data, tokens).transpose(1, 0, 2)
    assert np.abs(got - want).max() < 0.05 * np.abs(want).max()


def test_decoding_runs_inside_a_loop(params):
    """One compiled loop: the cache keeps its shapes and types from step to step."""
    data, tokens = batch(length=PROMPT), random_tokens(3)

    @jax.jit
    def loop(params, data, tokens):
        model = bind(GPT2, params)
        mask = data["attention_mask"]
        hidden, cache = model.prefill(data["input_ids"], mask, STEPS)

        def step(cache, token):
            hidden, cache = model.decode_step(token, cache)
            return cache, model.logits(hidden)[:, 0]

        _, later = jax.lax.scan(step, cache, tokens.T)
        return jnp.concatenate([model.logits(hidden)[:, 0][None], later])

    want = decoded(GPT2, params, data, tokens)
    assert_close(loop(params, data, tokens), want, 1e-5)


def test_a_row_of_nothing_but_padding_stays_finite(params):
    data, tokens = batch(length=PROMPT), random_tokens(3)
    data["attention_mask"][1] = 0
    assert np.isfinite(decoded(GPT2, params, data, tokens)).all()

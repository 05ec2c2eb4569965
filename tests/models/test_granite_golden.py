"""Granite against numbers that PyTorch gave once; needs no PyTorch."""

import json
from pathlib import Path

import numpy as np
import pytest

from ntl_jax.hf import granite
from tests.models.test_gpt2_decoding import decode, prefill
from tests.models.test_granite import (
    TOLERANCE,
    assert_close,
    logits_and_gradient,
    relative_errors,
)
from tests.tiny_gpt2 import real
from tests.tiny_granite import KINDS, to_params
from tests.tiny_t5 import perturbed

GOLDEN = Path(__file__).parents[1] / "golden"


def load(kind):
    """Config, parameters, and a function that gives the arrays under a prefix."""
    with np.load(GOLDEN / f"granite_{kind}.npz") as file:
        arrays = dict(file)

    def under(prefix):
        found = {k: v for k, v in arrays.items() if k.startswith(prefix)}
        return {k.removeprefix(prefix): v for k, v in found.items()}

    named = under("tensor/")
    raw = json.loads(str(arrays["config"]))
    config = granite.read_config(raw, list(named), named.__getitem__)
    return config, to_params(config, named), under


@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_gradients(kind, padding):
    config, params, under = load(kind)
    data, want = under(f"{padding}/batch/"), under(f"{padding}/logits")[""]
    want_grads = to_params(config, under(f"{padding}/gradient/"))
    seen = real(data)
    logits, _, grads = logits_and_gradient(config, params, data)
    assert_close(np.asarray(logits)[seen], want[seen])
    errors = relative_errors(grads, want_grads)
    assert max(errors.values()) < TOLERANCE, errors

    wrong = perturbed(params, "layers/attention/o/kernel")
    logits, _, grads = logits_and_gradient(config, wrong, data)
    error = np.abs(logits - want)[seen].max()
    assert error > 2 * TOLERANCE * np.abs(want).max()
    assert max(relative_errors(grads, want_grads).values()) > 2 * TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_tokens_after_left_padded_prompts(kind):
    config, params, under = load(kind)
    data, want = under("left/batch/"), under("tokens")[""]

    def greedy(params, data):
        logits, cache = prefill(config, params, data, want.shape[1])
        tokens = [np.argmax(logits, axis=-1)]
        for _ in range(want.shape[1] - 1):
            logits, cache = decode(config, params, tokens[-1].astype(np.int32), cache)
            tokens.append(np.argmax(logits, axis=-1))
        return np.stack(tokens, axis=1)

    np.testing.assert_array_equal(greedy(params, data), want)
    unmasked = dict(data, attention_mask=np.ones_like(data["attention_mask"]))
    assert not np.array_equal(greedy(params, unmasked), want)
    wrong = perturbed(params, "layers/attention/o/kernel")
    assert not np.array_equal(greedy(wrong, data), want)

"""Every model family against numbers that PyTorch gave once; needs no PyTorch."""

import json
from pathlib import Path

import numpy as np
import pytest

from ntl_jax.generate import greedy
from tests.models.cases import (
    CASES,
    DECODERS,
    T5_CASES,
    perturbed,
    read_config,
    real,
    to_params,
)
from tests.models.running import (
    TOLERANCE,
    decode,
    logit_error,
    logits_and_gradient,
    prefill,
    relative_errors,
)

GOLDEN = Path(__file__).parents[1] / "golden"


def load(name):
    """Config, parameters, and a function that gives the arrays under a prefix."""
    with np.load(GOLDEN / f"{name}.npz") as file:
        arrays = dict(file)

    def under(prefix):
        found = {k: v for k, v in arrays.items() if k.startswith(prefix)}
        return {k.removeprefix(prefix): v for k, v in found.items()}

    named = under("tensor/")
    config = read_config(json.loads(str(arrays["config"])), named)
    return config, to_params(config, named), under


@pytest.mark.parametrize(
    ("name", "prefix"),
    [(name, "") for name in T5_CASES]
    + [(name, padding) for name in DECODERS for padding in ("left/", "right/")],
)
def test_logits_and_gradients(name, prefix):
    config, params, under = load(name)
    data, want = under(f"{prefix}batch/"), under(f"{prefix}logits")[""]
    want_grads = to_params(config, under(f"{prefix}gradient/"))

    def errors(params):
        logits, grads = logits_and_gradient(config, params, data)
        leaves = relative_errors(grads, want_grads)
        return logit_error(config, logits, want, real(data)), max(leaves.values())

    assert max(errors(params)) < TOLERANCE
    assert min(errors(perturbed(params, CASES[name].probe))) > 2 * TOLERANCE


@pytest.mark.parametrize("name", T5_CASES)
def test_greedy_tokens(name):
    config, params, under = load(name)
    data, want = under("batch/"), under("tokens")[""]
    ids, mask = data["input_ids"], data["attention_mask"]
    options = {"attention_mask": mask, "max_new_tokens": want.shape[1]}
    np.testing.assert_array_equal(greedy(config, params, ids, **options), want)


@pytest.mark.parametrize("name", DECODERS)
def test_greedy_tokens_after_left_padded_prompts(name):
    config, params, under = load(name)
    data, want = under("left/batch/"), under("tokens")[""]

    def tokens(params, data):
        logits, cache = prefill(config, params, data, want.shape[1])
        found = [np.argmax(logits, axis=-1)]
        for _ in range(want.shape[1] - 1):
            logits, cache = decode(config, params, found[-1].astype(np.int32), cache)
            found.append(np.argmax(logits, axis=-1))
        return np.stack(found, axis=1)

    np.testing.assert_array_equal(tokens(params, data), want)
    unmasked = dict(data, attention_mask=np.ones_like(data["attention_mask"]))
    assert not np.array_equal(tokens(params, unmasked), want)
    wrong = perturbed(params, CASES[name].probe)
    assert not np.array_equal(tokens(wrong, data), want)

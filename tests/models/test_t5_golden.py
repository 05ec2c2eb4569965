"""T5 against numbers that PyTorch gave once; needs no PyTorch."""

import json
from pathlib import Path

import chex
import numpy as np
import pytest

from ntl_jax.generate import greedy
from ntl_jax.hf import t5
from tests.models.test_t5 import TOLERANCE, logits_and_gradient, relative_errors
from tests.tiny_t5 import KINDS, perturbed, to_params

GOLDEN = Path(__file__).parents[1] / "golden"


def load(kind):
    """Config, parameters, batch, and the file itself."""
    with np.load(GOLDEN / f"t5_{kind}.npz") as file:
        arrays = dict(file)

    def under(prefix):
        return {k.removeprefix(prefix): v for k, v in arrays.items() if prefix in k}

    named = under("tensor/")
    raw = json.loads(str(arrays["config"]))
    config = t5.read_config(raw, list(named), named.__getitem__)
    gradients = to_params(config, under("gradient/"))
    return config, to_params(config, named), under("batch/"), gradients, arrays


@pytest.mark.parametrize("kind", KINDS)
def test_logits_gradients_and_greedy_tokens(kind):
    config, params, data, gradients, arrays = load(kind)
    logits, grads = logits_and_gradient(config, params, data)
    chex.assert_trees_all_close(logits, arrays["logits"], atol=TOLERANCE)
    errors = relative_errors(grads, gradients)
    assert max(errors.values()) < TOLERANCE, errors
    tokens = greedy(
        config,
        params,
        data["input_ids"],
        attention_mask=data["attention_mask"],
        max_new_tokens=arrays["tokens"].shape[1],
    )
    chex.assert_trees_all_equal(np.asarray(tokens), arrays["tokens"])

    wrong = perturbed(params, "decoder/layers/cross_attention/o/kernel")
    logits, grads = logits_and_gradient(config, wrong, data)
    assert np.abs(logits - arrays["logits"]).max() > 2 * TOLERANCE
    assert max(relative_errors(grads, gradients).values()) > 2 * TOLERANCE

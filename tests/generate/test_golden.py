"""Answers that PyTorch gave once, by every rule of beam search; needs no PyTorch."""

import json
from pathlib import Path

import numpy as np
import pytest

from ntl_jax.generate import generate
from ntl_jax.hf import t5
from tests.generate.answers import NEW_TOKENS
from tests.models.cases import perturbed, to_params

GOLDEN = Path(__file__).parents[1] / "golden" / "generate.npz"
NAMES = ("greedy", "beams", "early", "never", "short")


@pytest.fixture(scope="module")
def file() -> dict:
    with np.load(GOLDEN) as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def model(file):
    tensor = "tensor/"
    named = {k[len(tensor) :]: v for k, v in file.items() if k.startswith(tensor)}
    raw = json.loads(str(file["config"]))
    config = t5.read_config(raw, list(named), named.__getitem__)
    return config, to_params(config, named)


def answers(config, params, file, name):
    options = json.loads(str(file["options"]))[name]
    return generate(
        config,
        params,
        file["batch/input_ids"],
        attention_mask=file["batch/attention_mask"],
        max_new_tokens=NEW_TOKENS,
        return_scores=True,
        **options,
    )


@pytest.mark.parametrize("name", NAMES)
def test_tokens_and_scores(file, model, name):
    config, params = model
    got = answers(config, params, file, name)
    assert np.array_equal(got.tokens, file[f"tokens/{name}"])
    if name != "greedy":
        np.testing.assert_allclose(got.scores, file[f"scores/{name}"], rtol=1e-5)
    wrong = perturbed(params, "decoder/layers/cross_attention/o/kernel")
    other = answers(config, wrong, file, name)
    assert np.abs(other.scores - got.scores).max() > 1e-4


def test_the_answers_are_worth_comparing(file):
    tokens = [file[f"tokens/{name}"] for name in NAMES]
    assert len({x.tobytes() for x in tokens}) == len(NAMES)
    assert all((x == 1).any() for x in tokens)
    assert any((x != 1).all(axis=1).any() for x in tokens)

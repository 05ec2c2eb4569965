"""Generation on every mesh: the tokens and scores of one device."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from ntl_jax.generate import generate
from ntl_jax.models import T5Config, init_params
from ntl_jax.sharding.mesh import batch_sharding, make_mesh
from ntl_jax.sharding.rules import param_shardings
from tests.train import mesh_cases
from tests.train.mesh_cases import VOCAB

T5 = dataclasses.replace(mesh_cases.MODELS["t5"], tie_word_embeddings=False)
MODELS = mesh_cases.MODELS | {"t5": T5}
MESHES = [(8, 1, 1), (1, 8, 1), (2, 2, 2), (1, 2, 4), (1, 1, 8)]
WAYS = {
    "greedy": {"return_scores": True},
    "beams": {"num_beams": 4, "return_scores": True},
    "drawn": {"do_sample": True, "key": jax.random.key(3), "return_scores": True},
    "few": {"do_sample": True, "key": jax.random.key(4), "top_k": 9, "top_p": 0.8},
    "numbers": {"numbers": "expected", "vocab": VOCAB, "return_numbers": True},
}
TOKENS = 6


def questions(family: str, rows: int):
    """Random questions, of a decoder-only model padded on the left."""
    draw = np.random.default_rng(1)
    length = 10
    mask = np.arange(length) < draw.integers(4, length + 1, (rows, 1))
    mask = mask if isinstance(MODELS[family], T5Config) else mask[:, ::-1]
    ids = np.where(mask, draw.integers(2, 40, mask.shape), 0).astype(np.int32)
    return {"input_ids": ids, "attention_mask": np.ascontiguousarray(mask)}


@functools.cache
def params_of(family: str):
    return jax.jit(init_params, static_argnums=0)(MODELS[family], jax.random.key(2))


@functools.cache
def answers(family: str, way: str, mesh=None, rows: int = 8):
    config, params, data = MODELS[family], params_of(family), questions(family, rows)
    if mesh is not None:
        devices = make_mesh(*mesh)
        params = jax.device_put(params, param_shardings(config, params, devices))
        if rows % 8 == 0:
            data = jax.device_put(data, batch_sharding(devices))
    return generate(config, params, **data, max_new_tokens=TOKENS, **WAYS[way])


def assert_equal_answers(got, want):
    assert np.array_equal(got.tokens, want.tokens)
    assert len(np.unique(want.tokens)) > 3, "answers that say little"
    for ours, theirs in ((got.scores, want.scores), (got.numbers, want.numbers)):
        if theirs is not None:
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_tokens_are_those_of_one_device():
    got = answers("experts", "greedy", (2, 2, 2))
    assert len(got.tokens.sharding.device_set) == 8
    want = answers("experts", "greedy")
    assert_equal_answers(got, want)
    with pytest.raises(AssertionError):
        assert_equal_answers(got._replace(scores=1.001 * got.scores), want)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("family", MODELS)
def test_tokens_are_those_of_one_device_on_all_meshes(family, mesh, way):
    assert_equal_answers(answers(family, way, mesh), answers(family, way))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["greedy", "beams"])
@pytest.mark.parametrize("family", MODELS)
def test_rows_that_do_not_divide_over_the_mesh(family, way):
    got = answers(family, way, (2, 2, 2), rows=7)
    assert_equal_answers(got, answers(family, way, rows=7))

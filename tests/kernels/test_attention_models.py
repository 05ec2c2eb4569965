"""Whole models by the attention kernels, interpreted."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax.models import (
    GPT2Config,
    GraniteConfig,
    NumformerConfig,
    T5Config,
    bind,
    init_params,
)
from ntl_jax.models.t5 import layers as t5_layers
from ntl_jax.sharding.mesh import batch_sharding, make_mesh, on_mesh
from ntl_jax.sharding.rules import param_shardings
from tests.models.running import relative_errors

KEY = jax.random.key(2)
TOLERANCE = 1e-5

TINY_T5 = T5Config(
    vocab_size=50,
    d_model=32,
    d_kv=16,
    d_ff=48,
    num_layers=2,
    num_decoder_layers=2,
    num_heads=2,
)
TINY_GRANITE = GraniteConfig(
    vocab_size=50,
    hidden_size=64,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
)
TINY_GPT2 = GPT2Config(vocab_size=50, n_positions=64, n_embd=32, n_layer=2, n_head=2)
TINY_NUMFORMER = NumformerConfig(
    vocab_size=50, num_id=49, d_model=32, d_ff=48, num_layers=2, num_heads=2
)
MODELS = {
    "t5": TINY_T5,
    "granite": TINY_GRANITE,
    "gpt2": TINY_GPT2,
    "numformer": TINY_NUMFORMER,
}


def test_of_t5_the_decoders_own_attention_is_causal(monkeypatch):
    """Its bias hides later tokens already: only so are tiles of them skipped."""
    seen = []

    def record(q, k, v, *, causal, **options):
        seen.append((q.shape[1], k.shape[1], causal))
        return jnp.zeros_like(q)

    monkeypatch.setattr(t5_layers, "attend", record)
    params = jax.eval_shape(partial(init_params, TINY_T5), jax.random.key(0))
    jax.eval_shape(partial(loss_of, TINY_T5), params, batch_of(4))
    assert set(seen) == {(20, 20, False), (9, 9, True), (9, 20, False)}


def loss_of(config, params, batch):
    """A loss with dropout; rows padded on either side."""
    ids, answers, mask = batch
    options = {"attention_mask": mask, "dropout_key": KEY}
    model, seen = bind(config, params), jnp.where(mask, 1.0, 0.0)[..., None]
    if isinstance(config, T5Config):
        return jnp.mean(jnp.square(model(ids, answers, **options)))
    if isinstance(config, NumformerConfig):
        logits, numbers = model(ids, jnp.ones(ids.shape), **options)
        numbers = jnp.mean(jnp.square(numbers * seen[..., 0]))
        return jnp.mean(jnp.square(logits * seen)) + numbers
    return jnp.mean(jnp.square(model(ids, **options) * seen))


def batch_of(rows: int):
    draw = np.random.default_rng(0).integers
    ids = draw(2, 49, (rows, 20), np.int32)
    mask = np.ones((rows, 20), bool)
    mask[1, 12:] = False
    mask[2, :6] = False
    return ids, draw(2, 49, (rows, 9), np.int32), mask


def step_of(config, mesh=None):
    """The loss and its gradients, of rows on one device or over a mesh's."""
    params, batch = init_params(config, jax.random.key(0)), batch_of(4)
    step = jax.value_and_grad(partial(loss_of, config))
    if mesh is None:
        return jax.device_get(jax.jit(step)(params, batch))
    shardings = param_shardings(config, params, mesh)

    def split(params, batch):
        with on_mesh(mesh):
            return step(params, batch)

    placed = (
        jax.device_put(params, shardings),
        jax.device_put(batch, batch_sharding(mesh)),
    )
    return jax.device_get(jax.jit(split, out_shardings=(None, shardings))(*placed))


@pytest.mark.parametrize(
    "name",
    [
        "t5",
        "granite",
        pytest.param("gpt2", marks=pytest.mark.slow),
        pytest.param("numformer", marks=pytest.mark.slow),
    ],
)
def test_a_step_by_the_kernels_equals_xlas(on_gpu, name):
    want, gradients = step_of(MODELS[name])
    config = dataclasses.replace(MODELS[name], attention="triton")
    got, others = step_of(config)
    assert abs(got - want) < TOLERANCE * abs(want)
    errors = relative_errors(others, gradients)
    assert max(errors.values()) < TOLERANCE, errors


@pytest.mark.slow
@pytest.mark.parametrize("remat", [False, True, "matmuls"])
@pytest.mark.parametrize("name", ["t5", "granite"])
def test_on_a_mesh_the_kernels_equal_xlas_on_one_device(on_gpu, name, remat):
    want, gradients = step_of(MODELS[name])
    config = dataclasses.replace(MODELS[name], attention="triton", remat=remat)
    got, others = step_of(config, make_mesh(2, 2, 2))
    assert abs(got - want) < TOLERANCE * abs(want)
    errors = relative_errors(others, gradients)
    assert max(errors.values()) < TOLERANCE, errors

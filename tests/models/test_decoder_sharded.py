"""Decoder-only models over eight simulated devices: gradients equal one device's."""

import dataclasses
from functools import partial

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from ntl_jax.models import GPT2Config, GraniteConfig, init_params
from ntl_jax.sharding.mesh import batch_sharding, make_mesh
from ntl_jax.sharding.rules import param_shardings
from tests.models.cases import batch, perturbed
from tests.models.running import (
    TOLERANCE,
    assert_close,
    decoded,
    gradient,
    lively,
    loss,
    random_tokens,
    relative_errors,
    step,
)

GPT2 = GPT2Config(
    vocab_size=51,
    vocab_rows=64,
    n_positions=32,
    n_embd=64,
    n_layer=2,
    n_head=8,
    initializer_range=0.1,
)
GRANITE = GraniteConfig(
    vocab_size=51,
    vocab_rows=64,
    hidden_size=64,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=8,
    num_key_value_heads=2,
    max_position_embeddings=160,
    attention_multiplier=0.3,
    embedding_multiplier=3.0,
    residual_multiplier=0.6,
    logits_scaling=2.5,
    rope_theta=40.0,
    initializer_range=0.15,
)
CONFIGS = {
    "gpt2_tied": GPT2,
    "gpt2_untied": dataclasses.replace(
        GPT2, tie_word_embeddings=False, n_inner=48, n_layer=3
    ),
    "granite_dense": GRANITE,
    "granite_biased": dataclasses.replace(
        GRANITE,
        tie_word_embeddings=False,
        attention_bias=True,
        mlp_bias=True,
        num_hidden_layers=3,
    ),
    "granite_experts": dataclasses.replace(
        GRANITE,
        num_local_experts=4,
        num_experts_per_tok=2,
        router_aux_loss_coef=0.5,
        attention_dropout=0.2,
    ),
}
# Eight rows of 16 are few tokens, see `FEW_TOKENS`; one of 160 is more than a few.
LENGTHS = {"granite_experts": [16, 160]}
MESHES = [(8, 1, 1), (1, 8, 1), (1, 1, 8), (2, 2, 2)]
# Each has a sibling with all its leaves, or more, whose meshes all run by default.
SIBLINGS = {("gpt2_tied", 16), ("granite_biased", 16), ("granite_experts", 160)}


def cases():
    """Every mesh of every model and length; slow, those with a sibling that is like it.

    All meet every axis in the last mesh, and experts' long rows the first mesh too.
    """
    for name in CONFIGS:
        for length in LENGTHS.get(name, [16]):
            for mesh in MESHES:
                whole = mesh == (2, 2, 2) or (length == 160 and mesh == (8, 1, 1))
                slow = (name, length) in SIBLINGS and not whole
                marks = pytest.mark.slow if slow else ()
                label = f"{name}-{length}-{'x'.join(map(str, mesh))}"
                yield pytest.param(name, length, mesh, marks=marks, id=label)


def place(config, params, data, mesh):
    params = jax.device_put(params, param_shardings(config, params, mesh))
    return params, jax.device_put(data, batch_sharding(mesh))


@pytest.mark.parametrize(("name", "length", "mesh"), list(cases()))
def test_every_gradient_leaf_equals_one_devices(name, length, mesh):
    config, key, mesh = CONFIGS[name], jax.random.key(1), make_mesh(*mesh)
    params, data = lively(config), batch(rows=8, length=length)
    want_logits, want_router_loss, want = step(config, params, data, key)
    sharded_step = jax.jit(
        jax.grad(loss, has_aux=True),
        static_argnums=1,
        out_shardings=(param_shardings(config, params, mesh), None),
    )
    placed, spread = place(config, params, data, mesh)
    grads, aux = jax.device_get(sharded_step(placed, config, spread, key))
    logits, router_loss = aux
    assert_close(logits[..., :51], np.asarray(want_logits)[..., :51])
    np.testing.assert_allclose(router_loss, want_router_loss, rtol=1e-5)
    errors = relative_errors(grads, want)
    assert max(errors.values()) < TOLERANCE, errors
    gpt2 = isinstance(config, GPT2Config)
    norm = "final_norm/scale" if gpt2 else "layers/attention/norm/scale"
    wrong = gradient(config, perturbed(params, norm), data, key)
    assert min(relative_errors(wrong, grads).values()) > TOLERANCE


@pytest.mark.parametrize("name", ["gpt2_tied", "granite_dense", "granite_experts"])
def test_decoding_of_a_sharded_batch_equals_one_devices(name):
    config = CONFIGS[name]
    params, data = lively(config), batch(rows=8, length=20)
    tokens = random_tokens(8)
    want = decoded(config, params, data, tokens)[..., :51]
    placed = place(config, params, data, make_mesh(2, 2, 2))
    assert_close(decoded(config, *placed, tokens)[..., :51], want)


def test_parameters_are_born_sharded():
    mesh = make_mesh(2, 2, 2)
    want = init_params(GPT2, jax.random.key(0))
    shardings = param_shardings(GPT2, want, mesh)
    born = jax.jit(init_params, static_argnums=0, out_shardings=shardings)
    params = born(GPT2, jax.random.key(0))
    kernel = params["layers"]["attention"]["qkv"]["kernel"]
    assert kernel.shape == (2, 64, 3, 64)
    assert kernel.addressable_shards[0].data.shape == (2, 32, 3, 32)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-6), params, want)


@pytest.mark.parametrize(
    ("config", "spec"),
    [
        (config(tie_word_embeddings=False), (None, "fsdp", None, "tensor"))
        for config in (
            GPT2Config.small,
            GPT2Config.medium,
            GPT2Config.large,
            GPT2Config.xl,
        )
    ]
    + [
        (
            GraniteConfig.granite_3_2_2b(tie_word_embeddings=False, mlp_bias=True),
            (None, "fsdp", "tensor"),
        ),
        (
            GraniteConfig.granite_3_1_1b_a400m(attention_bias=True, vocab_size=49155),
            (None, None, None, "tensor", "fsdp"),
        ),
    ],
)
def test_rules_match_every_leaf_once(config, spec):
    mesh = make_mesh(2, 2, 2)

    def shardings(config):
        shapes = jax.eval_shape(partial(init_params, config), jax.random.key(0))
        return param_shardings(config, shapes, mesh)

    with pytest.raises(ValueError, match=rf"pad_vocab(.|\n)*{config.vocab_size}"):
        shardings(config)
    specs = {s.spec for s in jax.tree.leaves(shardings(config.pad_vocab()))}
    assert PartitionSpec(*spec) in specs
    assert isinstance(config, GPT2Config) or PartitionSpec(None, "fsdp", "tensor") in (
        specs
    )

"""Granite over eight simulated devices: every gradient leaf equals one device's."""

import dataclasses
from functools import partial

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from ntl_jax.models import GraniteConfig, init_params
from ntl_jax.sharding.mesh import batch_sharding, make_mesh
from ntl_jax.sharding.rules import param_shardings
from tests.models.test_gpt2_decoding import decoded, random_tokens
from tests.models.test_gpt2_forms import lively
from tests.models.test_granite import (
    TOLERANCE,
    assert_close,
    logits_and_gradient,
    loss,
    relative_errors,
)
from tests.tiny_gpt2 import batch
from tests.tiny_t5 import perturbed

DENSE = GraniteConfig(
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
    "dense": DENSE,
    "biased": dataclasses.replace(
        DENSE,
        tie_word_embeddings=False,
        attention_bias=True,
        mlp_bias=True,
        num_hidden_layers=3,
    ),
    "experts": dataclasses.replace(
        DENSE,
        num_local_experts=4,
        num_experts_per_tok=2,
        router_aux_loss_coef=0.5,
        attention_dropout=0.2,
    ),
}
# Eight rows of 16 are few tokens, see `FEW_TOKENS`; one of 160 is more than a few.
LENGTHS = {"dense": [16], "biased": [16], "experts": [16, 160]}
MESHES = [(8, 1, 1), (1, 8, 1), (1, 1, 8), (2, 2, 2)]


def place(config, params, data, mesh):
    params = jax.device_put(params, param_shardings(config, params, mesh))
    return params, jax.device_put(data, batch_sharding(mesh))


def cases():
    """Every mesh of every model and length; slow, those with a sibling that is like it.

    The biased model is the dense one with more leaves, long rows have the other form of
    the experts: both meet every axis in the last mesh, and long rows the first too.
    """
    for kind in CONFIGS:
        for length in LENGTHS[kind]:
            for mesh in MESHES:
                few = kind == "biased" or length == 160
                whole = mesh == (2, 2, 2) or (length == 160 and mesh == (8, 1, 1))
                name = f"{kind}-{length}-{'x'.join(map(str, mesh))}"
                marks = pytest.mark.slow if few and not whole else ()
                yield pytest.param(kind, length, mesh, marks=marks, id=name)


@pytest.mark.parametrize(("kind", "length", "mesh"), list(cases()))
def test_every_gradient_leaf_equals_one_devices(kind, length, mesh):
    config, key = CONFIGS[kind], jax.random.key(1)
    params, data = lively(config), batch(rows=8, length=length)
    want_logits, want_router_loss, want = logits_and_gradient(config, params, data, key)
    shardings = param_shardings(config, params, make_mesh(*mesh))
    step = jax.jit(
        jax.grad(loss, has_aux=True),
        static_argnums=1,
        out_shardings=(shardings, None),
    )
    placed, spread = place(config, params, data, make_mesh(*mesh))
    grads, (logits, router_loss) = jax.device_get(step(placed, config, spread, key))
    assert_close(logits[..., :51], np.asarray(want_logits)[..., :51])
    np.testing.assert_allclose(router_loss, want_router_loss, rtol=1e-5)
    errors = relative_errors(grads, want)
    assert max(errors.values()) < TOLERANCE, errors
    wrong = perturbed(params, "layers/attention/norm/scale")
    wrong = logits_and_gradient(config, wrong, data, key)[2]
    assert min(relative_errors(wrong, grads).values()) > TOLERANCE


@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_decoding_of_a_sharded_batch_equals_one_devices(kind):
    config = CONFIGS[kind]
    params, data = lively(config), batch(rows=8, length=20)
    tokens = random_tokens(8)
    want = decoded(config, params, data, tokens)[..., :51]
    placed = place(config, params, data, make_mesh(2, 2, 2))
    assert_close(decoded(config, *placed, tokens)[..., :51], want)


@pytest.mark.parametrize(
    "config",
    [
        GraniteConfig.granite_3_2_2b(tie_word_embeddings=False, mlp_bias=True),
        GraniteConfig.granite_3_1_1b_a400m(attention_bias=True, vocab_size=49155),
    ],
    ids=["dense", "experts"],
)
def test_rules_match_every_leaf_once(config):
    mesh = make_mesh(2, 2, 2)

    def shardings(config):
        shapes = jax.eval_shape(partial(init_params, config), jax.random.key(0))
        return param_shardings(config, shapes, mesh)

    with pytest.raises(ValueError, match="49155 does not divide over the 2 devices"):
        shardings(config)
    specs = {s.spec for s in jax.tree.leaves(shardings(config.pad_vocab()))}
    assert PartitionSpec(None, "fsdp", "tensor") in specs
    if config.num_local_experts:
        assert PartitionSpec(None, None, None, "tensor", "fsdp") in specs

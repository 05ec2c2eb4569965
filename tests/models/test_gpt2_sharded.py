"""GPT-2 over eight simulated devices: every gradient leaf equals one device's."""

import dataclasses
from functools import partial

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from ntl_jax.models import GPT2Config, init_params
from ntl_jax.sharding.mesh import batch_sharding, make_mesh
from ntl_jax.sharding.rules import param_shardings
from tests.models.test_gpt2 import (
    TOLERANCE,
    assert_close,
    logits_and_gradient,
    mean_cross_entropy,
    relative_errors,
)
from tests.models.test_gpt2_decoding import decoded, random_tokens
from tests.models.test_gpt2_forms import lively
from tests.tiny_gpt2 import batch
from tests.tiny_t5 import perturbed

TIED = GPT2Config(
    vocab_size=51,
    vocab_rows=64,
    n_positions=32,
    n_embd=64,
    n_layer=2,
    n_head=8,
    initializer_range=0.1,
)
UNTIED = dataclasses.replace(TIED, tie_word_embeddings=False, n_inner=48, n_layer=3)
MESHES = [(8, 1, 1), (1, 8, 1), (1, 1, 8), (2, 2, 2)]


def place(config, params, data, mesh):
    params = jax.device_put(params, param_shardings(config, params, mesh))
    return params, jax.device_put(data, batch_sharding(mesh))


def cases():
    """Every mesh of both models; slow, the tied one's where one axis has all devices.

    It has all leaves of the untied one but the head.
    """
    for name, config in {"tied": TIED, "untied": UNTIED}.items():
        for mesh in MESHES:
            marks = pytest.mark.slow if name == "tied" and 8 in mesh else ()
            shape = "x".join(map(str, mesh))
            yield pytest.param(config, mesh, marks=marks, id=f"{name}-{shape}")


@pytest.mark.parametrize(("config", "mesh"), list(cases()))
def test_every_gradient_leaf_equals_one_devices(config, mesh):
    params, data, key = lively(config), batch(rows=8, length=16), jax.random.key(1)
    want_logits, want = logits_and_gradient(config, params, data, key)
    shardings = param_shardings(config, params, make_mesh(*mesh))
    step = jax.jit(
        jax.grad(mean_cross_entropy, has_aux=True),
        static_argnums=1,
        out_shardings=(shardings, None),
    )
    placed, spread = place(config, params, data, make_mesh(*mesh))
    grads, logits = jax.device_get(step(placed, config, spread, key))
    assert_close(logits[..., :51], np.asarray(want_logits)[..., :51])
    errors = relative_errors(grads, want)
    assert max(errors.values()) < TOLERANCE, errors
    wrong = perturbed(params, "final_norm/scale")
    wrong = logits_and_gradient(config, wrong, data, key)[1]
    assert min(relative_errors(wrong, grads).values()) > TOLERANCE


def test_decoding_of_a_sharded_batch_equals_one_devices():
    params, data = lively(TIED), batch(rows=8, length=12)
    tokens = random_tokens(8)
    want = decoded(TIED, params, data, tokens)
    placed = place(TIED, params, data, make_mesh(2, 2, 2))
    got = decoded(TIED, *placed, tokens)
    np.testing.assert_allclose(
        got, want, rtol=0, atol=1e-4 * np.abs(want[..., :51]).max()
    )


def test_parameters_are_born_sharded():
    mesh = make_mesh(2, 2, 2)
    shapes = jax.eval_shape(partial(init_params, TIED), jax.random.key(0))
    shardings = param_shardings(TIED, shapes, mesh)
    born = jax.jit(init_params, static_argnums=0, out_shardings=shardings)
    params = born(TIED, jax.random.key(0))
    kernel = params["layers"]["attention"]["qkv"]["kernel"]
    assert kernel.shape == (2, 64, 3, 64)
    assert kernel.addressable_shards[0].data.shape == (2, 32, 3, 32)
    for got, want in zip(
        jax.tree.leaves(params),
        jax.tree.leaves(init_params(TIED, jax.random.key(0))),
        strict=True,
    ):
        np.testing.assert_allclose(got, want, atol=1e-6)


@pytest.mark.parametrize("name", ["small", "medium", "large", "xl"])
def test_rules_match_every_leaf_once(name):
    config = getattr(GPT2Config, name)(tie_word_embeddings=False)
    mesh = make_mesh(2, 2, 2)

    def shardings(config):
        shapes = jax.eval_shape(partial(init_params, config), jax.random.key(0))
        return param_shardings(config, shapes, mesh)

    with pytest.raises(ValueError, match=r"pad_vocab(.|\n)*50257 does not divide"):
        shardings(config)
    specs = {s.spec for s in jax.tree.leaves(shardings(config.pad_vocab()))}
    assert PartitionSpec(None, "fsdp", None, "tensor") in specs

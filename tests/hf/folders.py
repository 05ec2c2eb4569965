"""Checkpoint folders that tests write, change and read, and what is in them."""

import dataclasses
import json
from functools import partial
from pathlib import Path

import chex
import jax
import numpy as np
from safetensors.numpy import load_file, save_file

from ntl_jax.hf import load_params, save_checkpoint
from ntl_jax.hf.mapping import flatten
from ntl_jax.models import GPT2Config, GraniteConfig, T5Config, init_params
from ntl_jax.sharding.mesh import make_mesh
from ntl_jax.sharding.rules import param_shardings

GOLDEN = Path(__file__).parents[1] / "golden"
T5 = T5Config(
    vocab_size=64, d_model=16, d_kv=4, d_ff=32, num_layers=2, num_decoder_layers=2
)
GPT2 = GPT2Config(
    vocab_size=51, vocab_rows=56, n_positions=16, n_embd=16, n_layer=2, n_head=4
)
GRANITE = GraniteConfig(
    vocab_size=51,
    vocab_rows=56,
    hidden_size=16,
    intermediate_size=8,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
)
MODELS = {
    "t5": T5,
    "t5 v1.1": dataclasses.replace(
        T5,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        scale_decoder_outputs=False,
    ),
    "gpt2": GPT2,
    "granite": GRANITE,
    "granite untied": dataclasses.replace(GRANITE, tie_word_embeddings=False),
    "granite moe": dataclasses.replace(
        GRANITE, num_local_experts=4, num_experts_per_tok=2
    ),
}


def random_params(config, seed=0):
    """A config with parameters none of which is constant."""
    shapes = jax.eval_shape(partial(init_params, config), jax.random.key(0))
    draw = np.random.default_rng(seed).standard_normal
    return config, jax.tree.map(lambda x: draw(x.shape, np.float32), shapes)


def write(config, folder, **file):
    """Writes a checkpoint of random parameters, with fields of the config changed."""
    save_checkpoint(folder, *random_params(dataclasses.replace(config, **file)))


def load_sharded(folder, config, mesh, **options):
    """Parameters read straight into the shards of a mesh, and the shardings."""
    shapes = jax.eval_shape(partial(init_params, config), jax.random.key(0))
    shardings = param_shardings(config, shapes, make_mesh(*mesh))
    return load_params(folder, config, shardings=shardings, **options), shardings


def assert_same(got, want):
    """Two trees are equal bit for bit."""
    chex.assert_trees_all_equal(flatten(got), flatten(want))


def rewrite_config(folder, **changes):
    """Changes fields of a folder's config.json; `...` removes one."""
    raw = json.loads((folder / "config.json").read_text()) | changes
    raw = {key: value for key, value in raw.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(raw))


def rewrite_tensors(folder, change):
    """Applies `change` to a folder's dict of tensors; it may return another."""
    tensors = load_file(folder / "model.safetensors")
    save_file(change(tensors) or tensors, folder / "model.safetensors")

"""Checkpoints read into shards: every device holds its own alone, and equal values."""

import dataclasses

import jax
import numpy as np
import pytest

from ntl_jax.hf import load_checkpoint, load_config, load_params, save_checkpoint
from ntl_jax.hf.mapping import flatten
from ntl_jax.models import GPT2Config, GraniteConfig, T5Config, init_params
from ntl_jax.sharding.mesh import make_mesh
from ntl_jax.sharding.rules import param_shardings

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
MESHES = [(8, 1, 1), (1, 8, 1), (1, 2, 4), (2, 2, 2)]


def written(config, folder, **file):
    """A checkpoint of a model, and the config and parameters that it holds."""
    config = dataclasses.replace(config, **file)
    shapes = jax.eval_shape(lambda key: init_params(config, key), jax.random.key(0))
    draw = np.random.default_rng(0).standard_normal
    params = jax.tree.map(lambda leaf: draw(leaf.shape, np.float32), shapes)
    save_checkpoint(folder, config, params)


def spread(folder, config, mesh, **options):
    shapes = jax.eval_shape(lambda key: init_params(config, key), jax.random.key(0))
    shardings = param_shardings(config, shapes, make_mesh(*mesh))
    return load_params(folder, config, shardings=shardings, **options), shardings


@pytest.mark.parametrize("mesh", MESHES, ids=lambda mesh: "x".join(map(str, mesh)))
@pytest.mark.parametrize("name", MODELS)
def test_every_device_holds_its_shard_alone(name, mesh, tmp_path):
    model = MODELS[name]
    rows = {} if isinstance(model, T5Config) else {"vocab_rows": 56}
    written(model, tmp_path)
    config, whole = load_checkpoint(tmp_path, **rows)
    params, shardings = spread(tmp_path, config, mesh)
    want, places = flatten(whole), flatten(shardings)
    for path, leaf in flatten(params).items():
        assert leaf.sharding == places[path] and leaf.dtype == np.float32
        assert len(leaf.addressable_shards) == 8
        shape = places[path].shard_shape(leaf.shape)
        for shard in leaf.addressable_shards:
            assert shard.data.shape == shape
            np.testing.assert_array_equal(shard.data, want[path][shard.index])
    cut = sum(not leaf.is_fully_replicated for leaf in flatten(params).values())
    assert cut > 2 or mesh == (8, 1, 1)


def test_new_tokens_and_padding_are_spread_too(tmp_path):
    written(GPT2, tmp_path, vocab_rows=None)
    config = dataclasses.replace(load_config(tmp_path), vocab_size=54, vocab_rows=56)
    params, _ = spread(tmp_path, config, (1, 2, 4), new_tokens="mean")
    table = np.asarray(params["wte"]["embedding"])
    mean = table[:51].astype(np.float64).mean(axis=0)
    np.testing.assert_allclose(table[51:54], np.tile(mean, (3, 1)), rtol=1e-6)
    assert not table[54:].any()
    assert load_config(tmp_path).vocab_size == 51


def test_a_file_is_read_by_shards(tmp_path, monkeypatch):
    """No call reads a matrix that is cut whole."""
    from ntl_jax.hf import tensors

    written(T5, tmp_path)
    read = []
    get = tensors._InSafetensors.__getitem__

    def counted(self, index):
        found = get(self, index)
        if len(self.shape) == 2 and min(self.shape) >= 16:
            read.append(found.size / np.prod(self.shape))
        return found

    monkeypatch.setattr(tensors._InSafetensors, "__getitem__", counted)
    spread(tmp_path, load_config(tmp_path), (1, 2, 4))
    assert read and max(read) == 1 / 8

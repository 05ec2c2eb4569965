"""Checkpoints read into shards: every device holds its own alone, and equal values."""

import dataclasses

import numpy as np
import pytest

from ntl_jax.hf import load_checkpoint, load_config
from ntl_jax.hf.mapping import flatten
from ntl_jax.models import T5Config
from tests.hf.folders import GPT2, MODELS, T5, load_sharded, write

MESHES = [(8, 1, 1), (1, 8, 1), (1, 2, 4), (2, 2, 2)]


@pytest.mark.parametrize("mesh", MESHES, ids=lambda mesh: "x".join(map(str, mesh)))
@pytest.mark.parametrize("name", MODELS)
def test_every_device_holds_its_shard_alone(name, mesh, tmp_path):
    model = MODELS[name]
    rows = {} if isinstance(model, T5Config) else {"vocab_rows": 56}
    write(model, tmp_path)
    config, whole = load_checkpoint(tmp_path, **rows)
    params, shardings = load_sharded(tmp_path, config, mesh)
    want, places = flatten(whole), flatten(shardings)
    for path, leaf in flatten(params).items():
        assert leaf.sharding == places[path] and leaf.dtype == np.float32
        assert len(leaf.addressable_shards) == 8
        shape = places[path].shard_shape(leaf.shape)
        for shard in leaf.addressable_shards:
            assert shard.data.shape == shape
            np.testing.assert_array_equal(shard.data, want[path][shard.index])
    sharded = sum(not leaf.is_fully_replicated for leaf in flatten(params).values())
    assert sharded > 2 or mesh == (8, 1, 1)


def test_new_tokens_and_padding_are_sharded_too(tmp_path):
    write(GPT2, tmp_path, vocab_rows=None)
    config = dataclasses.replace(load_config(tmp_path), vocab_size=54, vocab_rows=56)
    params, _ = load_sharded(tmp_path, config, (1, 2, 4), new_tokens="mean")
    table = np.asarray(params["wte"]["embedding"])
    mean = table[:51].astype(np.float64).mean(axis=0)
    np.testing.assert_allclose(table[51:54], np.tile(mean, (3, 1)), rtol=1e-6)
    assert not table[54:].any()
    assert load_config(tmp_path).vocab_size == 51


def test_a_file_is_read_by_shards(tmp_path, monkeypatch):
    """No call reads a whole matrix that is sharded."""
    from ntl_jax.hf import tensors

    write(T5, tmp_path)
    read = []
    get = tensors._InSafetensors.__getitem__

    def counted(self, index):
        found = get(self, index)
        if len(self.shape) == 2 and min(self.shape) >= 16:
            read.append(found.size / np.prod(self.shape))
        return found

    monkeypatch.setattr(tensors._InSafetensors, "__getitem__", counted)
    load_sharded(tmp_path, load_config(tmp_path), (1, 2, 4))
    assert read and max(read) == 1 / 8

"""Buckets and biases against transformers' T5Attention."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from ntl_jax.kernels.attention.reference import MASKED
from ntl_jax.models.t5.relative_bias import RelativeBias, distance_buckets

torch = pytest.importorskip("torch")
from transformers.models.t5.modeling_t5 import T5Attention  # noqa: E402


def torch_buckets(offsets, bidirectional, buckets, max_distance):
    return T5Attention._relative_position_bucket(
        torch.from_numpy(offsets), bidirectional, buckets, max_distance
    ).numpy()


@pytest.mark.parametrize("buckets", [8, 16, 32, 64])
@pytest.mark.parametrize("max_distance", [40, 100, 128, 256, 1000])
def test_buckets_of_every_distance(buckets, max_distance):
    distances = np.arange(3 * max_distance)
    mine = distance_buckets(buckets, max_distance)
    want = torch_buckets(-distances, False, buckets, max_distance)
    assert np.array_equal(mine[np.minimum(distances, max_distance)], want)


def bias(bidirectional, heads=4):
    return RelativeBias(
        32, 128, heads, std=1.0, bidirectional=bidirectional, rngs=nnx.Rngs(0)
    )


@pytest.mark.parametrize("bidirectional", [True, False])
def test_bias_of_every_pair_of_positions(bidirectional):
    module = bias(bidirectional)
    queries, keys = np.arange(37), np.arange(300)
    offsets = keys[None] - queries[:, None]
    bucket = torch_buckets(offsets, bidirectional, 32, 128)
    want = np.asarray(module.embedding[...])[bucket].transpose(2, 0, 1)[None]
    if not bidirectional:
        want = np.where(offsets > 0, np.float32(MASKED), want)
    got = module(jnp.asarray(queries), jnp.asarray(keys))
    chex.assert_trees_all_close(got, want, atol=1e-6)
    assert np.abs(got[..., 1:] - want[..., :-1]).max() > 0.1  # one position off


def test_one_query_gives_one_row_of_the_whole():
    module, places = bias(False), jnp.arange(20)
    whole = module(places, places)
    for position in (0, 7, 19):
        row = jax.jit(module)(jnp.array([position]), places)
        chex.assert_trees_all_equal(row, whole[:, :, position : position + 1])

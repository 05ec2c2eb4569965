"""Dropout: the statistics of its masks, and that they follow the row alone."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ntl_jax.kernels.dropout import Dropout, DropoutSite, dropout

SHAPE = (64, 8, 16, 32)
KEY = jax.random.key(7)


def kept(rate=0.5, key=KEY, shape=SHAPE, **where):
    """The mask as a NumPy array of bools."""
    return np.asarray(dropout(jnp.ones(shape), rate, key, **where)) != 0


def deviations(mask, share):
    """How many standard deviations the mean of a mask is from its expectation."""
    return abs(mask.mean() - share) / np.sqrt(share * (1 - share) / mask.size)


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
def test_share_of_kept_elements(rate):
    mask = kept(rate)
    assert deviations(mask, 1 - rate) < 4
    # Nor is any row, head, query or key favoured: chi-square of each axis's counts.
    for axis in range(mask.ndim):
        others = tuple(a for a in range(mask.ndim) if a != axis)
        counts = mask.sum(axis=others)
        per = mask.size / mask.shape[axis]
        chi = ((counts - per * (1 - rate)) ** 2).sum() / (per * rate * (1 - rate))
        freedom = mask.shape[axis]
        assert abs(chi - freedom) < 5 * np.sqrt(2 * freedom), axis


def test_masks_of_other_layers_sites_steps_and_rows_are_independent():
    masks = [
        kept(),
        kept(layer=1),
        kept(layer=23),
        kept(site=1),
        kept(site=17),
        kept(key=jax.random.fold_in(KEY, 1)),
        kept(key=jax.random.key(8)),
        kept(row_offset=64),
    ]
    for a, b in itertools.combinations(masks, 2):
        assert deviations(a == b, 0.5) < 4.5
    flat = masks[0].reshape(64, -1)
    for lag in (1, 2, 3, 16, 32, 512):
        assert deviations(flat[:, lag:] == flat[:, :-lag], 0.5) < 4.5, lag
    for lag in (1, 2, 32):
        assert deviations(flat[lag:] == flat[:-lag], 0.5) < 4.5, lag


def test_masks_over_many_small_rows_and_steps_do_not_repeat():
    keys = jax.random.split(KEY, 64)
    rows = jax.jit(
        jax.vmap(lambda key, layer: dropout(jnp.ones((32, 64)), 0.5, key, layer=layer))
    )(keys, jnp.arange(64))
    packed = np.packbits(np.asarray(rows).reshape(-1, 64) != 0, axis=-1)
    assert len(np.unique(packed, axis=0)) == 64 * 32


def test_independence_test_can_fail():
    assert deviations(kept() == kept(), 0.5) > 100
    assert deviations(kept(row_offset=1)[:-1] == kept()[1:], 0.5) > 100


def test_kept_elements_are_scaled_and_the_mean_stays():
    x = jax.random.normal(jax.random.key(0), SHAPE) + 1
    y = dropout(x, 0.1, KEY)
    chex.assert_trees_all_close(y[y != 0], (x / 0.9)[y != 0], rtol=1e-6)
    assert abs(y.mean() - x.mean()) < 5e-3
    low = dropout(jnp.full(SHAPE, 3, jnp.bfloat16), 0.1, KEY)
    assert low.dtype == jnp.bfloat16
    assert set(np.unique(np.asarray(low, np.float32))) == {
        0.0,
        float(jnp.bfloat16(3 / 0.9)),
    }


def test_gradient_passes_through_the_same_mask():
    x = jax.random.normal(jax.random.key(0), (4, 8))
    weights = jax.random.normal(jax.random.key(1), (4, 8))

    def loss(x):
        return jnp.sum(weights * dropout(x, 0.3, KEY, layer=2, site=3))

    scale = kept(0.3, shape=(4, 8), layer=2, site=3) / 0.7
    chex.assert_trees_all_close(jax.grad(loss)(x), weights * scale, rtol=1e-5)


def test_mask_is_the_same_under_vmap_over_keys_and_over_nothing():
    keys = jax.random.split(KEY, 3)
    x = jnp.ones((3, 4, 5, 6))
    together = jax.vmap(lambda x, key: dropout(x, 0.5, key))(x, keys)
    alone = jnp.stack([dropout(x[i], 0.5, keys[i]) for i in range(3)])
    chex.assert_trees_all_equal(together, alone)
    same_key = jax.vmap(lambda x: dropout(x, 0.5, KEY))(x)
    chex.assert_trees_all_equal(same_key[0], same_key[1], dropout(x[0], 0.5, KEY))


def test_sharded_batch_draws_the_same_mask_and_talks_to_nobody():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    x = jnp.ones(SHAPE)
    drop = jax.jit(lambda x, key: dropout(x, 0.5, key, layer=3))
    spread = jax.device_put(x, NamedSharding(mesh, PartitionSpec("data")))
    key = jax.device_put(KEY, NamedSharding(mesh, PartitionSpec()))
    chex.assert_trees_all_equal(np.asarray(drop(spread, key)), np.asarray(drop(x, KEY)))
    text = drop.lower(spread, key).compile().as_text()
    for collective in ("all-reduce", "all-gather", "all-to-all", "collective-permute"):
        assert collective not in text


def test_row_offset_is_one_number_or_one_a_row():
    whole = kept()
    assert np.array_equal(kept(shape=(16, *SHAPE[1:]), row_offset=48), whole[48:])
    rows = np.array([3, 5, 8])
    part = kept(shape=(3, *SHAPE[1:]), row_offset=jnp.asarray(rows - np.arange(3)))
    assert np.array_equal(part, whole[rows])


def test_no_key_or_no_rate_is_the_identity():
    x = jnp.ones((2, 3))
    assert dropout(x, 0.5, None) is x
    assert dropout(x, 0.0, KEY) is x


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_rectified_is_rectified_and_dropped(dtype):
    site = DropoutSite(0.3, KEY, layer=2, site=3)
    x = jax.random.normal(jax.random.key(1), SHAPE).astype(dtype).at[0, 0].set(0)
    weights = jax.random.normal(jax.random.key(2), SHAPE).astype(dtype)

    def run(apply):
        y, pull = jax.vjp(apply, x)
        return y, pull(weights)

    got, want = (run(f) for f in (site.relu, lambda x: site(jax.nn.relu(x))))
    chex.assert_trees_all_equal(got, want)
    assert 0.2 < np.mean(np.asarray(got[1][0]) != 0) < 0.5


def test_rectified_without_dropout_is_rectified():
    x = jnp.array([[-1.0, 2.0]])
    chex.assert_trees_all_equal(DropoutSite(0.0, KEY).relu(x), jax.nn.relu(x))
    chex.assert_trees_all_equal(DropoutSite(0.5, None).relu(x), jax.nn.relu(x))
    with pytest.raises(ValueError, match=r"rate is 1\.0"):
        DropoutSite(1.0, KEY).relu(x)


def test_dropout_refuses_odd_rates_and_keys():
    x = jnp.ones((2, 3))
    with pytest.raises(ValueError, match=r"1\.0"):
        dropout(x, 1.0, KEY)
    for key in (jax.random.key(0, impl="rbg"), jnp.zeros(2, jnp.uint32)):
        with pytest.raises(ValueError, match="threefry"):
            dropout(x, 0.5, key)


def test_sites_are_numbered_on():
    x, layer = jnp.ones(SHAPE), Dropout(0.5, KEY, layer=2)
    chex.assert_trees_all_equal(
        layer.after(16)(x, 3), dropout(x, 0.5, KEY, layer=2, site=19)
    )

"""T5 against itself: other forms of its layers, masks, dtypes and dropout."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ntl_jax.hf.mapping import flatten
from ntl_jax.models import T5Config, bind, init_params, shift_right
from tests.models.cases import TINY as TINY_CONFIGS
from tests.models.cases import t5_batch as batch
from tests.models.running import gradient, logits_and_gradient, relative_errors, run

TINY, GATED = TINY_CONFIGS["t5_v1_0"], TINY_CONFIGS["t5_v1_1"]


def test_scanned_unrolled_and_recomputed_layers_agree():
    params = init_params(TINY, jax.random.key(0))
    data, key = batch(), jax.random.key(1)
    grads = gradient(TINY, params, data, key)
    for change in ({"unroll_layers": True, "remat": True}, {"remat": "matmuls"}):
        other_grads = gradient(dataclasses.replace(TINY, **change), params, data, key)
        assert max(relative_errors(other_grads, grads).values()) < 1e-5


def test_masked_source_tokens_do_not_matter():
    params, data = init_params(TINY, jax.random.key(0)), batch()
    other = dict(data, input_ids=np.where(data["attention_mask"], data["input_ids"], 7))
    assert not np.array_equal(data["input_ids"], other["input_ids"])
    chex.assert_trees_all_close(
        run(TINY, params, data), run(TINY, params, other), atol=1e-5
    )
    seen = dict(data, attention_mask=np.ones_like(data["attention_mask"]))
    assert np.abs(run(TINY, params, data) - run(TINY, params, seen)).max() > 1e-3


def test_mask_may_be_bool_or_missing():
    params, data = init_params(TINY, jax.random.key(0)), batch()
    as_bool = dict(data, attention_mask=data["attention_mask"].astype(bool))
    chex.assert_trees_all_equal(run(TINY, params, data), run(TINY, params, as_bool))
    ones = dict(data, attention_mask=np.ones_like(data["attention_mask"]))
    missing = dict(data, attention_mask=None)
    chex.assert_trees_all_close(
        run(TINY, params, ones), run(TINY, params, missing), atol=1e-6
    )


def test_a_row_with_nothing_to_see_stays_finite():
    params, data = init_params(TINY, jax.random.key(0)), batch()
    data["attention_mask"][1] = 0
    grads = gradient(TINY, params, data)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


def test_later_target_tokens_are_not_seen():
    params, data = init_params(TINY, jax.random.key(0)), batch()
    labels = data["labels"].copy()
    labels[:, 4] = 3  # enters the decoder at position 5
    before, after = (
        run(TINY, params, data),
        run(TINY, params, dict(data, labels=labels)),
    )
    chex.assert_trees_all_close(before[:, :5], after[:, :5], atol=1e-6)
    assert np.abs(before[:, 5:] - after[:, 5:]).max() > 1e-3


@pytest.mark.parametrize("config", [TINY, GATED], ids=["v1_0", "v1_1"])
def test_bfloat16_is_finite_and_close(config):
    params, data = init_params(config, jax.random.key(0)), batch()
    low = dataclasses.replace(config, dtype="bfloat16")
    want, grads = logits_and_gradient(config, params, data)
    got, low_grads = logits_and_gradient(low, params, data)
    assert got.dtype == jnp.float32
    assert np.abs(got - want).max() < 0.05 * np.abs(want).max()
    for path, leaf in flatten(low_grads).items():
        assert leaf.dtype == jnp.float32
        want_leaf = flatten(grads)[path]
        assert np.linalg.norm(leaf - want_leaf) < 0.1 * np.linalg.norm(want_leaf), path


def test_bfloat16_residuals_beyond_float16s_range_stay_finite():
    low = dataclasses.replace(TINY, dtype="bfloat16")
    params = init_params(low, jax.random.key(0))
    wo = params["encoder"]["layers"]["mlp"]["wo"]
    wo["kernel"] = wo["kernel"] * 1e6
    model = bind(low, params)
    layer_input = model.shared(batch()["input_ids"], "bfloat16")
    assert np.abs(layer_input).max() < 65504
    assert np.isfinite(run(low, params, batch())).all()


def test_float16_and_unknown_activations_are_refused():
    with pytest.raises(ValueError, match="float16"):
        T5Config(dtype="float16")
    with pytest.raises(ValueError, match="swish"):
        T5Config(feed_forward_proj="gated-swish")


def test_shapes_that_disagree_are_named():
    model = bind(TINY, init_params(TINY, jax.random.key(0)))
    ids = jnp.ones((2, 5), jnp.int32)
    with pytest.raises(ValueError, match=r"\(2, 5\).*\(3, 5\)"):
        model(ids, jnp.ones((3, 5), jnp.int32))
    with pytest.raises(ValueError, match=r"\(2, 4\).*\(2, 5\)"):
        model(ids, ids, attention_mask=ids[:, :4])
    with pytest.raises(ValueError, match=r"\(5,\)"):
        model(ids[0], ids)


def test_bind_lists_every_leaf_that_does_not_fit():
    params = init_params(TINY, jax.random.key(0))
    params["shared"]["embedding"] = jnp.zeros((49, 32))
    params["extra"] = jnp.zeros(1)
    del params["encoder"]["final_norm"]
    with pytest.raises(ValueError) as error:
        bind(TINY, params)
    for part in ("(49, 32)", "unexpected extra", "missing encoder/final_norm/scale"):
        assert part in str(error.value)


def test_bind_keeps_the_arrays_and_returns_to_them():
    params = init_params(TINY, jax.random.key(0))
    model = bind(TINY, params)
    assert model.shared.embedding[...] is params["shared"]["embedding"]


@pytest.mark.parametrize("config", [TINY, GATED], ids=["v1_0", "v1_1"])
def test_fresh_weights_have_hugging_faces_spread(config):
    wide = dataclasses.replace(config, d_model=128, d_kv=24, d_ff=160, vocab_size=400)
    inner = wide.num_heads * wide.d_kv
    spread = {
        "shared/embedding": 1.0,
        "lm_head/kernel": 1.0,
        "q/kernel": (128 * 24) ** -0.5,
        "k/kernel": 128**-0.5,
        "v/kernel": 128**-0.5,
        "o/kernel": inner**-0.5,
        "wi/kernel": 128**-0.5,
        "wi_0/kernel": 128**-0.5,
        "wi_1/kernel": 128**-0.5,
        "wo/kernel": 160**-0.5,
        "relative_bias/embedding": 128**-0.5,
    }
    for path, leaf in flatten(init_params(wide, jax.random.key(3))).items():
        if path.endswith("scale"):
            assert (leaf == 1).all()
            continue
        std = next(
            s for end, s in spread.items() if path.endswith("/" + end) or path == end
        )
        assert abs(leaf.std() / std - 1) < 4 / np.sqrt(2 * leaf.size), path
        assert abs(leaf.mean()) < 4 * std / np.sqrt(leaf.size), path
        if "layers" in path:
            assert not np.array_equal(leaf[0], leaf[1]), path


def test_initialisation_is_the_same_jitted_and_born_sharded():
    config = dataclasses.replace(TINY, vocab_size=64)
    want = init_params(config, jax.random.key(0))
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))

    def place(leaf):
        axis = PartitionSpec(*[None] * (leaf.ndim - 1), "x")
        return NamedSharding(mesh, axis if leaf.shape[-1] % 8 == 0 else PartitionSpec())

    shardings = jax.tree.map(place, want)
    born = jax.jit(init_params, static_argnums=0, out_shardings=shardings)
    chex.assert_trees_all_close(born(config, jax.random.key(0)), want, atol=1e-6)


def test_dropout_needs_a_key_and_follows_it():
    params, data = init_params(TINY, jax.random.key(0)), batch()
    calm = run(TINY, params, data)
    first, second, other = (
        run(TINY, params, data, jax.random.key(seed)) for seed in (1, 1, 2)
    )
    chex.assert_trees_all_equal(first, second)
    assert np.abs(first - other).max() > 1e-2
    assert np.abs(first - calm).max() > 1e-2
    without = dataclasses.replace(TINY, dropout_rate=0.0)
    chex.assert_trees_all_equal(run(without, params, data, jax.random.key(1)), calm)


def test_dropout_of_a_batch_in_parts_equals_the_whole():
    params, data = init_params(TINY, jax.random.key(0)), batch(rows=4)
    key = jax.random.key(5)
    whole = run(TINY, params, data, key)
    for rows, offset in (((0, 1), 0), ((2, 3), 2), ((1, 3), np.array([1, 2]))):
        rows = np.array(rows)
        part = run(
            TINY, params, jax.tree.map(lambda x, r=rows: x[r], data), key, offset
        )
        chex.assert_trees_all_close(part, whole[rows], atol=1e-5)
    assert np.abs(run(TINY, params, data, key, 1) - whole).max() > 1e-2


def test_shift_right_starts_pads_and_drops_the_last():
    labels = jnp.array([[5, -100, 6, -100], [1, 2, 3, 4]])
    shifted = shift_right(labels, start_id=9, pad_id=7)
    chex.assert_trees_all_equal(shifted, jnp.array([[9, 5, 7, 6], [9, 1, 2, 3]]))


def test_head_is_what_logits_multiply_by():
    for config in (TINY, GATED):
        model = bind(config, init_params(config, jax.random.key(0)))
        hidden = jax.random.normal(jax.random.key(1), (2, 3, 32))
        want = jnp.einsum("BTD,DV->BTV", hidden, model.head)
        chex.assert_trees_all_close(model.logits(hidden), want, atol=1e-5)


def test_config_is_a_static_argument():
    assert hash(T5Config.small()) == hash(T5Config())
    assert T5Config.t5_3b().d_kv * T5Config.t5_3b().num_heads == 4096

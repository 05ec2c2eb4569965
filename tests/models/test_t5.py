"""T5 against transformers' PyTorch model, and against itself in other forms."""

import dataclasses
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ntl_jax.hf.mapping import flatten
from ntl_jax.models import T5Config, bind, count_parameters, init_params, shift_right
from tests.tiny_t5 import KINDS, batch, ours, perturbed, to_params, torch_model

TOLERANCE = 1e-4  # a model in float32
TINY = T5Config(
    vocab_size=50,
    d_model=32,
    d_kv=12,
    d_ff=48,
    num_layers=2,
    num_decoder_layers=2,
    num_heads=4,
)
GATED = dataclasses.replace(
    TINY,
    feed_forward_proj="gated-gelu",
    tie_word_embeddings=False,
    scale_decoder_outputs=False,
)


def run_torch(model, data):
    import torch

    tensor = {k: torch.from_numpy(v).long() for k, v in data.items()}
    return model(**tensor)


@partial(jax.jit, static_argnums=0)
def run(config, params, data, dropout_key=None, row_offset=0):
    decoder_input_ids = shift_right(data["labels"], start_id=0, pad_id=0)
    return bind(config, params)(
        data["input_ids"],
        decoder_input_ids,
        attention_mask=data["attention_mask"],
        dropout_key=dropout_key,
        row_offset=row_offset,
    )


def mean_cross_entropy(params, config, data, dropout_key=None):
    logits = run(config, params, data, dropout_key)
    log_probabilities = jax.nn.log_softmax(logits)
    picked = jnp.take_along_axis(log_probabilities, data["labels"][..., None], axis=-1)
    return -jnp.mean(picked), logits


@partial(jax.jit, static_argnums=0)
def logits_and_gradient(config, params, data, dropout_key=None):
    grads, logits = jax.grad(mean_cross_entropy, has_aux=True)(
        params, config, data, dropout_key
    )
    return logits, grads


def gradient(config, params, data, dropout_key=None):
    return logits_and_gradient(config, params, data, dropout_key)[1]


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("small", 60_506_624),
        ("base", 222_903_552),
        ("large", 737_668_096),
        ("t5_3b", 2_851_598_336),
        ("v1_1_small", 76_961_152),
        ("v1_1_base", 247_577_856),
        ("v1_1_large", 783_150_080),
        ("v1_1_xl", 2_849_757_184),
    ],
)
def test_released_sizes_have_their_published_counts(name, count):
    config = getattr(T5Config, name)()
    shapes = jax.eval_shape(partial(init_params, config), jax.random.key(0))
    assert count_parameters(shapes) == count


@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_pytorch(kind):
    model = torch_model(kind)
    config, params = ours(model)
    for data in (batch(), batch(1, rows=1, source=1, target=1), batch(2, source=300)):
        want = run_torch(model, data).logits.detach().numpy()
        chex.assert_trees_all_close(run(config, params, data), want, atol=TOLERANCE)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_parity_can_fail(kind):
    model = torch_model(kind)
    config, params = ours(model)
    data = batch()
    data["input_ids"][0, 0] = 0  # so that the table's first row is in use
    want = run_torch(model, data).logits.detach().numpy()
    chex.assert_trees_all_close(run(config, params, data), want, atol=TOLERANCE)
    for path in flatten(params):
        wrong = run(config, perturbed(params, path), data)
        assert np.abs(wrong - want).max() > 2 * TOLERANCE, path


def relative_errors(got, want):
    got, want = flatten(got), flatten(want)
    assert got.keys() == want.keys()
    return {k: np.abs(got[k] - want[k]).max() / np.abs(want[k]).max() for k in want}


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_equal_pytorch(kind):
    model = torch_model(kind)
    config, params = ours(model)
    data = batch()
    run_torch(model, data).loss.backward()
    named = {name: p.grad.numpy() for name, p in model.named_parameters()}
    want = to_params(config, named)
    errors = relative_errors(gradient(config, params, data), want)
    assert max(errors.values()) < TOLERANCE, errors
    wrong = gradient(config, perturbed(params, "encoder/final_norm/scale"), data)
    assert min(relative_errors(wrong, want).values()) > TOLERANCE


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
    first, again, other = (
        run(TINY, params, data, jax.random.key(seed)) for seed in (1, 1, 2)
    )
    chex.assert_trees_all_equal(first, again)
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


@pytest.mark.slow
def test_dropout_drops_as_much_as_pytorch():
    """Over many masks, mean and spread of the logits agree with PyTorch's dropout."""
    import torch

    model = torch_model("v1_0", dropout_rate=0.2).train()
    config, params = ours(model)
    data = batch(rows=1, target=4)
    torch.manual_seed(0)
    with torch.no_grad():
        theirs = np.stack([run_torch(model, data).logits.numpy() for _ in range(400)])
    keys = jax.random.split(jax.random.key(0), 400)
    mine = jax.vmap(lambda key: run(config, params, data, key))(keys)
    spread = np.sqrt(np.mean(theirs.std(0) ** 2))
    assert abs(np.sqrt(np.mean(np.asarray(mine).std(0) ** 2)) / spread - 1) < 0.05
    assert np.abs(mine.mean(0) - theirs.mean(0)).mean() < 0.1 * spread


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

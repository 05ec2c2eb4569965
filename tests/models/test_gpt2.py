"""GPT-2 against transformers' PyTorch model."""

import dataclasses
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax.hf.mapping import flatten
from ntl_jax.kernels.dropout import Dropout
from ntl_jax.models import GPT2Config, bind, count_parameters, init_params
from ntl_jax.models.attention import Visible, make_attention_mask, token_positions
from tests.tiny_gpt2 import (
    KINDS,
    PADDINGS,
    batch,
    ours,
    real,
    run_torch,
    to_params,
    torch_model,
)
from tests.tiny_t5 import perturbed

TOLERANCE = 1e-4  # a model in float32, of the largest
BLOCK_TOLERANCE = 1e-5  # a block


@partial(jax.jit, static_argnums=0)
def run(config, params, data, dropout_key=None, row_offset=0):
    """Logits of a batch, whose labels are not looked at."""
    inputs = {k: v for k, v in data.items() if k != "labels"}
    model = bind(config, params)
    return model(**inputs, dropout_key=dropout_key, row_offset=row_offset)


def mean_cross_entropy(params, config, data, dropout_key=None):
    logits = run(config, params, data, dropout_key)
    labels = jnp.asarray(data["labels"])[:, 1:]
    log_probabilities = jax.nn.log_softmax(logits[:, :-1])
    index = jnp.maximum(labels, 0)[..., None]
    picked = jnp.take_along_axis(log_probabilities, index, axis=-1)[..., 0]
    counted = (labels != -100).astype(jnp.float32)
    return -jnp.sum(picked * counted) / jnp.sum(counted), logits


@partial(jax.jit, static_argnums=0)
def logits_and_gradient(config, params, data, dropout_key=None):
    grads, logits = jax.grad(mean_cross_entropy, has_aux=True)(
        params, config, data, dropout_key
    )
    return logits, grads


def relative_errors(got, want):
    """The largest difference of each leaf, relative to the leaf's largest entry."""
    got, want = flatten(got), flatten(want)
    assert got.keys() == want.keys()
    return {k: np.abs(got[k] - want[k]).max() / np.abs(want[k]).max() for k in want}


def assert_close(got, want, tolerance=TOLERANCE):
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * np.abs(want).max())


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("small", 124_439_808),
        ("medium", 354_823_168),
        ("large", 774_030_080),
        ("xl", 1_557_611_200),
    ],
)
def test_released_sizes_have_their_published_counts(name, count):
    config = getattr(GPT2Config, name)()
    shapes = jax.eval_shape(partial(init_params, config), jax.random.key(0))
    assert count_parameters(shapes) == count
    padded = config.pad_vocab()
    shapes = jax.eval_shape(partial(init_params, padded), jax.random.key(0))
    assert count_parameters(shapes) == count + 47 * config.n_embd
    assert count_parameters(shapes, padded) == count


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_pytorch(kind, padding):
    model = torch_model(kind)
    config, params = ours(model)
    for data in (batch(padding), batch("none", 1, rows=1, length=1), batch(length=48)):
        want = run_torch(model, data).logits.detach().numpy()
        seen = real(data)
        assert_close(np.asarray(run(config, params, data))[seen], want[seen])


@pytest.mark.parametrize("kind", KINDS)
def test_logits_parity_can_fail(kind):
    model = torch_model(kind)
    config, params = ours(model)
    data = batch("none")
    data["input_ids"][0, 0] = 0  # so that the table's first row is in use
    want = run_torch(model, data).logits.detach().numpy()
    for path in flatten(params):
        if path.endswith("qkv/bias"):
            continue  # its first entries are queries': see the next test
        wrong = run(config, perturbed(params, path), data)
        assert np.abs(wrong - want).max() > 2 * TOLERANCE * np.abs(want).max(), path


@pytest.mark.parametrize("part", range(3), ids=["q", "k", "v"])
def test_parts_of_the_fused_projection_are_told_apart(part):
    model = torch_model("tied")
    config, params = ours(model)
    data = batch("none")
    want = run_torch(model, data).logits.detach().numpy()
    for name in ("kernel", "bias"):
        leaf = np.array(params["layers"]["attention"]["qkv"][name])
        index = (0, part, 3) if name == "bias" else (0, 2, part, 3)
        leaf[index] += 1.0
        flat = dict(params["layers"]["attention"]["qkv"]) | {name: leaf}
        wrong = dict(params, layers=dict(params["layers"]))
        wrong["layers"]["attention"] = dict(params["layers"]["attention"], qkv=flat)
        error = np.abs(run(config, wrong, data) - want).max() / np.abs(want).max()
        if name == "bias" and part == 1:  # one number more for all of a query's scores
            assert error < TOLERANCE
        else:
            assert error > 2 * TOLERANCE


@pytest.mark.parametrize("padding", PADDINGS)
def test_each_blocks_states_equal_pytorch(padding):
    model = torch_model("tied")
    config, params = ours(model)
    data = batch(padding)
    inputs = {}

    def record(number, block, arguments, output):
        states = output[0] if isinstance(output, tuple) else output
        inputs[number] = arguments[0].detach().numpy(), states.detach().numpy()

    for number, block in enumerate(model.transformer.h):
        block.register_forward_hook(partial(record, number))
    run_torch(model, data)
    mask = data.get("attention_mask")
    seen, visible = real(data), Visible(make_attention_mask(mask), causal=True)
    layers = bind(config, params).layers
    for number in range(config.n_layer):
        given, want = inputs[number]
        layer = jax.tree.map(lambda leaf, n=number: leaf[n], layers)
        x = jnp.asarray(given)
        got = layer.finish(x, *layer.project(x), visible, Dropout(0.0, None))
        assert_close(np.asarray(got)[seen], want[seen], BLOCK_TOLERANCE)
        unmasked = Visible(causal=True)
        other = layer.finish(x, *layer.project(x), unmasked, Dropout(0.0, None))
        worst = np.abs(np.asarray(other)[seen] - want[seen]).max()
        assert (worst > 1e-3) == (padding == "left")


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_equal_pytorch(kind, padding):
    model = torch_model(kind)
    config, params = ours(model)
    data = batch(padding)
    run_torch(model, data).loss.backward()
    named = {name: p.grad.numpy() for name, p in model.named_parameters()}
    want = to_params(config, named)
    errors = relative_errors(logits_and_gradient(config, params, data)[1], want)
    assert max(errors.values()) < TOLERANCE, errors
    wrong = perturbed(params, "final_norm/scale")
    wrong = logits_and_gradient(config, wrong, data)[1]
    assert min(relative_errors(wrong, want).values()) > TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("rate", ["embd_pdrop", "attn_pdrop", "resid_pdrop"])
def test_dropout_drops_as_much_as_pytorch(rate):
    """Over many masks, mean and spread of the logits agree with PyTorch's dropout."""
    import torch

    none = {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
    model = torch_model("tied", **none | {rate: 0.2}).train()
    config, params = ours(model)
    assert getattr(config, rate) == 0.2
    data = batch("none", rows=1, length=4)
    torch.manual_seed(0)
    with torch.no_grad():
        theirs = np.stack([run_torch(model, data).logits.numpy() for _ in range(400)])
    keys = jax.random.split(jax.random.key(0), 400)
    mine = np.asarray(jax.vmap(lambda key: run(config, params, data, key))(keys))

    def spread(logits):
        return np.sqrt(np.mean(logits.std(axis=0) ** 2))

    assert abs(spread(mine) / spread(theirs) - 1) < 0.1
    assert np.abs(mine.mean(0) - theirs.mean(0)).mean() < 0.1 * spread(theirs)
    other = dataclasses.replace(config, **{rate: 0.3})
    more = np.asarray(jax.vmap(lambda key: run(other, params, data, key))(keys))
    assert spread(more) / spread(theirs) - 1 > 0.1


def test_positions_count_no_padding_and_restart():
    mask = jnp.array([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
    want = [[0, 0, 0, 1, 2, 3], [0, 1, 2, 3, 3, 3]]
    chex.assert_trees_all_equal(token_positions(6, mask), jnp.array(want))
    segments = jnp.array([[4, 4, 4, 2, 2, 0], [1, 2, 3, 3, 3, 3]])
    want = [[0, 1, 2, 0, 1, 0], [0, 0, 0, 1, 2, 3]]
    chex.assert_trees_all_equal(token_positions(6, None, segments), jnp.array(want))
    both = token_positions(6, mask.at[0, 4].set(0), segments)
    want = [[0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1]]
    chex.assert_trees_all_equal(both, jnp.array(want))
    chex.assert_trees_all_equal(token_positions(3), jnp.array([[0, 1, 2]]))

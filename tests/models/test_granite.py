"""Granite, dense and mixture of experts, against transformers' PyTorch models."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax.hf.mapping import flatten
from ntl_jax.kernels.dropout import Dropout
from ntl_jax.kernels.experts import FEW_TOKENS
from ntl_jax.models import GraniteConfig, bind, count_parameters, init_params
from ntl_jax.models.attention import Visible, make_attention_mask, token_positions
from ntl_jax.models.granite.model import rotation
from tests.tiny_gpt2 import PADDINGS, batch, real, run_torch
from tests.tiny_granite import KINDS, LONG, gradients, ours, to_params, torch_model
from tests.tiny_t5 import perturbed

TOLERANCE = 1e-4  # a model in float32, of the largest
BLOCK_TOLERANCE = 1e-5  # a block
MULTIPLIERS = {
    "attention_multiplier": 8**-0.5,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "logits_scaling": 1 / 2.5,
    "rope_theta": 10000.0,
}


def padded():
    """Every padding of every model; slow, that of no masks where biases are all new."""
    for kind in KINDS:
        for padding in PADDINGS:
            few = kind == "biased" and padding == "none"
            yield pytest.param(kind, padding, marks=pytest.mark.slow if few else ())


@partial(jax.jit, static_argnums=0)
def run(config, params, data, dropout_key=None, row_offset=0):
    """Logits of a batch, whose labels are not looked at."""
    inputs = {k: v for k, v in data.items() if k != "labels"}
    model = bind(config, params)
    return model(**inputs, dropout_key=dropout_key, row_offset=row_offset)


def loss(params, config, data, dropout_key=None):
    """Mean cross-entropy and, with experts, the routers' loss at its coefficient."""
    inputs = {k: v for k, v in data.items() if k != "labels"}
    model = bind(config, params)
    if config.num_local_experts:
        hidden, router_loss = model.hidden_and_router_loss(
            **inputs, dropout_key=dropout_key
        )
    else:
        hidden = model.hidden(**inputs, dropout_key=dropout_key)
        router_loss = jnp.float32(0)
    logits = model.logits(hidden)
    labels = jnp.asarray(data["labels"])[:, 1:]
    log_probabilities = jax.nn.log_softmax(logits[:, :-1])
    index = jnp.maximum(labels, 0)[..., None]
    picked = jnp.take_along_axis(log_probabilities, index, axis=-1)[..., 0]
    counted = (labels != -100).astype(jnp.float32)
    entropy = -jnp.sum(picked * counted) / jnp.sum(counted)
    return entropy + config.router_aux_loss_coef * router_loss, (logits, router_loss)


@partial(jax.jit, static_argnums=0)
def logits_and_gradient(config, params, data, dropout_key=None):
    grads, (logits, router_loss) = jax.grad(loss, has_aux=True)(
        params, config, data, dropout_key
    )
    return logits, router_loss, grads


def relative_errors(got, want):
    """The largest difference of each leaf, relative to the leaf's largest entry."""
    got, want = flatten(got), flatten(want)
    assert got.keys() == want.keys()
    return {k: np.abs(got[k] - want[k]).max() / np.abs(want[k]).max() for k in want}


def assert_close(got, want, tolerance=TOLERANCE):
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * np.abs(want).max())


@pytest.mark.parametrize(
    ("name", "count"),
    [("granite_3_2_2b", 2_533_531_648), ("granite_3_1_1b_a400m", 1_334_625_280)],
)
def test_released_sizes_have_their_published_counts(name, count):
    config = getattr(GraniteConfig, name)()
    shapes = jax.eval_shape(partial(init_params, config), jax.random.key(0))
    assert count_parameters(shapes) == count
    padded = config.pad_vocab(1000)
    shapes = jax.eval_shape(partial(init_params, padded), jax.random.key(0))
    assert count_parameters(shapes) > count
    assert count_parameters(shapes, padded) == count


@pytest.mark.parametrize(("kind", "padding"), list(padded()))
def test_logits_equal_pytorch(kind, padding):
    model = torch_model(kind)
    config, params = ours(model)
    for data in (
        batch(padding),
        batch("none", 1, rows=1, length=1),
        batch(padding, 2, length=LONG),
    ):
        want = run_torch(model, data).logits.detach().numpy()
        seen = real(data)
        assert_close(np.asarray(run(config, params, data))[seen], want[seen])


@pytest.mark.parametrize("kind", KINDS)
def test_logits_parity_can_fail(kind):
    model = torch_model(kind)
    config, params = ours(model)
    data = batch("none", length=LONG)
    data["input_ids"][0, 0] = 0  # so that the table's first row is in use
    want = run_torch(model, data).logits.detach().numpy()
    for path in flatten(params):
        wrong = run(config, perturbed(params, path), data)
        assert np.abs(wrong - want).max() > 2 * TOLERANCE * np.abs(want).max(), path


@pytest.mark.parametrize("name", MULTIPLIERS)
@pytest.mark.parametrize(
    "kind",  # biases change nothing of what is multiplied
    [pytest.param(k, marks=pytest.mark.slow if k == "biased" else ()) for k in KINDS],
)
def test_each_multiplier_matters(kind, name):
    model = torch_model(kind)
    config, params = ours(model)
    data = batch("none")
    want = run_torch(model, data).logits.detach().numpy()
    assert_close(run(config, params, data), want)
    wrong = dataclasses.replace(config, **{name: MULTIPLIERS[name]})
    error = np.abs(run(wrong, params, data) - want).max()
    assert error > 100 * TOLERANCE * np.abs(want).max()


@pytest.mark.parametrize(("kind", "padding"), list(padded()))
def test_each_blocks_states_equal_pytorch(kind, padding):
    model = torch_model(kind)
    config, params = ours(model)
    data = batch(padding)
    states = {}

    def record(number, block, arguments, output):
        output = output[0] if isinstance(output, tuple) else output
        states[number] = arguments[0].detach().numpy(), output.detach().numpy()

    for number, block in enumerate(model.model.layers):
        block.register_forward_hook(partial(record, number))
    run_torch(model, data)
    mask = data.get("attention_mask")
    seen, visible = real(data), Visible(make_attention_mask(mask), causal=True)
    angles = rotation(token_positions(20, mask), config.head_dim, config.rope_theta)
    slow = rotation(token_positions(20, mask), config.head_dim, 1e4)
    layers = bind(config, params).layers
    for number in range(config.num_hidden_layers):
        given, want = states[number]
        layer = jax.tree.map(lambda leaf, n=number: leaf[n], layers)

        def run_block(by, given=given, layer=layer):
            x = jnp.asarray(given)
            q, k, v = layer.attention.project(x, by)
            return layer.finish(x, q, k, v, visible, Dropout(0.0, None))[0]

        assert_close(np.asarray(run_block(angles))[seen], want[seen], BLOCK_TOLERANCE)
        assert np.abs(np.asarray(run_block(slow))[seen] - want[seen]).max() > 1e-3


@pytest.mark.parametrize(("kind", "padding"), list(padded()))
def test_gradients_equal_pytorch(kind, padding):
    model = torch_model(kind)
    config, params = ours(model)
    for data in (batch(padding), batch(padding, 2, length=LONG)):
        model.zero_grad()
        options = {"output_router_logits": True} if kind == "experts" else {}
        outputs = run_torch(model, data, **options)
        outputs.loss.backward()
        want = to_params(config, gradients(model))
        _, router_loss, grads = logits_and_gradient(config, params, data)
        errors = relative_errors(grads, want)
        assert max(errors.values()) < TOLERANCE, errors
        if kind == "experts":
            assert_close(router_loss, outputs.aux_loss.detach().numpy())
    wrong = logits_and_gradient(config, perturbed(params, "final_norm/scale"), data)[2]
    # The routers have a loss of their own, which the last norm does not reach.
    assert np.median(list(relative_errors(wrong, want).values())) > TOLERANCE


def test_both_forms_of_the_experts_were_compared():
    assert batch()["input_ids"].size <= FEW_TOKENS < batch(length=LONG)["labels"].size


@pytest.mark.parametrize("name", ["router_aux_loss_coef", "num_experts_per_tok"])
def test_router_parity_can_fail(name):
    model = torch_model("experts")
    config, params = ours(model)
    data = batch(length=LONG)
    outputs = run_torch(model, data, output_router_logits=True)
    outputs.loss.backward()
    want = to_params(config, gradients(model))
    wrong = dataclasses.replace(config, **{name: 1})
    grads = logits_and_gradient(wrong, params, data)[2]
    error = relative_errors(grads, want)["layers/mlp/router/kernel"]
    assert error > 100 * TOLERANCE
    unmasked = {k: v for k, v in data.items() if k != "attention_mask"}
    other = logits_and_gradient(config, params, unmasked)[1]
    aux_loss = float(outputs.aux_loss.detach())
    assert abs(float(other) / aux_loss - 1) > 10 * TOLERANCE


def test_a_dense_model_has_no_router_loss():
    config = GraniteConfig(
        vocab_size=8,
        hidden_size=8,
        intermediate_size=4,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    model = bind(config, init_params(config, jax.random.key(0)))
    with pytest.raises(ValueError, match=r"num_local_experts is 0"):
        model.hidden_and_router_loss(jnp.ones((1, 2), jnp.int32))

"""xVal on T5 against transformers' T5 on embeddings that are made here."""

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax.hf.mapping import flatten, unflatten
from ntl_jax.models import T5Config, XvalConfig, bind, init_params
from ntl_jax.models.baselines.t5_xval import scale_numbers
from ntl_jax.sharding.mesh import make_mesh
from ntl_jax.sharding.rules import param_shardings
from tests.models.cases import ours, perturbed, to_params, torch_model
from tests.models.running import TOLERANCE, relative_errors
from tests.models.t5_xval_cases import (
    HIDDEN,
    NUM,
    OWN,
    POSITIONS,
    extended,
    loss_and_gradient,
    numeric_batch,
    torch_loss,
)


@pytest.mark.parametrize(
    ("kind", "scale"),
    [
        ("t5_v1_0", "log"),
        pytest.param("t5_v1_1", "value", marks=pytest.mark.slow),
    ],
    ids=["log", "value"],
)
def test_loss_outputs_and_gradients_equal_pytorch(kind, scale):
    torch = pytest.importorskip("torch")
    model: Any = torch_model(kind)
    plain, params = ours(model)
    config, params = extended(plain, params, scale)
    flat, data = flatten(params), numeric_batch()
    leaves = {path: torch.tensor(flat[path], requires_grad=True) for path in OWN}
    want, logits, numbers = torch_loss(model, leaves, data, scale)
    want.backward()
    named = {name: p.grad.numpy() for name, p in model.named_parameters()}
    want_grads = flatten(to_params(plain, named))
    want_grads |= {path: np.asarray(leaf.grad) for path, leaf in leaves.items()}

    loss, output, grads = loss_and_gradient(config, params, data)
    want_output = (logits.detach().numpy(), numbers.detach().numpy())
    assert abs(float(loss) / want.item() - 1) < TOLERANCE
    chex.assert_trees_all_close(tuple(output), want_output, atol=TOLERANCE)
    errors = relative_errors(grads, unflatten(want_grads))
    assert max(errors.values()) < TOLERANCE, errors

    for path in ("shared/embedding", *OWN):
        _, wrong, wrong_grads = loss_and_gradient(config, perturbed(params, path), data)
        error = max(
            np.abs(a - b).max() for a, b in zip(wrong, want_output, strict=True)
        )
        assert error > 2 * TOLERANCE, path
        errors = relative_errors(wrong_grads, unflatten(want_grads))
        assert max(errors.values()) > 2 * TOLERANCE, path


CONFIG = XvalConfig(
    vocab_size=50,
    d_model=32,
    d_kv=12,
    d_ff=48,
    num_layers=1,
    num_decoder_layers=1,
    num_heads=4,
    num_id=NUM,
    max_positions=POSITIONS,
    number_hidden=HIDDEN,
)


def test_scales_are_what_they_say():
    values = jnp.array([[0.0, 1.0, -99.0, 3e9]])
    assert np.array_equal(scale_numbers(values, "value"), values)
    assert np.array_equal(scale_numbers(values, "plus_one"), values + 1)
    want = [[0, 0.317639, -2.110345, 10.0]]
    np.testing.assert_allclose(scale_numbers(values, "log"), want, rtol=1e-4)


def test_values_elsewhere_are_not_read_and_padding_does_not_matter():
    params, data = init_params(CONFIG, jax.random.key(0)), numeric_batch()
    want = loss_and_gradient(CONFIG, params, data)[1]
    other = dict(data)
    is_number = data["input_ids"] == NUM
    other["input_values"] = np.where(is_number, data["input_values"], np.float32(8))
    hidden = data["attention_mask"] == 0
    other["input_ids"] = np.where(hidden, 7, data["input_ids"]).astype(np.int32)
    got = loss_and_gradient(CONFIG, params, other)[1]
    chex.assert_trees_all_close(got, want, atol=1e-6)
    other["input_values"] = np.where(hidden, other["input_values"], np.float32(8))
    moved = loss_and_gradient(CONFIG, params, other)[1]
    assert np.abs(moved.numbers - want.numbers).max() > 1e-2


def test_fresh_heads_have_their_spread_and_dropout_is_keyed():
    params, data = init_params(CONFIG, jax.random.key(0)), numeric_batch()
    flat = flatten(params)
    assert abs(np.std(flat["positions/embedding"]) / 0.02 - 1) < 0.1
    xavier = (2 / (32 + HIDDEN)) ** 0.5
    assert abs(np.std(flat["number_head/wi/kernel"]) / xavier - 1) < 0.1
    first, again, other = (
        loss_and_gradient(CONFIG, params, data, jax.random.key(seed))[0]
        for seed in (1, 1, 2)
    )
    assert first == again != other


def test_what_does_not_fit_is_refused():
    model = bind(CONFIG, init_params(CONFIG, jax.random.key(0)))
    long, one = jnp.zeros((1, POSITIONS + 1), jnp.int32), jnp.zeros((1, 1), jnp.int32)
    with pytest.raises(ValueError, match=r"49 .*max_positions=48"):
        model(long, jnp.ones(long.shape), one, jnp.ones((1, 1)))
    with pytest.raises(ValueError, match="shape"):
        model(one, jnp.ones((1, 2)), one, jnp.ones((1, 1)))
    with pytest.raises(ValueError, match=r"num_id .*50.*50"):
        dataclasses.replace(CONFIG, num_id=50)
    with pytest.raises(ValueError, match=r"'value'.*'log'.*'plus_one'"):
        dataclasses.replace(CONFIG, embedding_scale="sqrt")
    with pytest.raises(ValueError, match=r"max_positions .*0"):
        dataclasses.replace(CONFIG, max_positions=0)
    assert issubclass(XvalConfig, T5Config)


@pytest.mark.slow
def test_on_a_mesh_values_and_gradients_stay_the_same():
    params, data = init_params(CONFIG, jax.random.key(0)), numeric_batch()
    data = {name: np.tile(value, (4, 1))[:4] for name, value in data.items()}
    mesh = make_mesh(2, 2, 2)
    spread = jax.device_put(params, param_shardings(CONFIG, params, mesh))
    want = jax.device_get(loss_and_gradient(CONFIG, params, data)[2])
    got = jax.device_get(loss_and_gradient(CONFIG, spread, data)[2])
    errors = relative_errors(got, want)
    assert max(errors.values()) < TOLERANCE, errors

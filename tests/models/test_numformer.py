"""Numformer against its formula in PyTorch's own layers."""

import dataclasses
from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax.hf.mapping import flatten, unflatten
from ntl_jax.models import NumformerConfig, bind, count_parameters, init_params
from ntl_jax.sharding.mesh import make_mesh
from ntl_jax.sharding.rules import param_shardings
from tests.tiny_t5 import perturbed

TOLERANCE = 1e-4  # a model in float32
CONFIG = NumformerConfig(
    vocab_size=24,
    num_id=20,
    d_model=32,
    d_ff=48,
    num_layers=2,
    num_heads=4,
    max_positions=16,
)


def rows():
    """Half of the tokens are numbers; two rows are padded on the right."""
    draw = np.random.default_rng(0)
    ids = draw.integers(2, 20, (4, 12), dtype=np.int32)
    values = np.ones((4, 12), np.float32)
    is_number = draw.random((4, 12)) < 0.5
    ids[is_number] = 20
    values[is_number] = draw.normal(0, 3, is_number.sum())
    mask = np.ones((4, 12), bool)
    mask[1, 9:], mask[2, 4:] = False, False
    ids[~mask], values[~mask] = 0, 1.0
    return {"ids": ids, "values": values, "mask": mask}


def numbers_of(params, seed=1):
    """The parameters, constant ones moved: constants would hide a swap."""
    draw = np.random.default_rng(seed)
    flat = {
        path: np.asarray(leaf) + 0.2 * draw.standard_normal(leaf.shape, np.float32)
        for path, leaf in flatten(params).items()
    }
    return unflatten(flat)


class TorchNumformer:
    """The same model, written in PyTorch: its layers are nn.TransformerEncoderLayer."""

    def __init__(self, params):
        import torch

        self.torch = torch
        self.leaves: dict[str, Any] = {
            path: torch.tensor(np.asarray(leaf), requires_grad=True)
            for path, leaf in flatten(params).items()
        }

    def layer(self, index):
        """One layer, as a module and the parameters that it is to be called with."""
        torch = self.torch
        module = torch.nn.TransformerEncoderLayer(
            CONFIG.d_model,
            CONFIG.num_heads,
            CONFIG.d_ff,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        own = {
            path.removeprefix("layers/"): leaf[index]
            for path, leaf in self.leaves.items()
            if path.startswith("layers/")
        }
        width = CONFIG.d_model
        parameters = {
            "self_attn.in_proj_weight": own["attention/qkv/kernel"]
            .reshape(width, -1)
            .T,
            "self_attn.in_proj_bias": own["attention/qkv/bias"].reshape(-1),
            "self_attn.out_proj.weight": own["attention/o/kernel"].T,
            "self_attn.out_proj.bias": own["attention/o/bias"],
            "linear1.weight": own["mlp/wi/kernel"].T,
            "linear1.bias": own["mlp/wi/bias"],
            "linear2.weight": own["mlp/wo/kernel"].T,
            "linear2.bias": own["mlp/wo/bias"],
            "norm1.weight": own["attention/norm/scale"],
            "norm1.bias": own["attention/norm/bias"],
            "norm2.weight": own["mlp/norm/scale"],
            "norm2.bias": own["mlp/norm/bias"],
        }
        return module, parameters

    def __call__(self, data):
        torch, leaves = self.torch, self.leaves
        ids, values = torch.tensor(data["ids"]).long(), torch.tensor(data["values"])
        x = leaves["embed/embedding"][ids] * values[..., None]
        x = x + leaves["positions/embedding"][: ids.shape[1]]
        padded = ~torch.tensor(data["mask"])
        for index in range(CONFIG.num_layers):
            module, parameters = self.layer(index)
            x = torch.func.functional_call(
                module, parameters, (x,), {"src_key_padding_mask": padded}
            )
        h = torch.nn.functional.gelu(x @ leaves["lm_head/wi/kernel"])
        logits = h @ leaves["lm_head/wo/kernel"]
        h = x @ leaves["number_head/wi/kernel"] + leaves["number_head/wi/bias"]
        h = torch.nn.functional.gelu(h)
        numbers = h @ leaves["number_head/wo/kernel"] + leaves["number_head/wo/bias"]
        return logits, numbers[..., 0]


@partial(jax.jit, static_argnums=0)
def run(config, params, data, dropout_key=None, row_offset=0):
    return bind(config, params)(
        data["ids"],
        data["values"],
        attention_mask=data["mask"],
        dropout_key=dropout_key,
        row_offset=row_offset,
    )


@partial(jax.jit, static_argnums=0)
def output_and_gradient(config, params, data):
    def score(params):
        output = run(config, params, data)
        seen = data["mask"].astype(jnp.float32)
        logits = jnp.sum(jnp.sin(output.logits) * seen[..., None])
        return logits + jnp.sum(jnp.sin(output.numbers) * seen), output

    grads, output = jax.grad(score, has_aux=True)(params)
    return output, grads


def relative_errors(got, want):
    got, want = flatten(got), flatten(want)
    assert got.keys() == want.keys()
    return {k: np.abs(got[k] - want[k]).max() / np.abs(want[k]).max() for k in want}


def test_outputs_and_gradients_equal_pytorch():
    pytest.importorskip("torch")
    params, data = numbers_of(init_params(CONFIG, jax.random.key(0))), rows()
    twin = TorchNumformer(params)
    logits, numbers = twin(data)
    seen = twin.torch.tensor(data["mask"])
    (logits[seen].sin().sum() + numbers[seen].sin().sum()).backward()
    want = {path: leaf.grad.numpy() for path, leaf in twin.leaves.items()}
    want["positions/embedding"][12:] = 0
    output, grads = output_and_gradient(CONFIG, params, data)
    mask = data["mask"]
    wanted = (logits.detach().numpy()[mask], numbers.detach().numpy()[mask])
    got = (np.asarray(output.logits)[mask], np.asarray(output.numbers)[mask])
    chex.assert_trees_all_close(got, wanted, atol=TOLERANCE)
    errors = relative_errors(grads, unflatten(want))
    assert max(errors.values()) < TOLERANCE, errors

    data["ids"][0, 0] = 0  # so that the table's first row is in use
    logits, numbers = (np.asarray(x.detach()) for x in twin(data))
    for path in flatten(params):
        if path == "layers/attention/qkv/bias":  # a key's bias moves no softmax, ...
            continue
        wrong = run(CONFIG, perturbed(params, path), data)
        error = np.abs(wrong.logits[:1] - logits[:1]).max()
        error = max(error, np.abs(wrong.numbers[:1] - numbers[:1]).max())
        assert error > 2 * TOLERANCE, path
    bias = np.array(flatten(params)["layers/attention/qkv/bias"])
    bias[0, 2, 0] += 1.0  # ... a value's does
    flat = flatten(params) | {"layers/attention/qkv/bias": bias}
    wrong = run(CONFIG, unflatten(flat), data)
    assert np.abs(wrong.logits[:1] - logits[:1]).max() > 2 * TOLERANCE


def test_padding_changes_nothing():
    params, data = init_params(CONFIG, jax.random.key(0)), rows()
    whole = run(CONFIG, params, data)
    other = data["ids"].copy()
    other[~data["mask"]] = 7
    again = run(CONFIG, params, data | {"ids": other})
    for a, b in zip(whole, again, strict=True):
        chex.assert_trees_all_close(a[data["mask"]], b[data["mask"]], atol=1e-6)


def test_values_are_read_at_numbers_only():
    params, data = init_params(CONFIG, jax.random.key(0)), rows()
    whole = run(CONFIG, params, data)
    values = np.where(data["ids"] == 20, data["values"], np.float32(5.0))
    again = run(CONFIG, params, data | {"values": values})
    chex.assert_trees_all_equal(whole, again)
    values = np.where(data["ids"] == 20, data["values"] + 1, data["values"])
    moved = run(CONFIG, params, data | {"values": values})
    assert np.abs(moved.numbers - whole.numbers).max() > 1e-2


def test_dropout_is_keyed_and_known_by_row():
    params, data = init_params(CONFIG, jax.random.key(0)), rows()
    first, again, other = (
        run(CONFIG, params, data, jax.random.key(seed)).numbers for seed in (1, 1, 2)
    )
    chex.assert_trees_all_equal(first, again)
    assert np.abs(first - other).max() > 1e-2
    part = {name: np.roll(value, -1, axis=0) for name, value in data.items()}
    moved = run(CONFIG, params, part, jax.random.key(1), 1).numbers
    chex.assert_trees_all_close(moved[:-1], first[1:], atol=1e-5)


def test_bfloat16_stays_close():
    params, data = init_params(CONFIG, jax.random.key(0)), rows()
    low = dataclasses.replace(CONFIG, dtype="bfloat16")
    want, got = run(CONFIG, params, data), run(low, params, data)
    assert got.logits.dtype == got.numbers.dtype == jnp.float32
    for a, b in zip(want, got, strict=True):
        assert np.abs(a - b).max() < 0.1 * np.abs(a).max()


def test_the_papers_size_and_spreads():
    config = NumformerConfig()
    shapes = jax.eval_shape(partial(init_params, config), jax.random.key(0))
    layer = 12 * (4 * (768 * 768 + 768) + 2 * 768 * 3072 + 3072 + 768 + 4 * 768)
    heads = 768 * 3072 + 3072 * 32101 + 768 * 3072 + 3072 + 3072 + 1
    assert count_parameters(shapes) == (32101 + 512) * 768 + layer + heads
    params = flatten(init_params(CONFIG, jax.random.key(0)))
    first, second = np.asarray(params["layers/attention/qkv/kernel"])
    assert np.abs(first - second).max() > 0.1  # no copies of one layer
    spread = np.asarray(params["layers/mlp/wo/kernel"]).std() * (3 * 48) ** 0.5
    assert abs(spread - 1) < 0.05


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 5}, "32 does not divide into 5 heads"),
        ({"num_id": 24}, "outside the 24 rows"),
        ({"dtype": "float16"}, "'float32' or 'bfloat16'"),
        ({"d_ff": 0}, "d_ff is 0"),
        ({"dropout_rate": 1.0}, r"outside \[0, 1\)"),
    ],
)
def test_configs_that_cannot_be_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, **changes)


def test_rows_that_are_too_long_and_values_of_another_shape_are_refused():
    model = bind(CONFIG, init_params(CONFIG, jax.random.key(0)))
    with pytest.raises(ValueError, match=r"17 tokens exceeds max_positions=16"):
        model(jnp.zeros((1, 17), jnp.int32), jnp.ones((1, 17)))
    with pytest.raises(ValueError, match=r"\(1, 4\) and values \(1, 3\)"):
        model(jnp.zeros((1, 4), jnp.int32), jnp.ones((1, 3)))


@pytest.mark.slow
def test_on_a_mesh_values_and_gradients_stay_the_same():
    params, data = init_params(CONFIG, jax.random.key(0)), rows()
    spread = jax.device_put(params, param_shardings(CONFIG, params, make_mesh(2, 2, 2)))
    want = jax.device_get(output_and_gradient(CONFIG, params, data)[1])
    got = jax.device_get(output_and_gradient(CONFIG, spread, data)[1])
    errors = relative_errors(got, want)
    assert max(errors.values()) < TOLERANCE, errors

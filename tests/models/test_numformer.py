"""Numformer against its formula in PyTorch's own layers."""

import dataclasses
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax.hf.mapping import flatten, unflatten
from ntl_jax.models import NumformerConfig, bind, count_parameters, init_params
from ntl_jax.sharding.mesh import make_mesh
from ntl_jax.sharding.rules import param_shardings
from tests.models.cases import perturbed
from tests.models.numformer_cases import (
    CONFIG,
    TorchNumformer,
    numbers_of,
    output_and_gradient,
    rows,
    run,
)
from tests.models.running import TOLERANCE, relative_errors


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
    with pytest.raises(ValueError, match=r"17 .*max_positions=16"):
        model(jnp.zeros((1, 17), jnp.int32), jnp.ones((1, 17)))
    with pytest.raises(ValueError, match=r"\(1, 4\).*\(1, 3\)"):
        model(jnp.zeros((1, 4), jnp.int32), jnp.ones((1, 3)))


@pytest.mark.slow
def test_on_a_mesh_values_and_gradients_stay_the_same():
    params, data = init_params(CONFIG, jax.random.key(0)), rows()
    spread = jax.device_put(params, param_shardings(CONFIG, params, make_mesh(2, 2, 2)))
    want = jax.device_get(output_and_gradient(CONFIG, params, data)[1])
    got = jax.device_get(output_and_gradient(CONFIG, spread, data)[1])
    errors = relative_errors(got, want)
    assert max(errors.values()) < TOLERANCE, errors

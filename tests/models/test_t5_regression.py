"""The regression head against transformers' T5ForSequenceClassification."""

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax.generate import greedy
from ntl_jax.hf.mapping import flatten
from ntl_jax.models import (
    T5Config,
    T5RegressionConfig,
    init_params,
    regression_from_t5,
)
from ntl_jax.sharding.mesh import make_mesh
from ntl_jax.sharding.rules import param_shardings
from tests.models.cases import T5_CASES, perturbed
from tests.models.running import TOLERANCE, relative_errors
from tests.models.t5_regression_cases import (
    TARGETS,
    loss_and_gradient,
    ours,
    questions,
    run,
    run_torch,
    to_params,
    torch_model,
)


@pytest.mark.parametrize("kind", T5_CASES)
def test_values_loss_and_gradients_equal_pytorch(kind):
    model, data = torch_model(kind), questions()
    config, params = ours(model)
    several = questions(((3, 12), (1, 5), (7, 9)))
    for case in (data, several):
        want = run_torch(model, case).logits.detach().numpy()[:, 0]
        got = run(config, params, case)
        chex.assert_trees_all_close(got, want, atol=TOLERANCE)
    theirs = run_torch(model, data, TARGETS)
    assert model.config.problem_type == "regression"
    theirs.loss.backward()
    loss, grads = loss_and_gradient(config, params, data)
    assert abs(float(loss) / float(theirs.loss.detach()) - 1) < TOLERANCE
    want = to_params(config, {n: p.grad.numpy() for n, p in model.named_parameters()})
    errors = relative_errors(grads, want)
    assert max(errors.values()) < TOLERANCE, errors

    wrong = loss_and_gradient(config, perturbed(params, "head/dense/kernel"), data)[1]
    assert min(relative_errors(wrong, want).values()) > TOLERANCE


def test_parity_can_fail():
    model, data = torch_model("t5_v1_0"), questions()
    config, params = ours(model)
    data["input_ids"][0, 0] = 0  # so that the table's first row is in use
    want = run_torch(model, data).logits.detach().numpy()[:, 0]
    for path in flatten(params):
        wrong = run(config, perturbed(params, path), data)
        assert np.abs(wrong - want).max() > 2 * TOLERANCE, path


CONFIG = T5RegressionConfig(
    vocab_size=50,
    d_model=32,
    d_kv=12,
    d_ff=48,
    num_layers=1,
    num_decoder_layers=1,
    num_heads=4,
    classifier_dropout=0.5,
    dropout_rate=0.0,
)


def test_classifier_dropout_is_keyed_and_known_by_row():
    params, data = init_params(CONFIG, jax.random.key(0)), questions()
    first, again, other = (
        run(CONFIG, params, data, jax.random.key(seed)) for seed in (1, 1, 2)
    )
    chex.assert_trees_all_equal(first, again)
    calm = run(CONFIG, params, data)
    assert np.abs(first - other).min() > 1e-4
    assert np.abs(first - calm).min() > 1e-4
    moved = run(CONFIG, params, data, jax.random.key(1), 7)
    assert np.abs(first - moved).min() > 1e-4


def test_classifier_dropout_drops_as_much_as_it_says():
    params: Any = init_params(CONFIG, jax.random.key(0))
    data = questions()
    dense, out = params["head"]["dense"], params["head"]["out"]
    dense["kernel"] = jnp.zeros((32, 32))  # so that the second dropout acts alone
    dense["bias"] = jnp.linspace(-2.0, 2.0, 32)
    summands = jnp.tanh(dense["bias"]) * out["kernel"][:, 0]
    draws = jax.vmap(lambda key: run(CONFIG, params, data, key))(
        jax.random.split(jax.random.key(0), 2000)
    )
    spread = np.sqrt(np.sum(np.square(summands)))  # rate / (1 - rate) is 1
    assert (np.abs(draws.std(0) / spread - 1) < 0.06).all()
    assert (np.abs(draws.mean(0) - summands.sum()) < 4 * spread / 2000**0.5).all()


def test_no_end_of_sequence_token_is_no_number():
    params, data = init_params(CONFIG, jax.random.key(0)), questions()
    data["input_ids"][1][data["input_ids"][1] == 1] = 7
    got = run(CONFIG, params, data)
    assert np.isnan(got[1])
    assert np.isfinite(got[0])
    assert np.isfinite(got[2])
    hidden = questions()
    hidden["attention_mask"][1] = 0  # what is masked ends nothing
    assert np.isnan(run(CONFIG, params, hidden)[1])


def test_padding_to_the_right_changes_nothing():
    params, data = init_params(CONFIG, jax.random.key(0)), questions()
    short = {name: value[1:2, :6] for name, value in data.items()}
    chex.assert_trees_all_close(
        run(CONFIG, params, short)[0], run(CONFIG, params, data)[1], atol=1e-5
    )


def test_a_pretrained_t5_keeps_its_weights_under_a_fresh_head():
    plain = {field.name for field in dataclasses.fields(T5Config)}
    fields: dict[str, Any] = {name: getattr(CONFIG, name) for name in plain}
    fields |= {"tie_word_embeddings": False, "scale_decoder_outputs": False}
    body = T5Config(**fields)
    pretrained = init_params(body, jax.random.key(3))
    config, params = regression_from_t5(body, pretrained, jax.random.key(0))
    assert config.d_ff == CONFIG.d_ff
    assert "lm_head" in pretrained
    kept = {name: leaf for name, leaf in params.items() if name != "head"}
    without = {name: leaf for name, leaf in pretrained.items() if name != "lm_head"}
    chex.assert_trees_all_equal(kept, without)
    assert np.isfinite(run(config, params, questions())).all()
    dense = np.asarray(flatten(params)["head/dense/kernel"])
    assert abs(dense.std() / 32**-0.5 - 1) < 0.1


@pytest.mark.slow
def test_on_a_mesh_values_and_gradients_stay_the_same():
    data = {name: np.tile(value, (4, 1))[:4] for name, value in questions().items()}

    def loss(params):
        return jnp.sum(jnp.square(run(CONFIG, params, data)))

    params = init_params(CONFIG, jax.random.key(0))
    mesh = make_mesh(2, 2, 2)
    spread = jax.device_put(params, param_shardings(CONFIG, params, mesh))
    for case in (params, spread):
        grads = jax.jit(jax.grad(loss))(case)
        if case is params:
            want = grads
    errors = relative_errors(jax.device_get(grads), jax.device_get(want))
    assert max(errors.values()) < 1e-4, errors


def test_dropout_outside_its_range_is_refused():
    with pytest.raises(ValueError, match=r"classifier_dropout is 1\.0"):
        T5RegressionConfig(classifier_dropout=1.0)


def test_generation_is_refused():
    params, data = init_params(CONFIG, jax.random.key(0)), questions()
    with pytest.raises(TypeError, match="T5RegressionConfig"):
        greedy(CONFIG, params, jnp.asarray(data["input_ids"]), max_new_tokens=2)

"""Every model family against transformers' PyTorch model."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax.hf.mapping import flatten
from ntl_jax.kernels.experts import FEW_TOKENS
from ntl_jax.models import (
    GPT2Config,
    GraniteConfig,
    T5Config,
    bind,
    count_parameters,
    init_params,
)
from tests.models.cases import (
    CASES,
    DECODERS,
    GRANITES,
    LONG,
    T5_CASES,
    batch,
    batches,
    gradients,
    ours,
    padded,
    perturbed,
    real,
    run_torch,
    t5_batch,
    to_params,
    torch_logits,
    torch_model,
)
from tests.models.running import (
    BLOCK_TOLERANCE,
    TOLERANCE,
    assert_close,
    blocks_of,
    gradient,
    layer_of,
    logit_error,
    relative_errors,
    run,
    run_block,
    states_of,
    step,
)

MULTIPLIERS = {
    "attention_multiplier": 8**-0.5,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "logits_scaling": 1 / 2.5,
    "rope_theta": 10000.0,
}
every_padding = pytest.mark.parametrize(("name", "padding"), list(padded()))


@pytest.mark.parametrize(
    ("kind", "size", "count"),
    [
        (T5Config, "small", 60_506_624),
        (T5Config, "base", 222_903_552),
        (T5Config, "large", 737_668_096),
        (T5Config, "t5_3b", 2_851_598_336),
        (T5Config, "v1_1_small", 76_961_152),
        (T5Config, "v1_1_base", 247_577_856),
        (T5Config, "v1_1_large", 783_150_080),
        (T5Config, "v1_1_xl", 2_849_757_184),
        (GPT2Config, "small", 124_439_808),
        (GPT2Config, "medium", 354_823_168),
        (GPT2Config, "large", 774_030_080),
        (GPT2Config, "xl", 1_557_611_200),
        (GraniteConfig, "granite_3_2_2b", 2_533_531_648),
        (GraniteConfig, "granite_3_1_1b_a400m", 1_334_625_280),
    ],
)
def test_released_sizes_have_their_published_counts(kind, size, count):
    def shapes(config):
        return jax.eval_shape(partial(init_params, config), jax.random.key(0))

    config = getattr(kind, size)()
    assert count_parameters(shapes(config)) == count
    if kind is not T5Config:
        wide = config.pad_vocab(*([1000] if kind is GraniteConfig else []))
        assert count_parameters(shapes(wide)) > count
        assert count_parameters(shapes(wide), wide) == count
    if kind is GPT2Config:
        assert count_parameters(shapes(wide)) == count + 47 * config.n_embd


@every_padding
def test_logits_equal_pytorch(name, padding):
    model = torch_model(name)
    config, params = ours(model)
    for data in batches(name, padding):
        got, want = run(config, params, data), torch_logits(model, data)
        assert logit_error(config, got, want, real(data)) < TOLERANCE


@pytest.mark.parametrize("name", CASES)
def test_logits_parity_can_fail(name):
    model = torch_model(name)
    config, params = ours(model)
    data = t5_batch() if name in T5_CASES else batch("none", length=CASES[name].long)
    data["input_ids"][0, 0] = 0  # so that the table's first row is in use
    want = torch_logits(model, data)
    for path in flatten(params):
        if path.endswith("qkv/bias"):
            continue  # its first entries are queries': see test_decoder_details
        wrong = run(config, perturbed(params, path), data)
        assert logit_error(config, wrong, want) > 2 * TOLERANCE, path


@every_padding
def test_gradients_equal_pytorch(name, padding):
    model = torch_model(name)
    config, params = ours(model)
    usual, _, long = batches(name, padding)
    for data in (usual, long) if name in GRANITES else (usual,):
        model.zero_grad()
        outputs = run_torch(model, data)
        outputs.loss.backward()
        want = to_params(config, gradients(model))
        _, router_loss, grads = step(config, params, data)
        errors = relative_errors(grads, want)
        assert max(errors.values()) < TOLERANCE, errors
        if name == "granite_experts":
            assert_close(router_loss, outputs.aux_loss.detach().numpy())
    wrong = gradient(config, perturbed(params, CASES[name].norm), data)
    errors = list(relative_errors(wrong, want).values())
    # The routers have a loss of their own, which the last norm does not reach.
    worst = np.median if name in GRANITES else np.min
    assert worst(errors) > TOLERANCE


@pytest.mark.parametrize(
    ("name", "padding"), [p for p in padded() if p.values[0] in DECODERS]
)
def test_each_blocks_states_equal_pytorch(name, padding):
    model = torch_model(name)
    config, params = ours(model)
    data = batch(padding)
    states = states_of(blocks_of(model))
    run_torch(model, data)
    mask, seen = data.get("attention_mask"), real(data)
    layers = bind(config, params).layers
    assert len(states) == 3
    for number, (given, want) in enumerate(states):
        layer, x = layer_of(layers, number), jnp.asarray(given)
        got = run_block(config, layer, x, mask)
        assert_close(np.asarray(got)[seen], want[seen], BLOCK_TOLERANCE)

        def error(*options, layer=layer, x=x, want=want):
            other = np.asarray(run_block(config, layer, x, *options))
            return np.abs(other[seen] - want[seen]).max()

        assert (error() > 1e-3) == (padding == "left")
        assert name not in GRANITES or error(mask, 1e4) > 1e-3


@pytest.mark.parametrize("multiplier", MULTIPLIERS)
@pytest.mark.parametrize(
    "name",  # biases change nothing of what is multiplied
    [
        "granite_dense",
        "granite_experts",
        pytest.param("granite_biased", marks=pytest.mark.slow),
    ],
)
def test_each_multiplier_matters(name, multiplier):
    model = torch_model(name)
    config, params = ours(model)
    data = batch("none")
    want = torch_logits(model, data)
    assert_close(run(config, params, data), want)
    wrong = dataclasses.replace(config, **{multiplier: MULTIPLIERS[multiplier]})
    assert logit_error(config, run(wrong, params, data), want) > 100 * TOLERANCE


def test_both_forms_of_the_experts_were_compared():
    assert batch()["input_ids"].size <= FEW_TOKENS < batch(length=LONG)["labels"].size


@pytest.mark.parametrize("field", ["router_aux_loss_coef", "num_experts_per_tok"])
def test_router_parity_can_fail(field):
    model = torch_model("granite_experts")
    config, params = ours(model)
    data = batch(length=LONG)
    outputs = run_torch(model, data)
    outputs.loss.backward()
    want = to_params(config, gradients(model))
    grads = gradient(dataclasses.replace(config, **{field: 1}), params, data)
    error = relative_errors(grads, want)["layers/mlp/router/kernel"]
    assert error > 100 * TOLERANCE
    unmasked = {k: v for k, v in data.items() if k != "attention_mask"}
    other = step(config, params, unmasked)[1]
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
    with pytest.raises(ValueError, match=r"num_local_experts .*0"):
        model.hidden_and_router_loss(jnp.ones((1, 2), jnp.int32))


@pytest.mark.slow
@pytest.mark.parametrize("rate", ["embd_pdrop", "attn_pdrop", "resid_pdrop"])
def test_dropout_of_gpt2_drops_as_much_as_pytorch(rate):
    """Over many masks, mean and spread of the logits agree with PyTorch's dropout."""
    none = {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
    model = torch_model("gpt2_tied", **none | {rate: 0.2}).train()
    config, params = ours(model)
    assert getattr(config, rate) == 0.2
    data = batch("none", rows=1, length=4)
    theirs, mine = many_masks(model, config, params, data)
    assert abs(spread(mine) / spread(theirs) - 1) < 0.1
    assert np.abs(mine.mean(0) - theirs.mean(0)).mean() < 0.1 * spread(theirs)
    other = dataclasses.replace(config, **{rate: 0.3})
    _, more = many_masks(model, other, params, data)
    assert spread(more) / spread(theirs) - 1 > 0.1


@pytest.mark.slow
def test_dropout_of_t5_drops_as_much_as_pytorch():
    """Over many masks, mean and spread of the logits agree with PyTorch's dropout."""
    model = torch_model("t5_v1_0", dropout_rate=0.2).train()
    config, params = ours(model)
    theirs, mine = many_masks(model, config, params, t5_batch(rows=1, target=4))
    assert abs(spread(mine) / spread(theirs) - 1) < 0.05
    assert np.abs(mine.mean(0) - theirs.mean(0)).mean() < 0.1 * spread(theirs)


def many_masks(model, config, params, data):
    """PyTorch's logits and ours under 400 masks of dropout each."""
    import torch

    torch.manual_seed(0)
    with torch.no_grad():
        theirs = np.stack([torch_logits(model, data) for _ in range(400)])
    keys = jax.random.split(jax.random.key(0), 400)
    return theirs, np.asarray(
        jax.vmap(lambda key: run(config, params, data, key))(keys)
    )


def spread(logits):
    return np.sqrt(np.mean(logits.std(axis=0) ** 2))

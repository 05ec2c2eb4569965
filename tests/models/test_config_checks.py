"""Sizes, rates and ways to compute that no model has, refused by every config."""

import math

import jax
import pytest

from ntl_jax.models import (
    GPT2Config,
    GraniteConfig,
    NumformerConfig,
    RegressionTransformerConfig,
    T5Config,
    T5RegressionConfig,
    bind,
    init_params,
)

T5_SIZES = ("vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_heads")
SIZES = {
    GPT2Config: ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head"),
    GraniteConfig: ("hidden_size", "num_hidden_layers", "num_key_value_heads"),
    NumformerConfig: ("d_model", "num_heads", "max_positions"),
    RegressionTransformerConfig: T5_SIZES,
    T5Config: (*T5_SIZES, "num_decoder_layers"),
    T5RegressionConfig: T5_SIZES,
}
RATES = {
    GPT2Config: ("resid_pdrop", "embd_pdrop", "attn_pdrop"),
    GraniteConfig: ("attention_dropout",),
    NumformerConfig: ("dropout_rate",),
    RegressionTransformerConfig: ("dropout_rate",),
    T5Config: ("dropout_rate",),
    T5RegressionConfig: ("dropout_rate", "classifier_dropout"),
}
EPSILONS = {GraniteConfig: "rms_norm_eps"}  # of the others layer_norm_epsilon
VOCABULARY = {"vocab_size": 32448}  # that each of them takes
ALL = pytest.mark.parametrize("config", SIZES, ids=lambda config: config.__name__)


@ALL
def test_sizes_are_whole_numbers_from_one(config):
    for field in SIZES[config]:
        for size in (0, -1, 8.0, None, True, 2**31):
            with pytest.raises(ValueError, match=rf"^{field} .*{size!r}"):
                config(**VOCABULARY | {field: size})


@ALL
def test_what_is_added_to_variances_is_above_zero(config):
    field = EPSILONS.get(config, "layer_norm_epsilon")
    for factor in (0.0, -1e-6, math.nan, math.inf):
        with pytest.raises(ValueError, match=rf"^{field} .*{factor}"):
            config(**VOCABULARY, **{field: factor})


@ALL
def test_rates_lie_in_zero_to_one(config):
    for field in RATES[config]:
        for rate in (-0.1, 1.0, math.nan):
            with pytest.raises(ValueError, match=rf"^{field} .*{rate}"):
                config(**VOCABULARY, **{field: rate})
        assert getattr(config(**VOCABULARY, **{field: 0.0}), field) == 0.0


@ALL
def test_what_cannot_be_computed_with_is_refused(config):
    for field, choices in {
        "dtype": "bfloat16",
        "remat": "'matmuls'.*'gathered'",
        "attention": "",
    }.items():
        with pytest.raises(ValueError, match=f"^{field} .*'float16'.*{choices}"):
            config(**VOCABULARY, **{field: "float16"})
    assert config(**VOCABULARY, dtype="bfloat16").dtype == "bfloat16"


@pytest.mark.parametrize("config", [{"d_model": 8}, T5Config])
def test_what_is_no_config_is_named(config):
    message = rf"{type(config).__name__}.* GPT2Config, .*T5Config"
    with pytest.raises(TypeError, match=message):
        init_params(config, jax.random.key(0))
    with pytest.raises(TypeError, match=message):
        bind(config, {})

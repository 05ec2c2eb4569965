"""GPT-2's checkpoint folders: released files, and configs of other versions."""

import json

import numpy as np
import pytest

from ntl_jax.hf import CheckpointError, load_checkpoint
from tests.hf.folders import assert_same, rewrite_config, rewrite_tensors
from tests.models.cases import torch_model

of_gpt2 = pytest.mark.parametrize("written", ["gpt2_tied"], indirect=True)


@of_gpt2
@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_released_files_with_masks_and_a_repeated_head(written, prefix):
    folder, _, params = written

    def as_released(tensors):
        named = {
            prefix + name.removeprefix("transformer."): tensor
            for name, tensor in tensors.items()
        }
        for layer in range(2):
            named[f"{prefix}h.{layer}.attn.bias"] = np.ones((1, 1, 48, 48), np.uint8)
            named[f"{prefix}h.{layer}.attn.masked_bias"] = np.float32([-1e4])
        return named | {"lm_head.weight": named[f"{prefix}wte.weight"].copy()}

    rewrite_tensors(folder, as_released)
    assert_same(load_checkpoint(folder)[1], params)
    rewrite_tensors(folder, lambda tensors: tensors["lm_head.weight"].fill(1))
    with pytest.raises(CheckpointError, match=r"lm_head\.weight .*wte"):
        load_checkpoint(folder)


@pytest.mark.parametrize("name", ["gpt2_tied", "gpt2_untied"])
def test_configs_of_transformers_4_and_5(name, tmp_path):
    """transformers 4 leaves out what is at its default, 5 writes every field."""
    model = torch_model(name)
    model.save_pretrained(tmp_path)
    config, params = load_checkpoint(tmp_path)
    assert config.pad_token_id == config.eos_token_id == 50
    assert "pad_token_id" in json.loads((tmp_path / "config.json").read_text())
    rewrite_config(tmp_path, pad_token_id=..., dtype=..., add_cross_attention=...)
    rewrite_config(tmp_path, torch_dtype="float32", n_ctx=48)
    if name == "gpt2_tied":
        rewrite_config(tmp_path, tie_word_embeddings=..., n_inner=...)
    other, same = load_checkpoint(tmp_path)
    assert other == config
    assert_same(same, params)


@of_gpt2
@pytest.mark.parametrize(
    "field",
    [
        {"scale_attn_weights": False},
        {"scale_attn_by_inverse_layer_idx": True},
        {"add_cross_attention": True},
        {"activation_function": "swish"},
    ],
    ids=lambda field: next(iter(field)),
)
def test_what_the_model_does_not_have_is_refused(written, field):
    folder, _, _ = written
    rewrite_config(folder, **field)
    ((name, value),) = field.items()
    with pytest.raises(ValueError, match=f"{name} .*{value}"):
        load_checkpoint(folder)

"""Granite's checkpoint folders: angles, experts, and configs of other versions."""

import dataclasses
import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from ntl_jax.hf import CheckpointError, granite, load_checkpoint
from ntl_jax.hf.mapping import flatten
from tests.hf.folders import assert_same, rewrite_config, rewrite_tensors

every_kind = pytest.mark.parametrize(
    "written", ["granite_dense", "granite_experts"], indirect=True
)


@every_kind
def test_repeated_head_and_old_angles_are_known(written):
    folder, _, params = written

    def add(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, "f4")

    rewrite_tensors(folder, add)
    assert_same(load_checkpoint(folder)[1], params)

    def differ(tensors):
        tensors["lm_head.weight"][3, 3] += 1

    rewrite_tensors(folder, differ)
    with pytest.raises(CheckpointError, match=r"lm_head\.weight"):
        load_checkpoint(folder)


@every_kind
def test_configs_of_transformers_4_and_5(written):
    folder, config, _ = written
    raw = json.loads((folder / "config.json").read_text())
    assert raw["rope_theta"] == raw["rope_parameters"]["rope_theta"] == 40.0
    rewrite_config(folder, rope_parameters=...)  # as transformers 4 has it
    assert load_checkpoint(folder)[0] == config
    new = {"rope_type": "default", "rope_theta": 7.0}
    rewrite_config(folder, rope_parameters=new, rope_theta=..., rope_scaling=...)
    assert load_checkpoint(folder)[0] == dataclasses.replace(config, rope_theta=7.0)
    rewrite_config(folder, rope_parameters=...)  # the default of both
    assert load_checkpoint(folder)[0].rope_theta == 10000.0


@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_absent_fields_have_transformers_meaning(kind):
    transformers = pytest.importorskip("transformers")
    name = "GraniteMoe" if kind == "experts" else "Granite"
    full = getattr(transformers, f"{name}Config")().to_dict()
    model_type = full["model_type"]
    assert granite.read_config({"model_type": model_type}, [], {}.get) == (
        granite.read_config(full, [], {}.get)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "linear"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0}}, "yarn"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "0.5"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"head_dim": 16}, "head_dim is 16, but this Granite knows only 8"),
        ({"eos_token_id": [1, 2]}, r"eos_token_id is \[1, 2\]"),
    ],
)
@pytest.mark.parametrize("written", ["granite_dense"], indirect=True)
def test_what_the_model_does_not_have_is_refused(written, change, message):
    folder, _, _ = written
    rewrite_config(folder, **change)
    with pytest.raises(ValueError, match=message):
        load_checkpoint(folder)


@pytest.mark.parametrize("written", ["granite_experts"], indirect=True)
def test_experts_are_filled_in_the_files_order(written):
    folder, _, params = written
    file = load_file(folder / "model.safetensors")
    fused = file["model.layers.1.block_sparse_moe.input_linear.weight"]
    assert fused.shape == (6, 80, 32)
    gate_up = flatten(params)["layers/mlp/gate_up"]
    np.testing.assert_array_equal(fused[:, :40], gate_up[1, :, 0])
    np.testing.assert_array_equal(fused[:, 40:], gate_up[1, :, 1])

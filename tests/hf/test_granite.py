"""Granite's checkpoint folders: read, written, and read again by transformers."""

import dataclasses
import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ntl_jax.hf import CheckpointError, granite, load_checkpoint, save_checkpoint
from ntl_jax.hf import __main__ as command_line
from ntl_jax.hf.mapping import flatten
from ntl_jax.models import GraniteConfig
from tests.hf.test_checkpoint import assert_same, random_params, rewrite_config
from tests.models.test_granite import assert_close, run
from tests.models.test_granite_forms import BIASED, DENSE, EXPERTS
from tests.tiny_gpt2 import batch, real, run_torch
from tests.tiny_granite import KINDS, THETA, torch_model
from tests.tiny_t5 import perturbed

CONFIGS = {
    "dense": DENSE,
    "biased": BIASED,
    "experts": dataclasses.replace(EXPERTS, output_router_logits=True),
    "no ids": dataclasses.replace(DENSE, pad_token_id=None, eos_token_id=None),
}


@pytest.fixture(params=["dense", "experts"])
def written(tmp_path, request):
    """A small model as this package writes it: (folder, config, params)."""
    config, params = random_params(CONFIGS[request.param])
    save_checkpoint(tmp_path, config, params)
    return tmp_path, config, params


def rewrite_tensors(folder, change):
    """Applies `change` to a folder's dict of tensors; it may return another."""
    tensors = load_file(folder / "model.safetensors")
    save_file(change(tensors) or tensors, folder / "model.safetensors")


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_what_is_written_reads_back_bit_for_bit(config, tmp_path):
    config, params = random_params(config)
    save_checkpoint(tmp_path / "one", config, params)
    first_config, first = load_checkpoint(tmp_path / "one")
    save_checkpoint(tmp_path / "two", first_config, first)
    second_config, second = load_checkpoint(tmp_path / "two")
    assert first_config == second_config == config
    assert_same(first, params)
    assert_same(second, params)
    one, two = (tmp_path / n / "model.safetensors" for n in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_folder_reads_and_ours_opens_in_transformers(kind, tmp_path):
    from transformers import AutoModelForCausalLM

    model, data = torch_model(kind), batch()
    want, seen = run_torch(model, data).logits.detach().numpy(), real(data)
    model.save_pretrained(tmp_path / "theirs")
    config, params = load_checkpoint(tmp_path / "theirs")
    assert config.rope_theta == THETA
    assert_close(np.asarray(run(config, params, data))[seen], want[seen])

    save_checkpoint(tmp_path / "ours", config, params)
    theirs, ours = (
        load_file(tmp_path / n / "model.safetensors") for n in ("theirs", "ours")
    )
    assert theirs.keys() == ours.keys()
    assert all(np.array_equal(theirs[name], ours[name]) for name in ours)
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    assert type(back) is type(model)
    got = run_torch(back, data).logits.detach().numpy()
    np.testing.assert_array_equal(got[seen], want[seen])

    wrong = perturbed(params, "layers/attention/q/kernel")
    save_checkpoint(tmp_path / "wrong", config, wrong)
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "wrong").eval()
    got = run_torch(back, data).logits.detach().numpy()
    assert np.abs(got - want)[seen].max() > 1e-3


@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_bare_model_of_transformers_reads(kind, tmp_path):
    """GraniteModel writes no head, and no prefix."""
    model = torch_model(kind)
    model.save_pretrained(tmp_path / "whole")
    model.model.save_pretrained(tmp_path / "bare")
    names = load_file(tmp_path / "bare" / "model.safetensors")
    assert not any(name.startswith("model.") for name in names)
    assert_same(
        load_checkpoint(tmp_path / "bare")[1], load_checkpoint(tmp_path / "whole")[1]
    )


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
    with pytest.raises(CheckpointError, match=r"lm_head\.weight is tied"):
        load_checkpoint(folder)


def test_one_error_lists_missing_extra_and_misshapen(written):
    folder, config, _ = written
    kind = (
        "block_sparse_moe.input_linear" if config.num_local_experts else "mlp.up_proj"
    )
    wide = f"model.layers.1.{kind}.weight"

    def break_it(tensors):
        del tensors["model.layers.0.self_attn.q_proj.weight"]
        tensors[wide] = tensors[wide][..., :-1].copy()
        tensors["model.layers.7.input_layernorm.weight"] = np.ones(32, "f4")

    rewrite_tensors(folder, break_it)
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(folder)
    text = str(error.value)
    assert "3 problem(s)" in text
    assert "missing tensor model.layers.0.self_attn.q_proj.weight" in text
    assert f"{wide} is (" in text and "31)" in text
    assert "unknown tensor model.layers.7.input_layernorm.weight" in text


def test_padding_rows_are_added_when_read_and_stripped_when_written(written, tmp_path):
    folder, config, params = written
    read, wide = load_checkpoint(folder, vocab_rows=64)
    assert read == dataclasses.replace(config, vocab_rows=64)
    assert wide["embed"]["embedding"].shape == (64, 32)
    assert not wide["embed"]["embedding"][51:].any()
    save_checkpoint(tmp_path / "again", read, wide)
    again, same = load_checkpoint(tmp_path / "again")
    assert again == config
    assert_same(same, params)


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
def test_what_the_model_does_not_have_is_refused(tmp_path, change, message):
    config, params = random_params(DENSE)
    save_checkpoint(tmp_path, config, params)
    rewrite_config(tmp_path, **change)
    with pytest.raises(ValueError, match=message):
        load_checkpoint(tmp_path)


def test_config_fields_can_be_set_otherwise(written):
    folder, _, _ = written
    read, _ = load_checkpoint(folder, dtype="bfloat16", attention_dropout=0.0)
    assert (read.dtype, read.attention_dropout) == ("bfloat16", 0.0)


@pytest.mark.parametrize(
    ("file", "config"),
    [
        ("granite-3.2-2b-instruct", GraniteConfig.granite_3_2_2b()),
        ("granite-3.1-1b-a400m-base", GraniteConfig.granite_3_1_1b_a400m()),
        (
            "granite-3.1-1b-a400m-instruct",
            GraniteConfig.granite_3_1_1b_a400m(
                vocab_size=49155, attention_dropout=0.0, router_aux_loss_coef=0.0
            ),
        ),
    ],
)
def test_released_configs_are_the_classmethods(data_dir, file, config):
    raw = json.loads((data_dir / "model_configs" / f"{file}.json").read_text())
    assert granite.read_config(raw, [], {}.get) == config


@pytest.mark.parametrize("kind", KINDS)
def test_check_compares_with_pytorch(kind, tmp_path, capsys):
    torch_model(kind).save_pretrained(tmp_path)
    assert command_line.main(["check", str(tmp_path)]) == 0
    assert "agree" in capsys.readouterr().out


def test_experts_are_filled_in_the_files_order(tmp_path):
    config, params = random_params(EXPERTS)
    save_checkpoint(tmp_path, config, params)
    file = load_file(tmp_path / "model.safetensors")
    fused = file["model.layers.1.block_sparse_moe.input_linear.weight"]
    assert fused.shape == (6, 80, 32)
    gate_up = flatten(params)["layers/mlp/gate_up"]
    np.testing.assert_array_equal(fused[:, :40], gate_up[1, :, 0])
    np.testing.assert_array_equal(fused[:, 40:], gate_up[1, :, 1])

"""Every family's checkpoint folders: read, written, and read again by transformers."""

import dataclasses
import json
from functools import partial

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from ntl_jax.hf import (
    CheckpointError,
    compare,
    gpt2,
    granite,
    load_checkpoint,
    save_checkpoint,
)
from ntl_jax.hf import __main__ as command_line
from ntl_jax.hf.mapping import flatten
from ntl_jax.models import GPT2Config, GraniteConfig, count_parameters, init_params
from tests.hf.folders import assert_same, random_params, rewrite_config, rewrite_tensors
from tests.models.cases import (
    CASES,
    GRANITES,
    T5_CASES,
    TINY,
    batch,
    perturbed,
    read_config,
    real,
    t5_batch,
    torch_logits,
    torch_model,
)
from tests.models.running import TOLERANCE, assert_close, logit_error, run

CONFIGS = TINY | {
    "router logits": dataclasses.replace(
        TINY["granite_experts"], output_router_logits=True
    ),
    "no ids": dataclasses.replace(
        TINY["granite_dense"], pad_token_id=None, eos_token_id=None
    ),
}
DECODER_KINDS = ("gpt2_tied", "granite_dense", "granite_experts")
every_decoder = pytest.mark.parametrize("written", DECODER_KINDS, indirect=True)
# A leaf without which the logits are others.
PROBES = dict.fromkeys(T5_CASES, "decoder/layers/mlp/wo/kernel")
PROBES |= dict.fromkeys(("gpt2_tied", "gpt2_untied"), "layers/attention/qkv/kernel")
PROBES |= dict.fromkeys(GRANITES, "layers/attention/q/kernel")


@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_written_reads_back_bit_for_bit(name, tmp_path):
    config, params = random_params(CONFIGS[name])
    save_checkpoint(tmp_path / "one", config, params)
    first_config, first = load_checkpoint(tmp_path / "one")
    save_checkpoint(tmp_path / "two", first_config, first)
    second_config, second = load_checkpoint(tmp_path / "two")
    assert first_config == second_config == config
    assert_same(first, params)
    assert_same(second, params)
    assert all(leaf.dtype == np.float32 for leaf in flatten(second).values())
    one, two = (tmp_path / n / "model.safetensors" for n in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize("name", CASES)
def test_transformers_folder_reads_and_ours_opens_in_transformers(name, tmp_path):
    model, data = torch_model(name), t5_batch() if name in T5_CASES else batch()
    want, seen = torch_logits(model, data), real(data)
    model.save_pretrained(tmp_path / "theirs")
    config, params = load_checkpoint(tmp_path / "theirs")
    assert config.tie_word_embeddings == (
        name in {"t5_v1_0", "gpt2_tied", "granite_dense", "granite_experts"}
    )
    got = run(config, params, data)
    assert logit_error(config, got, want, seen) < TOLERANCE

    save_checkpoint(tmp_path / "ours", config, params)
    back = type(model).from_pretrained(tmp_path / "ours").eval()
    got = torch_logits(back, data)
    bound = 1e-6 if name in T5_CASES else 0
    np.testing.assert_allclose(got[seen], want[seen], rtol=0, atol=bound)
    if name in GRANITES:
        theirs, ours = (
            load_file(tmp_path / n / "model.safetensors") for n in ("theirs", "ours")
        )
        assert theirs.keys() == ours.keys()
        assert all(np.array_equal(theirs[key], ours[key]) for key in ours)

    save_checkpoint(tmp_path / "wrong", config, perturbed(params, PROBES[name]))
    back = type(model).from_pretrained(tmp_path / "wrong").eval()
    assert np.abs(torch_logits(back, data) - want)[seen].max() > 1e-3


@pytest.mark.parametrize("name", DECODER_KINDS)
def test_bare_model_of_transformers_reads(name, tmp_path):
    """A model without a head writes none, and no prefix, as released files of GPT-2."""
    model = torch_model(name)
    model.save_pretrained(tmp_path / "whole")
    model.base_model.save_pretrained(tmp_path / "bare")
    names = load_file(tmp_path / "bare" / "model.safetensors")
    assert not any(key.startswith(("model.", "transformer.")) for key in names)
    _, whole = load_checkpoint(tmp_path / "whole")
    assert_same(load_checkpoint(tmp_path / "bare")[1], whole)


MISSING = {
    "t5_v1_0": "encoder.block.1.layer.0.SelfAttention.q.weight",
    "gpt2_tied": "transformer.h.1.mlp.c_fc.bias",
    "granite_dense": "model.layers.0.self_attn.q_proj.weight",
    "granite_experts": "model.layers.0.self_attn.q_proj.weight",
}
MISSHAPEN = {
    "t5_v1_0": "decoder.block.0.layer.2.DenseReluDense.wo.weight",
    "gpt2_tied": "transformer.h.0.attn.c_attn.weight",
    "granite_dense": "model.layers.1.mlp.up_proj.weight",
    "granite_experts": "model.layers.1.block_sparse_moe.input_linear.weight",
}
UNKNOWN = {
    "t5_v1_0": "decoder.block.7.layer.0.layer_norm.weight",
    "gpt2_tied": "transformer.h.2.ln_1.weight",
    "granite_dense": "model.layers.7.input_layernorm.weight",
    "granite_experts": "model.layers.7.input_layernorm.weight",
}


@pytest.mark.parametrize("name", MISSING)
def test_one_error_lists_missing_extra_and_misshapen(name, tmp_path):
    save_checkpoint(tmp_path, *random_params(TINY[name]))
    shapes = []

    def damage(tensors):
        del tensors[MISSING[name]]
        right = tensors[MISSHAPEN[name]]
        wrong = tensors[MISSHAPEN[name]] = right[..., :-1].copy()
        shapes.extend((right.shape, wrong.shape))
        tensors[UNKNOWN[name]] = np.ones(32, np.float32)

    rewrite_tensors(tmp_path, damage)
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(tmp_path)
    lines = str(error.value).splitlines()
    assert "3 problem" in str(error.value) and str(tmp_path) in str(error.value)
    assert any("missing" in x and MISSING[name] in x for x in lines)
    assert any("unknown" in x and UNKNOWN[name] in x for x in lines)
    (line,) = (x for x in lines if MISSHAPEN[name] in x)
    assert all(str(shape) in line for shape in shapes)


@pytest.mark.parametrize(
    "name", ["gpt2_tied", "gpt2_untied", "granite_dense", "granite_experts"]
)
def test_padding_rows_come_and_go(name, tmp_path, caplog):
    config, params = random_params(TINY[name])
    save_checkpoint(tmp_path / "bare", config, params)
    with caplog.at_level("INFO"):
        padded, wide = load_checkpoint(tmp_path / "bare", vocab_rows=64)
    assert "from 51 to 64 rows" in caplog.text
    assert padded == dataclasses.replace(config, vocab_rows=64)
    table = wide["wte" if "wte" in wide else "embed"]["embedding"]
    assert table.shape == (64, 32) and not table[51:].any()
    assert count_parameters(wide, padded) == count_parameters(params)
    data = batch()
    logits = run(config, params, data)
    assert_close(run(padded, wide, data)[..., :51], logits, 1e-5)

    table[51:] = 7.0  # whatever training left there
    save_checkpoint(tmp_path / "padded", padded, wide)
    for file in ("model.safetensors", "config.json"):
        one, two = (tmp_path / n / file for n in ("bare", "padded"))
        assert one.read_bytes() == two.read_bytes()


@every_decoder
def test_shards_and_half_precision(written):
    folder, config, params = written
    save_checkpoint(folder, config, params, max_shard_bytes=20_000)
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    assert_same(load_checkpoint(folder)[1], params)
    save_checkpoint(folder, config, params)
    rewrite_tensors(
        folder, lambda tensors: {k: v.astype(np.float16) for k, v in tensors.items()}
    )
    want = jax.tree.map(lambda x: x.astype(np.float16).astype(np.float32), params)
    assert_same(load_checkpoint(folder)[1], want)


DROPOUT = {"t5": "dropout_rate", "gp": "attn_pdrop", "gr": "attention_dropout"}


@pytest.mark.parametrize("written", ["t5_v1_0", *DECODER_KINDS], indirect=True)
def test_config_fields_can_be_set_otherwise(written, request):
    folder, config, _ = written
    name = request.node.callspec.params["written"]
    fields = {"dtype": "bfloat16", DROPOUT[name[:2]]: 0.0}
    read, params = load_checkpoint(folder, **fields)
    assert read == dataclasses.replace(config, **fields)
    assert all(leaf.dtype == np.float32 for leaf in flatten(params).values())
    rewrite_config(folder, eos_token_id=[1, 2])
    with pytest.raises(ValueError, match=r"\[1, 2\]"):
        load_checkpoint(folder)
    assert load_checkpoint(folder, eos_token_id=2)[0].eos_token_id == 2


@pytest.mark.parametrize(
    ("file", "config"),
    [
        ("gpt2", GPT2Config.small()),
        ("gpt2-medium", GPT2Config.medium()),
        ("gpt2-large", GPT2Config.large()),
        ("gpt2-xl", GPT2Config.xl()),
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
    assert read_config(raw, {}) == config
    family = gpt2 if isinstance(config, GPT2Config) else granite
    assert (
        read_config(json.loads(json.dumps(family.write_config(config))), {}) == config
    )


def test_table_fills_every_leaf_of_a_released_size():
    config = GPT2Config.xl(vocab_rows=50304)
    shapes = jax.eval_shape(partial(init_params, config), jax.random.key(0))
    table = gpt2.table(config)
    assert sorted(rule.path for rule in table.rules) == sorted(flatten(shapes))
    assert sum(len(rule.names()) for rule in table.rules) == 4 + 48 * 12


@pytest.mark.parametrize("name", CASES)
def test_check_agrees_and_can_disagree(name, tmp_path, capsys, monkeypatch):
    torch_model(name).save_pretrained(tmp_path)
    assert command_line.main(["check", str(tmp_path)]) == 0
    assert "agree" in capsys.readouterr().out
    right = compare.torch_logits
    monkeypatch.setattr(compare, "torch_logits", lambda *a: right(*a) + 0.01)
    assert command_line.main(["check", str(tmp_path)]) == 1
    assert "DISAGREE" in capsys.readouterr().out

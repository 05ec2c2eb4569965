"""GPT-2's checkpoint folders: read, written, and read again by transformers."""

import dataclasses
import json
from functools import partial

import chex
import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ntl_jax.hf import CheckpointError, compare, gpt2, load_checkpoint, save_checkpoint
from ntl_jax.hf import __main__ as command_line
from ntl_jax.hf.mapping import flatten
from ntl_jax.models import GPT2Config, count_parameters, init_params
from tests.hf.test_checkpoint import random_params, rewrite_config
from tests.models.test_gpt2 import assert_close, run
from tests.models.test_gpt2_forms import TINY, UNTIED
from tests.tiny_gpt2 import KINDS, batch, real, run_torch, torch_model
from tests.tiny_t5 import perturbed


@pytest.fixture
def written(tmp_path):
    """A small model as this package writes it: (folder, config, params)."""
    config, params = random_params(TINY)
    save_checkpoint(tmp_path, config, params)
    return tmp_path, config, params


def assert_same(got, want):
    chex.assert_trees_all_equal(flatten(got), flatten(want))


def rewrite_tensors(folder, change):
    """Applies `change` to a folder's dict of tensors; it may return another."""
    tensors = load_file(folder / "model.safetensors")
    save_file(change(tensors) or tensors, folder / "model.safetensors")


@pytest.mark.parametrize("config", [TINY, UNTIED], ids=["tied", "untied"])
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
    model, data = torch_model(kind), batch()
    from transformers import GPT2LMHeadModel  # empty without torch

    want, seen = run_torch(model, data).logits.detach().numpy(), real(data)
    model.save_pretrained(tmp_path / "theirs")
    config, params = load_checkpoint(tmp_path / "theirs")
    assert config.tie_word_embeddings == (kind == "tied")
    assert_close(np.asarray(run(config, params, data))[seen], want[seen])

    save_checkpoint(tmp_path / "ours", config, params)
    back = GPT2LMHeadModel.from_pretrained(tmp_path / "ours").eval()
    got = run_torch(back, data).logits.detach().numpy()
    np.testing.assert_array_equal(got[seen], want[seen])

    wrong = perturbed(params, "layers/attention/qkv/kernel")
    save_checkpoint(tmp_path / "wrong", config, wrong)
    back = GPT2LMHeadModel.from_pretrained(tmp_path / "wrong").eval()
    got = run_torch(back, data).logits.detach().numpy()
    assert np.abs(got - want)[seen].max() > 1e-3


def test_bare_model_of_transformers_reads(tmp_path):
    """GPT2Model writes no head, and no prefix; nor do the released files have one."""
    model = torch_model("tied")
    model.save_pretrained(tmp_path / "whole")
    model.transformer.save_pretrained(tmp_path / "bare")
    names = load_file(tmp_path / "bare" / "model.safetensors")
    assert "wte.weight" in names and "transformer.wte.weight" not in names
    _, whole = load_checkpoint(tmp_path / "whole")
    _, bare = load_checkpoint(tmp_path / "bare")
    assert_same(bare, whole)


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
    with pytest.raises(CheckpointError, match=r"lm_head\.weight is tied to .*wte"):
        load_checkpoint(folder)


def test_one_error_lists_missing_extra_and_misshapen(written):
    folder, _, _ = written

    def damage(tensors):
        del tensors["transformer.h.1.mlp.c_fc.bias"]
        tensors["transformer.h.0.attn.c_attn.weight"] = np.zeros((96, 32), np.float32)
        tensors["transformer.h.2.ln_1.weight"] = np.ones(32, np.float32)

    rewrite_tensors(folder, damage)
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(folder)
    text = str(error.value)
    assert "3 problem(s)" in text
    for part in (
        "missing tensor transformer.h.1.mlp.c_fc.bias",
        "c_attn.weight is (96, 32), the config asks for (32, 96)",
        "unknown tensor transformer.h.2.ln_1.weight",
    ):
        assert part in text


@pytest.mark.parametrize("name", ["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"])
def test_released_configs_are_the_classmethods(name, data_dir):
    raw = json.loads((data_dir / "model_configs" / f"{name}.json").read_text())
    size = name.removeprefix("gpt2").removeprefix("-") or "small"
    config = getattr(GPT2Config, size)()
    assert gpt2.read_config(raw, [], {}.__getitem__) == config
    raw = json.loads(json.dumps(gpt2.write_config(config)))
    assert gpt2.read_config(raw, [], {}.__getitem__) == config


@pytest.mark.parametrize("kind", KINDS)
def test_configs_of_transformers_4_and_5(kind, tmp_path):
    """transformers 4 leaves out what is at its default, 5 writes every field."""
    model = torch_model(kind)
    model.save_pretrained(tmp_path)
    config, params = load_checkpoint(tmp_path)
    assert config.pad_token_id == config.eos_token_id == 50
    assert "pad_token_id" in json.loads((tmp_path / "config.json").read_text())
    rewrite_config(tmp_path, pad_token_id=..., dtype=..., add_cross_attention=...)
    rewrite_config(tmp_path, torch_dtype="float32", n_ctx=48)
    if kind == "tied":
        rewrite_config(tmp_path, tie_word_embeddings=..., n_inner=...)
    other, same = load_checkpoint(tmp_path)
    assert other == config
    assert_same(same, params)


def test_config_fields_can_be_set_otherwise(written):
    folder, config, _ = written
    read, _ = load_checkpoint(folder, dtype="bfloat16", attn_pdrop=0.0)
    assert read == dataclasses.replace(config, dtype="bfloat16", attn_pdrop=0.0)
    rewrite_config(folder, eos_token_id=[1, 2])
    with pytest.raises(ValueError, match=r"\[1, 2\]"):
        load_checkpoint(folder)
    assert load_checkpoint(folder, eos_token_id=2)[0].eos_token_id == 2


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
    with pytest.raises(ValueError, match=f"{name} is '?{value}"):
        load_checkpoint(folder)


@pytest.mark.parametrize("config", [TINY, UNTIED], ids=["tied", "untied"])
def test_padding_rows_come_and_go(config, tmp_path, caplog):
    config, params = random_params(config)
    save_checkpoint(tmp_path / "bare", config, params)
    with caplog.at_level("INFO"):
        padded, wide = load_checkpoint(tmp_path / "bare", vocab_rows=64)
    assert "from 51 to 64 rows" in caplog.text
    assert padded == dataclasses.replace(config, vocab_rows=64)
    assert wide["wte"]["embedding"].shape == (64, 32)
    assert not wide["wte"]["embedding"][51:].any()
    assert count_parameters(wide, padded) == count_parameters(params)
    data = batch()
    logits = run(config, params, data)
    assert_close(run(padded, wide, data)[..., :51], logits, 1e-5)

    wide["wte"]["embedding"][51:] = 7.0  # whatever training left there
    save_checkpoint(tmp_path / "padded", padded, wide)
    for file in ("model.safetensors", "config.json"):
        one, two = (tmp_path / n / file for n in ("bare", "padded"))
        assert one.read_bytes() == two.read_bytes()


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


def test_table_fills_every_leaf_of_a_released_size():
    config = GPT2Config.xl(vocab_rows=50304)
    shapes = jax.eval_shape(partial(init_params, config), jax.random.key(0))
    table = gpt2.table(config)
    assert sorted(rule.path for rule in table.rules) == sorted(flatten(shapes))
    assert sum(len(rule.names()) for rule in table.rules) == 4 + 48 * 12


@pytest.mark.parametrize("kind", KINDS)
def test_check_agrees_and_can_disagree(kind, tmp_path, capsys, monkeypatch):
    torch_model(kind).save_pretrained(tmp_path)
    assert command_line.main(["check", str(tmp_path)]) == 0
    assert "agree" in capsys.readouterr().out
    right = compare.torch_logits
    monkeypatch.setattr(compare, "torch_logits", lambda *a: right(*a) + 0.01)
    assert command_line.main(["check", str(tmp_path)]) == 1
    assert "DISAGREE" in capsys.readouterr().out

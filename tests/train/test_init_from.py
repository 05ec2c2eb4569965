"""Runs that start from a Hugging Face checkpoint: any family, any mesh, and back."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax.hf import load_checkpoint, save_checkpoint
from ntl_jax.hf.mapping import flatten
from ntl_jax.models import GPT2Config, GraniteConfig, T5Config, bind, init_params
from ntl_jax.tokenization import load_tokenizer
from tests.train.helpers import TINY, changed
from train import __main__ as command_line
from train.__main__ import main, parse_config
from train.checkpointing.restore import open_mesh
from train.config import ConfigError, TrainConfig
from train.config.presets import load_preset
from train.data import tokenize_rows
from train.data.inputs import tokenizer_name
from train.evaluation.predict import export, load_run
from train.loop import run
from train.pretrained import adopt_checkpoint, check_model, fit_vocabulary

GPT2 = GPT2Config(n_positions=96, n_embd=8, n_layer=2, n_head=2)
GRANITE = GraniteConfig(
    vocab_size=49152,  # as released, with a tokenizer of 49155 tokens
    hidden_size=8,
    intermediate_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
)
MOE = dataclasses.replace(GRANITE, num_local_experts=4, num_experts_per_tok=2)
T5 = T5Config(d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
# A model, the folder of its tokenizer, the tokens that training gives it.
FAMILIES = {
    "gpt2": (GPT2, "gpt2", 50257),
    "granite": (GRANITE, "granite-3.1-1b-a400m-instruct", 49155),
    "granite moe": (MOE, "granite-3.1-1b-a400m-instruct", 49155),
    "t5": (T5, "t5", 32128),
}
MESH = {"mesh.data": 2, "mesh.fsdp": 2, "mesh.tensor": 2}
RATE = 1e-4


def flags(fields) -> list[str]:
    return [part for name, value in fields.items() for part in (f"--{name}", value)]


def write_checkpoint(folder, model):
    params = jax.jit(init_params, static_argnums=0)(model, jax.random.key(1))
    save_checkpoint(folder, model, params)


@pytest.fixture(scope="module")
def jsonl(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "train.jsonl"
    rows = [{"question": f"{i} plus 1?", "answer": f"{i + 1}"} for i in range(16)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def finetune(*more: str, **fields) -> int:
    names = {name.replace("__", "."): str(value) for name, value in fields.items()}
    usual = {
        "steps": 3,
        "checkpoint-every": 2,
        "data.batch-size": 8,
        "optimizer.learning-rate": RATE,
    }
    merged = {name: str(value) for name, value in (usual | MESH).items()} | names
    return main(["finetune", *flags(merged), *more])


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_finetune_resume_export_and_transformers(name, jsonl, data_dir, tmp_path):
    model, tokenizer, tokens = FAMILIES[name]
    given, out = tmp_path / "given", tmp_path / "run"
    shutil.copytree(data_dir / "tokenizers" / tokenizer, given)
    write_checkpoint(given, model)
    named = {"init-from": given, "data__train-file": jsonl, "run-dir": out}
    assert finetune(**named) == 0
    first = load_run(out)
    assert first.model.vocab_size == tokens
    check_moved_a_little(load_checkpoint(given)[1], first.params)

    shutil.rmtree(out / "checkpoints" / "3")  # as if killed after step 2
    assert finetune("--resume", **named) == 0
    for one, two in zip(
        jax.tree.leaves(first.params),
        jax.tree.leaves(load_run(out).params),
        strict=True,
    ):
        np.testing.assert_array_equal(one, two)

    assert main(["export", str(out), str(tmp_path / "exported")]) == 0
    exported, params = load_checkpoint(tmp_path / "exported")
    assert exported.vocab_size == tokens
    check_in_transformers(tmp_path / "exported", exported, params)


def test_a_gpt2_with_its_tokenizer_is_finetuned_and_exported(jsonl, tmp_path, capsys):
    given, out = tmp_path / "given", tmp_path / "run"
    model = dataclasses.replace(
        GPT2, n_layer=1, vocab_size=509, eos_token_id=1, bos_token_id=1, pad_token_id=0
    )
    write_checkpoint(given, model)
    load_tokenizer("builtin").save(given)  # of 512 tokens
    files = {"init-from": given, "data__train-file": jsonl, "run-dir": out}
    assert finetune(**files) == 0
    trained = load_run(out)
    assert (trained.model.vocab_size, trained.model.rows) == (512, 512)
    check_moved_a_little(load_checkpoint(given)[1], trained.params)
    export(out, tmp_path / "exported")
    assert "tokenizer does not split numbers into digits" in capsys.readouterr().out
    exported, params = load_checkpoint(tmp_path / "exported")
    check_in_transformers(tmp_path / "exported", exported, params)


def check_moved_a_little(start, now):
    """Three steps of AdamW move a weight by at most 3 x RATE, and its decay."""
    now = flatten(now)
    for path, leaf in flatten(start).items():
        shared = tuple(slice(size) for size in leaf.shape)  # tokens may be new
        moved = np.abs(np.asarray(now[path])[shared] - leaf)
        assert 0 < moved.max() < 4 * RATE


def test_gpt2s_first_end_token_is_learned_although_it_also_pads(data_dir, tmp_path):
    shutil.copytree(data_dir / "tokenizers" / "gpt2", tmp_path / "folder")
    write_checkpoint(tmp_path / "folder", dataclasses.replace(GPT2, n_embd=2))
    tokenizer = load_tokenizer(str(tmp_path / "folder"))
    end = tokenizer.eos_token_id
    assert end == tokenizer.pad_token_id == 50256
    rows = [{"question": "1+1=", "answer": "2"}, {"question": "9+9=", "answer": "1800"}]
    dataset = tokenize_rows(
        rows, tokenizer, max_source_length=8, max_target_length=8, separator=""
    )
    batch = dataset.batch(np.arange(2))
    for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True):
        asked = labels[labels != -100]
        assert asked[-1] == end and (asked == end).sum() == 1
        assert (ids == end).sum() > 1  # the others pad
        assert labels[ids == end][0] == end


def check_in_transformers(folder, model, params):
    torch = pytest.importorskip("torch")
    import transformers

    ids = (np.arange(3 * 12).reshape(3, 12) * 1000 + 5) % model.vocab_size
    inputs = {"input_ids": ids}
    kind = transformers.AutoModelForCausalLM
    if isinstance(model, T5Config):
        inputs["decoder_input_ids"] = ids[:, :5]
        kind = transformers.AutoModelForSeq2SeqLM
    theirs = kind.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        want = theirs(**{k: torch.from_numpy(v) for k, v in inputs.items()}).logits
    got = bind(model, params)(**{k: jnp.asarray(v) for k, v in inputs.items()})
    np.testing.assert_allclose(got, want.numpy(), atol=1e-5)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer.decode(tokenizer("12 plus 3")["input_ids"][:4])


def test_a_checkpoint_of_another_family_takes_the_models_place(tmp_path):
    write_checkpoint(tmp_path, dataclasses.replace(GPT2, vocab_size=512))
    preset = TrainConfig(name="any", model=T5Config.small(dtype="bfloat16"))
    adopted = adopt_checkpoint(preset, str(tmp_path))
    assert isinstance(adopted.model, GPT2Config)
    assert adopted.model.n_embd == 8 and adopted.model.dtype == "bfloat16"
    check_model(adopted)
    with pytest.raises(ConfigError, match=r"holds a GPT2Config, but .* a T5Config"):
        check_model(dataclasses.replace(preset, init_from=str(tmp_path)))


def test_flags_that_contradict_the_weights_are_named(tmp_path, jsonl, capsys):
    write_checkpoint(tmp_path, dataclasses.replace(GPT2, vocab_size=512))
    named = {"init-from": tmp_path, "data__train-file": jsonl, "tokenizer": "builtin"}
    wrong = {"model__n-layer": 3, "model__vocab-size": 500, "model__attn-pdrop": 0.0}
    assert finetune(**named, **wrong, **{"run-dir": tmp_path / "run"}) == 1
    said = capsys.readouterr().err
    assert "--model.n-layer: 2 there, 3 asked for" in said
    assert "--model.vocab-size: 512 there, 500 asked for" in said
    assert "attn-pdrop" not in said
    assert not (tmp_path / "run").exists()


def test_what_belongs_to_the_preset_stays(tmp_path):
    write_checkpoint(tmp_path, dataclasses.replace(GRANITE, vocab_size=512))
    quiet = dataclasses.replace(GRANITE, attention_dropout=0.0, remat=True)
    preset = TrainConfig(name="any", model=quiet)
    model = adopt_checkpoint(preset, str(tmp_path)).model
    assert isinstance(model, GraniteConfig)
    assert (model.attention_dropout, model.remat, model.vocab_size) == (0.0, True, 512)


@pytest.mark.parametrize(
    "flag", [["--init-from", "None"], ["--init-from=None"], ["--init_from", "None"]]
)
def test_a_presets_own_checkpoint_can_be_left_out(flag, monkeypatch):
    default = load_preset("paper-arithmetic")[0]
    assert default.init_from is not None
    monkeypatch.setattr(command_line, "adopt_checkpoint", None)  # not to be called
    config = parse_config("paper-arithmetic", [*flag, "--model.num-layers", "3"])
    model = dataclasses.replace(default.model, num_layers=3)
    assert config == dataclasses.replace(default, init_from=None, model=model)
    assert tokenizer_name(config) == "builtin"


def test_a_checkpoint_without_a_name_is_asked_for(monkeypatch, capsys):
    monkeypatch.setattr(command_line, "adopt_checkpoint", None)
    with pytest.raises(SystemExit):
        parse_config("paper-arithmetic", ["--init-from"])
    assert "--init-from" in capsys.readouterr().err


def test_the_vocabulary_is_fitted_by_rule_and_said(caplog):
    import logging

    logger = logging.getLogger("train")
    logger.propagate = True  # the command line turns it off
    with caplog.at_level("INFO", logger="train"):
        assert fit_vocabulary(GPT2, 50257, 1, grow=True) == GPT2
        assert not caplog.text
        padded = fit_vocabulary(GPT2, 50257, 8, grow=True)
        assert (padded.vocab_size, padded.rows) == (50257, 50304)
        assert "padded from 50257 to 50304 rows for 8 devices" in caplog.text
        odd = fit_vocabulary(GPT2, 50257, 3, grow=True)
        assert odd.rows == 50304 and odd.rows % 3 == 0
        grown = fit_vocabulary(GRANITE, 49155, 1, grow=True)
        assert (grown.vocab_size, grown.vocab_rows) == (49155, None)
        assert "grown from 49152 to 49155 tokens" in caplog.text
        assert fit_vocabulary(T5, 32200, 1, grow=True).vocab_size == 32256
        assert fit_vocabulary(T5, 32200, 1, grow=False) == T5


def test_a_mesh_that_cuts_no_head_is_refused(tmp_path):
    wide = changed(TINY, mesh__data=1, mesh__tensor=8)
    heads = changed(wide, model__num_heads=6)
    with pytest.raises(ConfigError, match=r"^--mesh.tensor 8 .* 6 heads: take 1 or 2"):
        run(heads, tmp_path / "run")
    odd = changed(heads, model__num_heads=5)
    with pytest.raises(ConfigError, match=r"^--mesh.tensor 8 .* 5 heads: take 1\.$"):
        open_mesh(odd.mesh, odd.model)
    wide = changed(wide, model__d_ff=36)
    with pytest.raises(ConfigError, match=r"--mesh does not suit the model"):
        run(wide, tmp_path / "run")
    with pytest.raises(ConfigError, match=r"keeps the vocabulary rows that it began"):
        run(dataclasses.replace(wide, resume=True), tmp_path / "run")
    assert not (tmp_path / "run").exists()

"""Checkpoint folders: read, written, and read again by transformers."""

import json
import os
import subprocess
import sys
from functools import partial

import chex
import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ntl_jax.hf import CheckpointError, load_checkpoint, save_checkpoint
from ntl_jax.hf.mapping import flatten
from ntl_jax.models import T5Config, bind, init_params
from tests.models.test_t5 import GATED, TINY, TOLERANCE, run, run_torch
from tests.tiny_t5 import KINDS, batch, ours, perturbed, torch_model


@pytest.fixture
def written(tmp_path):
    """A small model as this package writes it: (folder, config, params)."""
    config, params = random_params(TINY)
    save_checkpoint(tmp_path, config, params)
    return tmp_path, config, params


def random_params(config, seed=0):
    """A config with parameters none of which is constant."""
    shapes = jax.eval_shape(partial(init_params, config), jax.random.key(0))
    draw = np.random.default_rng(seed).standard_normal
    return config, jax.tree.map(lambda x: draw(x.shape, np.float32), shapes)


def assert_same(got, want):
    chex.assert_trees_all_equal(flatten(got), flatten(want))


def rewrite_config(folder, **changes):
    raw = json.loads((folder / "config.json").read_text()) | changes
    raw = {key: value for key, value in raw.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(raw))


@pytest.mark.parametrize("config", [TINY, GATED], ids=["v1_0", "v1_1"])
def test_what_is_written_reads_back_bit_for_bit(config, tmp_path):
    config, params = random_params(config)
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


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_folder_reads_and_ours_opens_in_transformers(kind, tmp_path):
    from transformers import T5ForConditionalGeneration

    model, data = torch_model(kind), batch()
    want = run_torch(model, data).logits.detach().numpy()
    model.save_pretrained(tmp_path / "theirs")
    config, params = load_checkpoint(tmp_path / "theirs")
    assert config.tie_word_embeddings == (kind == "v1_0")
    chex.assert_trees_all_close(run(config, params, data), want, atol=TOLERANCE)

    save_checkpoint(tmp_path / "ours", config, params)
    back = T5ForConditionalGeneration.from_pretrained(tmp_path / "ours").eval()
    got = run_torch(back, data).logits.detach().numpy()
    chex.assert_trees_all_close(got, want, atol=1e-6)

    path = "decoder/layers/mlp/wo/kernel"
    save_checkpoint(tmp_path / "wrong", config, perturbed(params, path))
    back = T5ForConditionalGeneration.from_pretrained(tmp_path / "wrong").eval()
    assert np.abs(run_torch(back, data).logits.detach().numpy() - want).max() > 1e-3


def test_published_tiny_checkpoint_equals_pytorch(data_dir):
    pytest.importorskip("torch")
    from transformers import T5ForConditionalGeneration

    folder = data_dir / "checkpoints" / "chronos-dummy-t5"
    config, params = load_checkpoint(folder)
    model = T5ForConditionalGeneration.from_pretrained(folder, dtype="float32").eval()
    data = batch()
    data = {k: v % 32 if k != "attention_mask" else v for k, v in data.items()}
    want = run_torch(model, data).logits.detach().numpy()
    scale = np.abs(want).max()  # far below 1: the checkpoint's weights are small
    got = run(config, params, data)
    chex.assert_trees_all_close(got / scale, want / scale, atol=TOLERANCE)
    wrong = run(config, perturbed(params, "encoder/final_norm/scale"), data)
    assert np.abs(wrong - want).max() > 2 * TOLERANCE * scale


def test_config_of_transformers_4(written):
    folder, config, _ = written
    rewrite_config(folder, scale_decoder_outputs=..., tie_word_embeddings=...)
    assert load_checkpoint(folder)[0] == config  # tied unless it says otherwise


def test_untied_config_of_transformers_4_and_5(tmp_path):
    config, params = random_params(GATED)
    save_checkpoint(tmp_path, config, params)
    rewrite_config(tmp_path, scale_decoder_outputs=..., tie_word_embeddings=False)
    assert load_checkpoint(tmp_path)[0] == config
    rewrite_config(tmp_path, scale_decoder_outputs=False, tie_word_embeddings=True)
    read, same = load_checkpoint(tmp_path)
    assert read == config
    assert_same(same, params)


def test_tied_head_without_scaling_survives_both_ways(tmp_path):
    config = T5Config(**{**vars(TINY), "scale_decoder_outputs": False})
    config, params = random_params(config)
    save_checkpoint(tmp_path, config, params)
    assert "lm_head.weight" in load_file(tmp_path / "model.safetensors")
    read, same = load_checkpoint(tmp_path)
    assert read == config
    assert_same(same, params)
    # For transformers 4 the copy is a head of its own, and the logits are the same.
    rewrite_config(tmp_path, scale_decoder_outputs=...)
    other, untied = load_checkpoint(tmp_path)
    assert not other.tie_word_embeddings
    data = batch()
    chex.assert_trees_all_close(
        run(config, params, data), run(other, untied, data), rtol=1e-5, atol=1e-3
    )


def test_untied_scaled_head_has_no_form(tmp_path):
    config = T5Config(**{**vars(GATED), "scale_decoder_outputs": True})
    config, params = random_params(config)
    with pytest.raises(ValueError, match=r"d_model\*\*-0.5"):
        save_checkpoint(tmp_path, config, params)


def test_shards_and_their_index(written):
    folder, config, params = written
    save_checkpoint(folder, config, params, max_shard_bytes=20_000)
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 2
    assert not (folder / "model.safetensors").exists()
    assert_same(load_checkpoint(folder)[1], params)

    index_file = folder / "model.safetensors.index.json"
    index = json.loads(index_file.read_text())
    assert index["metadata"]["total_size"] == sum(
        leaf.nbytes for leaf in flatten(params).values()
    )
    index["weight_map"]["shared.weight"] = shards[-1].name
    index_file.write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"disagree on .*shared\.weight"):
        load_checkpoint(folder)
    shards[0].unlink()
    with pytest.raises(FileNotFoundError, match=shards[0].name):
        load_checkpoint(folder)


def test_transformers_reads_our_shards(written):
    pytest.importorskip("torch")
    from transformers import T5ForConditionalGeneration

    folder, config, params = written
    save_checkpoint(folder, config, params, max_shard_bytes=20_000)
    model = T5ForConditionalGeneration.from_pretrained(folder)
    assert_same(ours(model)[1], params)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_half_precision_files_become_float32(written, dtype):
    folder, _, params = written
    tensors = load_file(folder / "model.safetensors")
    low = {name: tensor.astype(dtype) for name, tensor in tensors.items()}
    save_file(low, folder / "model.safetensors")
    read = flatten(load_checkpoint(folder)[1])
    for path, leaf in flatten(params).items():
        assert read[path].dtype == np.float32
        assert np.array_equal(read[path], leaf.astype(dtype).astype(np.float32))


def test_old_and_repeated_tensors_are_known(written):
    folder, _, params = written
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for copy in ("encoder.embed_tokens", "decoder.embed_tokens", "lm_head"):
        tensors[f"{copy}.weight"] = tensors["shared.weight"].copy()
    unused = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    tensors[unused] = np.zeros((32, 4), np.float32)
    save_file(tensors, file)
    assert_same(load_checkpoint(folder)[1], params)
    tensors["encoder.embed_tokens.weight"][3, 3] += 1
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match=r"encoder\.embed_tokens\.weight is tied"):
        load_checkpoint(folder)


def test_one_error_lists_missing_extra_and_misshapen(written):
    folder, _, _ = written
    file = folder / "model.safetensors"
    tensors = load_file(file)
    del tensors["encoder.block.1.layer.0.SelfAttention.q.weight"]
    tensors["decoder.block.0.layer.2.DenseReluDense.wo.weight"] = np.zeros((9, 48))
    tensors["decoder.block.7.layer.0.layer_norm.weight"] = np.ones(32)
    save_file(tensors, file)
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(folder)
    text = str(error.value)
    assert "3 problem(s)" in text and str(folder) in text
    for part in (
        "missing tensor encoder.block.1.layer.0.SelfAttention.q.weight",
        "wo.weight is (9, 48), the config asks for (32, 48)",
        "unknown tensor decoder.block.7.layer.0.layer_norm.weight",
    ):
        assert part in text


def test_other_kinds_and_empty_folders_are_explained(written, tmp_path):
    folder, _, _ = written
    (folder / "model.safetensors").rename(folder / "tf_model.h5")
    with pytest.raises(
        FileNotFoundError, match=r"holds no weights: neither model\.saf"
    ):
        load_checkpoint(folder)
    rewrite_config(folder, model_type="bart")
    with pytest.raises(ValueError, match=r"'bart'.*t5"):
        load_checkpoint(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        load_checkpoint(tmp_path / "empty")


def test_damaged_files_are_named(written):
    folder, _, _ = written
    heads = json.loads((folder / "config.json").read_text())["num_heads"]
    rewrite_config(folder, num_heads=-1)
    with pytest.raises(ValueError, match="num_heads is -1"):
        load_checkpoint(folder)
    rewrite_config(folder, num_heads=heads)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(
        ValueError, match=r"model\.safetensors is incomplete or damaged"
    ):
        load_checkpoint(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(ValueError, match=r"config\.json holds a list"):
        load_checkpoint(folder)
    (folder / "config.json").write_text("{not")
    with pytest.raises(ValueError, match=r"config\.json is damaged"):
        load_checkpoint(folder)


def test_unreachable_hub_is_one_clear_error(monkeypatch, tmp_path):
    import huggingface_hub

    def refuse(name, **_):
        raise huggingface_hub.errors.OfflineModeIsEnabled("offline")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(FileNotFoundError, match=r"'some/model'.*without a network"):
        load_checkpoint("some/model")


def test_hub_folder_is_read_like_any_other(monkeypatch, written):
    import huggingface_hub

    folder, config, _ = written
    asked = []

    def download(name, allow_patterns):
        asked.append((name, allow_patterns))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert load_checkpoint("some/model")[0] == config
    assert asked == [("some/model", ["*.json", "*.safetensors"])]


def test_config_fields_can_be_set_otherwise(written):
    folder, config, _ = written
    read, params = load_checkpoint(folder, dtype="bfloat16", dropout_rate=0.0)
    assert (read.dtype, read.dropout_rate) == ("bfloat16", 0.0)
    assert flatten(params)["shared/embedding"].dtype == np.float32
    assert bind(read, params).config.d_kv == config.d_kv
    rewrite_config(folder, eos_token_id=[1, 2])
    with pytest.raises(ValueError, match=r"\[1, 2\]"):
        load_checkpoint(folder)
    assert load_checkpoint(folder, eos_token_id=2)[0].eos_token_id == 2


def test_reading_and_writing_import_no_torch(written):
    folder, _, _ = written
    code = (
        "import sys\n"
        "from ntl_jax.hf import load_checkpoint, save_checkpoint\n"
        f"loaded = load_checkpoint({str(folder)!r})\n"
        f"save_checkpoint({str(folder / 'again')!r}, *loaded)\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)

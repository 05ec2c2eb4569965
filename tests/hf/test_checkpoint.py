"""Checkpoint folders: read, written, and read again by transformers."""

import json
import os
import subprocess
import sys

import chex
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ntl_jax.hf import CheckpointError, load_checkpoint, save_checkpoint
from ntl_jax.hf.mapping import flatten
from ntl_jax.models import T5Config
from tests.hf.folders import assert_same, random_params, rewrite_config
from tests.models.cases import TINY as CONFIGS
from tests.models.cases import ours, perturbed, torch_logits
from tests.models.cases import t5_batch as batch
from tests.models.running import TOLERANCE, run

TINY, GATED = CONFIGS["t5_v1_0"], CONFIGS["t5_v1_1"]


def test_published_tiny_checkpoint_equals_pytorch(data_dir):
    pytest.importorskip("torch")
    from transformers import T5ForConditionalGeneration

    folder = data_dir / "checkpoints" / "chronos-dummy-t5"
    config, params = load_checkpoint(folder)
    model = T5ForConditionalGeneration.from_pretrained(folder, dtype="float32").eval()
    data = batch()
    data = {k: v % 32 if k != "attention_mask" else v for k, v in data.items()}
    want = torch_logits(model, data)
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
    with pytest.raises(ValueError, match=r"shared\.weight"):
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
    with pytest.raises(
        CheckpointError, match=r"encoder\.embed_tokens\.weight .*shared"
    ):
        load_checkpoint(folder)


def test_other_kinds_and_empty_folders_are_explained(written, tmp_path):
    folder, _, _ = written
    (folder / "model.safetensors").rename(folder / "tf_model.h5")
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors"):
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
    with pytest.raises(ValueError, match=r"num_heads .*-1"):
        load_checkpoint(folder)
    rewrite_config(folder, num_heads=heads)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"model\.safetensors .*damaged"):
        load_checkpoint(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(ValueError, match=r"config\.json .*list"):
        load_checkpoint(folder)
    (folder / "config.json").write_text("{not")
    with pytest.raises(ValueError, match=r"config\.json .*damaged"):
        load_checkpoint(folder)


def test_unreachable_hub_is_one_clear_error(monkeypatch, tmp_path):
    import huggingface_hub

    def refuse(name, **_):
        raise huggingface_hub.errors.OfflineModeIsEnabled("offline")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(FileNotFoundError, match=r"'some/model'"):
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

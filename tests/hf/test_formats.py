"""Weights in Flax's msgpack and in PyTorch's pickles, of which no code is run."""

import json
import pathlib
import shutil
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax.hf import load_checkpoint, save_checkpoint
from ntl_jax.hf.mapping import flatten
from ntl_jax.models import T5Config, bind
from tests.hf.folders import GOLDEN, GPT2, GRANITE, load_sharded, write
from tests.models.cases import torch_model


def logits(folder, path="logits.npz"):
    """Our logits for the golden inputs, and the golden ones."""
    with np.load(GOLDEN / folder.name / path) as golden:
        arrays = dict(golden)
    want = arrays.pop("logits")
    config, params = load_checkpoint(folder)
    got = bind(config, params)(**{k: jnp.asarray(v) for k, v in arrays.items()})
    return np.asarray(got), want


@pytest.fixture(params=["flax_t5", "flax_gpt2"])
def flax_folder(request, tmp_path):
    return shutil.copytree(GOLDEN / request.param, tmp_path / request.param)


def test_files_of_transformers_4s_flax_models(flax_folder):
    got, want = logits(flax_folder)
    np.testing.assert_allclose(got, want, atol=1e-5, rtol=0)
    config, params = load_checkpoint(flax_folder)
    assert isinstance(config, T5Config) != (flax_folder.name == "flax_gpt2")
    # The same comparison sees one kernel the wrong way round.
    layers = params["decoder" if isinstance(config, T5Config) else "layers"]
    attention = layers.get("layers", layers)["attention"]["o"]
    kernel = attention["kernel"]
    square = kernel[0][: min(kernel.shape[1:]), : min(kernel.shape[1:])]
    square[...] = square.T.copy()
    save_checkpoint(flax_folder, config, params)
    got, want = logits(flax_folder)
    assert np.abs(got - want).max() > 1e-4


def test_flax_shards_are_read_by_devices(tmp_path):
    folder = shutil.copytree(GOLDEN / "flax_gpt2", tmp_path / "folder")
    config, whole = load_checkpoint(folder)
    params, _ = load_sharded(folder, config, (1, 4, 2))
    for path, leaf in flatten(whole).items():
        np.testing.assert_array_equal(flatten(params)[path], leaf)


def test_safetensors_come_first(flax_folder):
    config, params = load_checkpoint(flax_folder)
    next(iter(flatten(params).values()))[...] = 7
    save_checkpoint(flax_folder, config, params)
    read = load_checkpoint(flax_folder)[1]
    assert (next(iter(flatten(read).values())) == 7).all()


def test_damaged_flax_files_are_named(flax_folder):
    file = sorted(flax_folder.glob("*.msgpack"))[0]
    whole = file.read_bytes()
    for damage in (whole[: len(whole) // 2], b"", b"\x93\x01\x02\x03", b"\xc1" + whole):
        file.write_bytes(damage)
        with pytest.raises(ValueError, match=rf"{file.name}"):
            load_checkpoint(flax_folder)


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
@pytest.mark.parametrize("layout", ["one file", "shards", "old", "bfloat16"])
def test_pickles_of_pytorch(kind, layout, tmp_path):
    torch = pytest.importorskip("torch")
    model = torch_model("t5_v1_0" if kind == "t5" else "gpt2_tied")
    model.save_pretrained(tmp_path)
    want = flatten(load_checkpoint(tmp_path)[1])
    (tmp_path / "model.safetensors").unlink()
    state = {k: v.detach() for k, v in model.state_dict().items()}
    if layout == "bfloat16":
        state = {k: v.bfloat16() for k, v in state.items()}
        want = {k: v.astype(jnp.bfloat16).astype(np.float32) for k, v in want.items()}
    if layout == "shards":
        files = [f"pytorch_model-{n:05d}-of-00002.bin" for n in (1, 2)]
        names = [list(state)[::2], list(state)[1::2]]
        weight_map = {}
        for file, held in zip(files, names, strict=True):
            torch.save({name: state[name].clone() for name in held}, tmp_path / file)
            weight_map |= dict.fromkeys(held, file)
        index = json.dumps({"weight_map": weight_map})
        (tmp_path / "pytorch_model.bin.index.json").write_text(index)
    else:
        new = layout != "old"  # before PyTorch 1.6 the file was no zip archive
        path = tmp_path / "pytorch_model.bin"
        torch.save(state, path, _use_new_zipfile_serialization=new)
    got = flatten(load_checkpoint(tmp_path)[1])
    assert got.keys() == want.keys()
    for path, leaf in want.items():
        np.testing.assert_array_equal(got[path], leaf)


class Evil:
    """Pickled, it makes a file where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return pathlib.Path.touch, (self.path,)


def test_code_in_a_pickle_is_not_run(tmp_path):
    torch = pytest.importorskip("torch")
    write(GPT2, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    file, trace = tmp_path / "pytorch_model.bin", tmp_path / "trace"
    torch.save({"wte.weight": Evil(trace)}, file)
    with pytest.raises(ValueError, match=r"pytorch_model\.bin .*tensors"):
        load_checkpoint(tmp_path)
    assert not trace.exists()
    torch.load(file, weights_only=False)
    assert trace.exists()  # so the file was armed
    for content in (
        b"",
        b"not a pickle",
        b"hello",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n",
        b"PK\x03\x04 not an archive",
    ):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"pytorch_model\.bin .*damaged"):
            load_checkpoint(tmp_path)
    torch.save([torch.ones(2)], file)
    with pytest.raises(ValueError, match="tensors"):
        load_checkpoint(tmp_path)


def test_a_pickle_without_pytorch_is_one_clear_line(tmp_path, monkeypatch):
    write(GRANITE, tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ValueError, match=r"PyTorch.*pip install") as error:
        load_checkpoint(tmp_path)
    assert "\n" not in str(error.value)
    assert f"ntl_jax.hf export {tmp_path} NEW_FOLDER" in str(error.value)


def test_a_repository_of_pickles_is_fetched_format_by_format(monkeypatch, tmp_path):
    import huggingface_hub

    folder = shutil.copytree(GOLDEN / "flax_gpt2", tmp_path / "hub")
    weights = (folder / "flax_model.msgpack").rename(tmp_path / "remote")
    asked = []

    def download(name, allow_patterns):
        asked.append(allow_patterns)
        if "flax_model*.msgpack" in allow_patterns:
            shutil.copy(weights, folder / "flax_model.msgpack")
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert load_checkpoint("some/model")[0].n_embd == 8
    assert asked == [["*.json", "*.safetensors"], ["*.json", "flax_model*.msgpack"]]

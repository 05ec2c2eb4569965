"""The command line that looks at checkpoints."""

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ntl_jax.hf import CheckpointError, compare, load_checkpoint, read_any
from ntl_jax.hf import __main__ as command_line
from ntl_jax.hf.mapping import flatten
from ntl_jax.hf.native import read_native, write_native
from ntl_jax.models import GPT2Config
from ntl_jax.sharding.mesh import make_mesh
from ntl_jax.sharding.rules import param_shardings
from tests.hf.folders import GOLDEN, MODELS, write
from tests.models.cases import torch_model


@pytest.fixture
def folder(tmp_path):
    torch_model("t5_v1_0").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_import_says_what_the_checkpoint_is(folder, capsys):
    assert command_line.main(["import", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "parameters" in said and "d_kv=12" in said


def test_export_writes_a_folder_that_reads_the_same(folder, tmp_path):
    assert command_line.main(["export", str(folder), str(tmp_path / "out")]) == 0
    assert load_checkpoint(tmp_path / "out")[0] == load_checkpoint(folder)[0]


def test_a_broken_checkpoint_ends_in_an_error_line(folder, capsys):
    tensors = load_file(folder / "model.safetensors")
    tensors["shared.weight"] = np.zeros((3, 3), np.float32)
    save_file(tensors, folder / "model.safetensors")
    assert command_line.main(["import", str(folder)]) == 2
    assert "shared.weight is (3, 3)" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["t5 v1.1", "gpt2", "granite untied", "granite moe"])
def test_import_and_export_give_the_same_file_back(name, tmp_path, capsys):
    given, native, back = (tmp_path / n for n in ("given", "native", "back"))
    given.mkdir()
    write(MODELS[name], given)
    (given / "tokenizer.json").write_text("{}")
    assert command_line.main(["import", str(given), str(native)]) == 0
    config, params = read_any(native)
    want_config, want = load_checkpoint(given)
    assert config == want_config
    for path, leaf in flatten(want).items():
        np.testing.assert_array_equal(flatten(params)[path], leaf)
    assert command_line.main(["export", str(native), str(back)]) == 0
    for file in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (back / file).read_bytes() == (given / file).read_bytes()
    assert "with its tokenizer" in capsys.readouterr().out


def test_native_folders_restore_onto_a_mesh(tmp_path):
    write(MODELS["gpt2"], tmp_path / "given")
    config, params = load_checkpoint(tmp_path / "given", vocab_rows=56)
    write_native(tmp_path / "native", config, params)
    shardings = param_shardings(config, params, make_mesh(2, 2, 2))
    classes = {"GPT2Config": GPT2Config}
    _, spread = read_native(tmp_path / "native", classes, shardings=shardings)
    for path, leaf in flatten(spread).items():
        assert leaf.sharding == flatten(shardings)[path]
        np.testing.assert_array_equal(leaf, flatten(params)[path])
    with pytest.raises(ValueError, match="already exists"):
        write_native(tmp_path / "native", config, params)


def test_native_folders_of_another_model_or_version_are_refused(tmp_path):
    write(MODELS["gpt2"], tmp_path / "given")
    config, params = load_checkpoint(tmp_path / "given")
    folder = tmp_path / "native"
    write_native(folder, config, params)
    file = folder / "config.json"
    right = file.read_text()
    for old, new, error, message in (
        ('"n_inner": null', '"n_inner": 3', CheckpointError, "3 problem"),
        ('"GPT2Config"', '"MambaConfig"', ValueError, "of class 'MambaConfig'; known"),
        ('"remat"', '"rematerialise"', ValueError, "was written by another version"),
    ):
        file.write_text(right.replace(old, new))
        with pytest.raises(error, match=message):
            read_any(folder)


def test_check_multiplies_with_all_digits(folder, monkeypatch):
    # GPUs and TPUs round the factors of float32 products unless they are asked not to.
    right, seen, asked = compare.bind, [], "jax_default_matmul_precision"

    def bind(*given):
        model = right(*given)

        def run(**inputs):
            seen.append(getattr(jax.config, asked))
            return model(**inputs)

        return run

    monkeypatch.setattr(compare, "bind", bind)
    assert command_line.main(["check", str(folder)]) == 0
    assert seen == ["highest"]


def test_a_native_folder_without_its_metadata(folder, tmp_path, capsys):
    native = tmp_path / "native"
    assert command_line.main(["import", str(folder), str(native)]) == 0
    (native / "params" / "_METADATA").unlink()
    assert command_line.main(["export", str(native), str(tmp_path / "out")]) == 2
    assert "params is incomplete or damaged; import" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_nothing_that_exists_is_overwritten(folder, tmp_path, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note").touch()
    for command in ("import", "export"):
        assert command_line.main([command, str(folder), str(tmp_path / "full")]) == 2
        assert "is not empty; name a new folder" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["note"]


def test_check_says_what_it_cannot_compare(folder, tmp_path, capsys):
    command_line.main(["import", str(folder), str(tmp_path / "native")])
    for unread in (tmp_path / "native", GOLDEN / "flax_gpt2"):
        assert command_line.main(["check", str(unread)]) == 2
        assert "first: PyTorch cannot read it" in capsys.readouterr().err


def test_a_hub_repositorys_tokenizer_goes_along(tmp_path, monkeypatch):
    import huggingface_hub

    write(MODELS["gpt2"], tmp_path / "cache")
    (tmp_path / "cache" / "tokenizer.json").write_text("{}")
    cache = str(tmp_path / "cache")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: cache)
    out = tmp_path / "out"
    assert command_line.main(["export", "some/model", str(out)]) == 0
    assert (out / "tokenizer.json").read_text() == "{}"
    assert load_checkpoint(out)[0] == load_checkpoint(cache)[0]

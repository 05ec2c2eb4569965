"""The command line that looks at checkpoints."""

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ntl_jax.hf import __main__ as command_line
from ntl_jax.hf import load_checkpoint
from tests.tiny_t5 import torch_model


@pytest.fixture
def folder(tmp_path):
    torch_model("v1_0").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_import_says_what_the_checkpoint_is(folder, capsys):
    assert command_line.main(["import", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "parameters" in said and "d_kv=12" in said


def test_export_writes_a_folder_that_reads_the_same(folder, tmp_path):
    assert command_line.main(["export", str(folder), str(tmp_path / "out")]) == 0
    assert load_checkpoint(tmp_path / "out")[0] == load_checkpoint(folder)[0]


def test_check_agrees_and_can_disagree(folder, capsys, monkeypatch):
    assert command_line.main(["check", str(folder)]) == 0
    assert "agree" in capsys.readouterr().out
    right = command_line.torch_logits
    monkeypatch.setattr(command_line, "torch_logits", lambda *a: right(*a) + 0.01)
    assert command_line.main(["check", str(folder)]) == 1
    assert "DISAGREE" in capsys.readouterr().out


def test_a_broken_checkpoint_ends_in_an_error_line(folder, capsys):
    tensors = load_file(folder / "model.safetensors")
    tensors["shared.weight"] = np.zeros((3, 3), np.float32)
    save_file(tensors, folder / "model.safetensors")
    assert command_line.main(["import", str(folder)]) == 2
    assert "shared.weight is (3, 3)" in capsys.readouterr().err

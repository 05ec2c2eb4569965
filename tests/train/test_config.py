"""What a config refuses, and where runs are written."""

import dataclasses
import json
import math

import pytest

from ntl_jax.models import GPT2Config, GraniteConfig, T5Config
from tests.train.helpers import TINY
from train.__main__ import main
from train.checkpointing.resume import check_same_run
from train.checkpointing.rundir import resolve_run_dir, trained_runs, write_config
from train.config import ConfigError, LossConfig, MeshConfig, mesh_shape, validate
from train.config.presets import load_preset, preset_names


def change(path: str, value):
    """TINY with one nested field changed."""
    head, _, tail = path.partition(".")
    if tail:
        value = dataclasses.replace(getattr(TINY, head), **{tail: value})
    return dataclasses.replace(TINY, **{head: value})


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("steps", 0, "--steps is 0"),
        ("log_every", 0, "--log-every is 0"),
        ("checkpoint_every", 0, "--checkpoint-every is 0"),
        ("evaluation.every", -1, "--evaluation.every is -1"),
        ("keep_checkpoints", 0, "--keep-checkpoints is 0"),
        ("loss", LossConfig(ce=None), "every loss term is None"),
        ("optimizer.schedule", "plateau", "set --evaluation.every too"),
        ("optimizer.warmup_steps", 6, "leaves nothing of --steps 6"),
        ("data.batch_size", 12, "--data.batch-size 12 does not divide"),
        ("evaluation.batch_size", 1, "--evaluation.batch-size 1 does not divide"),
        ("name", "a/b", "--name 'a/b' cannot be a folder"),
        ("seed", -1, "--seed is -1"),
        ("seed", 2**32, "--seed is 4294967296.*at least 0 and below 4,294,967,296"),
        ("steps", 2**31, "--steps is 2147483648.*at least 1 and below 2,147,483,648"),
        ("evaluation.beams", 10**21, "--evaluation.beams is 1000000000000000000000"),
        ("evaluation.max_new_tokens", 10**12, "--evaluation.max-new-tokens is 10"),
        ("evaluation.batch_size", 8 * 10**12, "--evaluation.batch-size is 80"),
        ("data.batch_size", 8 * 10**12, "--data.batch-size is 80"),
        ("data.train_size", 10**12, "--data.train-size is 10"),
        ("optimizer.plateau_patience", 10**30, "--optimizer.plateau-patience is 10"),
        ("hosts.timeout", 2**31, "--hosts.timeout is 2147483648"),
        ("model.pad_token_id", -1, "--model.pad-token-id is -1, and the model has"),
        (
            "model.decoder_start_token_id",
            512,
            "--model.decoder-start-token-id is 512.*rows 0 to 511: give one of them",
        ),
        ("data.digits", 9, "--data.digits is 9: it must be at least 1 and below 9"),
        ("data.train_size", 0, "--data.train-size is 0: it must be at least 1"),
        ("data.max_target_length", 0, "--data.max-target-length is 0"),
        ("loss.was", -0.3, "--loss.was is -0.3: it must be at least 0 and finite"),
        ("loss.ce", math.nan, "--loss.ce is nan"),
        ("loss.label_smoothing", 1.0, "it must be at least 0 and below 1"),
        ("loss.huber_delta", 0.0, "--loss.huber-delta is 0.0: it must be above 0"),
        (
            "loss",
            LossConfig(was=1.0, reweigh=True, support="full"),
            "--loss.reweigh needs --loss.support numbers",
        ),
        ("optimizer.learning_rate", -1.0, "--optimizer.learning-rate is -1.0"),
        ("optimizer.plateau_factor", 2.0, "it must be above 0 and below 1"),
        ("optimizer.clip_norm", 0.0, "--optimizer.clip-norm is 0.0"),
        ("evaluation.max_new_tokens", 0, "--evaluation.max-new-tokens is 0"),
        ("mesh", MeshConfig(data=3), "does not fill 8 device"),
        ("mesh", MeshConfig(data=-2, fsdp=-4), "--mesh.data is -2: give 1 or more"),
        ("mesh", MeshConfig(fsdp=-2, tensor=-4), "--mesh.fsdp is -2: give 1 or more"),
        ("mesh", MeshConfig(tensor=0), "--mesh.tensor is 0: give 1 or more, or -1"),
        ("mesh", MeshConfig(fsdp=-1, tensor=-1), "can be -1, not fsdp and tensor"),
        ("accumulate", 0, "--accumulate is 0: it must be at least 1"),
        (
            "accumulate",
            3,
            "--accumulate 3 does not divide the 1 rows that each of data",
        ),
        (
            "model.attention",
            "triton",
            "--model.attention='triton' runs on NVIDIA GPUs, and the program is for",
        ),
    ],
)
def test_contradictions_name_the_flag(path, value, message):
    with pytest.raises(ConfigError, match=message):
        validate(change(path, value), num_devices=8)


def test_tiny_is_valid():
    validate(TINY, num_devices=8)


HEADS = {
    "t5": T5Config(d_kv=64, d_model=16, num_heads=2),
    "gpt2": GPT2Config(n_embd=128, n_head=2, attn_pdrop=0.0, resid_pdrop=0.1),
    "granite": GraniteConfig(
        hidden_size=128, num_attention_heads=2, num_key_value_heads=1
    ),
}


@pytest.mark.parametrize("family", HEADS)
def test_attention_asks_for_the_width_and_the_dropout_of_heads(family):
    model = dataclasses.replace(HEADS[family], attention="triton", dtype="bfloat16")
    validate(change("model", model), 8, "gpu")
    cudnn = change("model", dataclasses.replace(model, attention="cudnn"))
    if family == "gpt2":
        validate(cudnn, 8, "gpu")
    else:
        with pytest.raises(ConfigError, match="'cudnn' has no dropout of probab"):
            validate(cudnn, 8, "gpu")
    with pytest.raises(ConfigError, match="the program is for 'tpu'; or choose 'xla'"):
        validate(cudnn, 8, "tpu")


def test_a_program_that_cannot_run_is_refused_before_anything_is_written(
    tmp_path, capsys
):
    flags = ["--model.attention", "cudnn", "--run-dir", str(tmp_path / "run")]
    assert main(["quickstart", "--evaluation.batch-size", "8", *flags]) == 1
    told = capsys.readouterr().err.splitlines()
    assert told[-1].startswith("error: --model.attention='cudnn' runs on NVIDIA GPUs")
    assert not (tmp_path / "run").exists()


def test_flags_of_hosts_are_looked_at_before_hosts_are_waited_for(capsys):
    flags = ["--hosts.coordinator", "localhost:1", "--hosts.count", "2"]
    flags += ["--hosts.index", "0", "--hosts.heartbeat-timeout", "0"]
    assert main(["quickstart", *flags]) == 1
    assert "error: --hosts.heartbeat-timeout is 0: it must" in capsys.readouterr().err


def test_mesh_shape_fills_in():
    assert mesh_shape(MeshConfig(data=-1, fsdp=2), 8) == {
        "data": 4,
        "fsdp": 2,
        "tensor": 1,
    }
    for axis in ("fsdp", "tensor"):
        filled = mesh_shape(MeshConfig(**{axis: -1}), 8)
        assert filled == {"data": 1, "fsdp": 1, "tensor": 1} | {axis: 8}
    with pytest.raises(ConfigError, match=r"not fill 8 device.*product of the si"):
        mesh_shape(MeshConfig(data=3, fsdp=-1), 8)


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_loads_and_is_valid(name):
    config, description = load_preset(name)
    for devices in (1, 2, 4, 8, 16):
        validate(config, devices)
    assert config.name == name
    assert description.splitlines()[0].endswith(".")


def test_unknown_preset_lists_the_known():
    with pytest.raises(ConfigError, match=r"'quickstat'.*quickstart"):
        load_preset("quickstat")


def test_run_dirs_are_never_reused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = resolve_run_dir(TINY)
    assert str(first) == "runs/tiny"
    first.mkdir(parents=True)
    second = resolve_run_dir(TINY)
    assert str(second) == "runs/tiny-2"
    second.mkdir()
    (tmp_path / "runs" / "tiny-other").mkdir()
    assert str(resolve_run_dir(TINY)) == "runs/tiny-3"
    assert resolve_run_dir(change("resume", True)) == second


def test_nothing_to_resume(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="no run called tiny"):
        resolve_run_dir(change("resume", True))


def test_a_named_folder_is_not_overwritten(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty"):
        resolve_run_dir(change("run_dir", str(tmp_path)))


def test_resume_refuses_another_loss_and_names_it(tmp_path):
    write_config(tmp_path, TINY)
    check_same_run(tmp_path, change("log_every", 5))
    with pytest.raises(ConfigError, match=r"--loss.was: 0.3 then, 2.0 now"):
        check_same_run(tmp_path, change("loss.was", 2.0))


def test_damaged_or_missing_runs_are_named(tmp_path):
    with pytest.raises(ConfigError, match="no run in"):
        trained_runs(tmp_path / "absent")
    with pytest.raises(ConfigError, match="holds no checkpoint"):
        trained_runs(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"name": 1})[:-1])
    with pytest.raises(ConfigError, match="is damaged"):
        check_same_run(tmp_path, TINY)

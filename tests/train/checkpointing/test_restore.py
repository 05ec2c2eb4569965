"""Finished runs on other devices than those they were trained on."""

import dataclasses
import gc
import json
import logging

import jax
import numpy as np
import pytest

from ntl_jax.hf import load_checkpoint
from ntl_jax.models import init_params
from tests.train.helpers import COMPARED
from tests.train.test_reevaluate import SET, answers
from train.__main__ import main
from train.checkpointing import restore
from train.checkpointing.restore import fitting_mesh, open_mesh, restored_params
from train.config import ConfigError, MeshConfig
from train.evaluation import predict
from train.evaluation.evaluate_run import evaluate

RUN = "ce-0.3was"
MODEL = COMPARED.model
FSDP = ["--mesh.data", "1", "--mesh.fsdp", "8"]
REPLICATED = MeshConfig(data=8, fsdp=1, tensor=1)


def test_the_mesh_of_training_is_taken_where_it_fits():
    for mesh in (MeshConfig(data=2, fsdp=2, tensor=2), MeshConfig()):
        assert fitting_mesh(mesh, MODEL) == mesh


def test_elsewhere_parameters_are_cut_into_the_most_parts():
    large = MeshConfig(data=1, fsdp=16, tensor=1)
    assert fitting_mesh(large, MODEL) == MeshConfig(data=1, fsdp=8, tensor=1)
    twelve = dataclasses.replace(MODEL, d_model=12)  # a width that 8 does not divide
    assert fitting_mesh(large, twelve) == MeshConfig(data=2, fsdp=4, tensor=1)
    odd = dataclasses.replace(MODEL, d_model=7)
    assert fitting_mesh(large, odd) == REPLICATED


def test_a_mesh_that_fills_small_devices_is_not_taken(monkeypatch, caplog):
    shapes = jax.eval_shape(lambda key: init_params(MODEL, key), jax.random.key(0))
    whole = sum(leaf.size * 4 for leaf in jax.tree.leaves(shapes))
    for memory, mesh in (
        (2 * whole, REPLICATED),
        (2 * whole - 1, MeshConfig(data=1, fsdp=8, tensor=1)),
    ):
        monkeypatch.setattr(restore, "device_memory", lambda memory=memory: memory)
        assert fitting_mesh(REPLICATED, MODEL) == mesh


def test_a_mesh_that_does_not_suit_the_model_is_refused():
    with pytest.raises(ConfigError, match="8 device"):
        open_mesh(MeshConfig(data=3, fsdp=1, tensor=1), MODEL)
    odd = dataclasses.replace(MODEL, d_model=7)
    with pytest.raises(ConfigError, match=r"7 .* 8 devices"):
        open_mesh(MeshConfig(data=1, fsdp=8, tensor=1), odd)


def held(device) -> int:
    """Bytes that a device has of all live arrays, some of which share theirs."""
    gc.collect()  # or what other tests left goes at any time, and is counted
    buffers = {}
    for array in jax.live_arrays():
        for shard in array.addressable_shards:
            if shard.device == device:
                buffers[shard.data.unsafe_buffer_pointer()] = shard.data.nbytes
    return sum(buffers.values())


def test_no_device_holds_the_whole_model_while_it_is_exported(
    compared, tmp_path, monkeypatch
):
    device = jax.devices()[0]
    before, during = held(device), []
    save = predict.save_checkpoint

    def watched(folder, model, params):
        during.append(held(device) - before)
        save(folder, model, params)
        during.append(held(device) - before)

    monkeypatch.setattr(predict, "save_checkpoint", watched)
    assert main(["export", str(compared / RUN), str(tmp_path / "hf"), *FSDP]) == 0
    config, params = load_checkpoint(tmp_path / "hf")
    whole = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    assert len(during) == 2 and 0 < max(during) < whole / 6
    mesh = open_mesh(REPLICATED, config)
    want = restored_params(compared / RUN, config, mesh)
    jax.tree.map(np.testing.assert_array_equal, params, jax.device_get(want))
    assert held(device) - before >= whole, "the whole model on a device is seen"


def test_an_answer_is_the_same_on_every_mesh(compared, capsys):
    printed = []
    for flags in ([], FSDP):
        assert main(["predict", str(compared / RUN), "What is 3 plus 4?", *flags]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] and "digit |" in printed[0]


def test_a_run_of_more_devices_and_other_batches_is_evaluated(
    compared, tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr(logging.getLogger("train"), "propagate", True)
    run = tmp_path / "run"
    run.mkdir()
    (run / "checkpoints").symlink_to(compared / RUN / "checkpoints")
    content = json.loads((compared / RUN / "config.json").read_text())
    content["mesh"] = {"data": 1, "fsdp": 16, "tensor": 1}
    content["data"]["batch_size"] = 12
    (run / "config.json").write_text(json.dumps(content))
    with caplog.at_level(logging.INFO, logger="train"):
        evaluate(run, ["--sets", SET, "--out", str(tmp_path / "out")])
    assert "taking --mesh.data 1 --mesh.fsdp 8" in caplog.text
    assert answers(tmp_path / "out") == answers(compared / RUN)
    with pytest.raises(ConfigError, match=r"--evaluation\.batch-size 12 does not"):
        evaluate(run, ["--evaluation.batch-size", "12"])


def test_several_hosts_are_refused(compared, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SLURM_NTASKS", "2")
    monkeypatch.setenv("SLURM_LOCALID", "0")
    for command in (
        ["predict", str(compared / RUN), "What is 3 plus 4?"],
        ["export", str(compared / RUN), str(tmp_path / "hf")],
        ["evaluate", str(compared / RUN)],
    ):
        assert main(command) == 1
        message = f"error: {command[0]} runs on the devices of one host"
        assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())

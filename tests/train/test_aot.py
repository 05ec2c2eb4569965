"""Compiling a preset for TPUs that are not here, and saying what it takes."""

import dataclasses
import importlib.util

import pytest

from ntl_jax.models import T5Config
from train.__main__ import main
from train.aot import compile_ahead, find_devices, render, step_times
from train.config import ConfigError, DataConfig, MeshConfig, TrainConfig

TINY = TrainConfig(
    name="tiny",
    data=DataConfig(batch_size=8, max_source_length=128, max_target_length=128),
    model=T5Config(
        vocab_size=512,
        d_model=128,
        d_kv=32,
        d_ff=256,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=4,
        dtype="bfloat16",
    ),
    mesh=MeshConfig(data=1, fsdp=2, tensor=2),
)


def needs_libtpu():
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu, the TPU compiler, is not installed")


@pytest.mark.slow
def test_a_step_for_a_slice():
    needs_libtpu()
    report = compile_ahead(TINY, "v5e:2x2")
    assert report.device == "4 x TPU v5 lite" and report.memory == 16 * 2**30
    assert report.fits and report.needed < 2**30
    # Parameters and two moments, float32, a quarter of them a device, and the batch.
    assert report.arguments >= 3 * report.parameters
    matrices = 2 * 6 * 8 * 128 * report.parameters / 2  # an idea of the size
    assert 0.3 < 4 * report.flops / matrices < 3
    assert report.costs.collectives["all-gather"] > 0
    text = render(report)
    for part in ("TPU v5 lite", "all-gather", "step, overlapping"):
        assert part in text
    assert step_times(report)["step, overlapping"] > 0


@pytest.mark.slow
def test_what_does_not_fit_ends_in_failure(capsys):
    needs_libtpu()
    flags = ["--model.num-layers", "24", "--model.num-decoder-layers", "24"]
    flags += ["--model.d-model", "4096", "--model.d-ff", "16384"]
    flags += [
        "--data.batch-size",
        "1",
        "--evaluation.batch-size",
        "1",
        "--mesh.data",
        "1",
    ]
    assert main(["aot", "quickstart", "--topology", "v5e:1x1", *flags]) == 1
    assert "does not fit v5e:1x1" in capsys.readouterr().err


@pytest.mark.parametrize("topology", ["v9:4x4", "v5e", "v5e:4by4", "tpu"])
def test_unknown_topologies(topology):
    with pytest.raises(ConfigError, match="such as v5e:4x4"):
        find_devices(topology)


def test_the_devices_here():
    report = compile_ahead(dataclasses.replace(TINY, mesh=MeshConfig()), "local")
    assert report.device == "8 x cpu" and report.memory is None and report.fits
    assert step_times(report) == {} and "GiB" in render(report)


def test_a_mesh_that_does_not_fit():
    config = dataclasses.replace(TINY, mesh=MeshConfig(data=3))
    with pytest.raises(ConfigError, match="does not fill 8 device"):
        compile_ahead(config, "local")


@pytest.mark.parametrize("topology", ["v5e:4", "v5e:0x2", "v5e:2x2x", "v9:2x2", "v4"])
def test_a_topology_that_is_none(topology):
    with pytest.raises(ConfigError, match=f"{topology}: give 'local', or one of"):
        compile_ahead(TINY, topology)


@pytest.mark.parametrize("topology", ["v5e:4x4x4", "v6e:2x2x2"])
def test_slices_that_are_flat_have_two_sides(topology):
    flat = topology.rpartition("x")[0]
    with pytest.raises(ConfigError, match=f"give two sides, such as {flat}\\."):
        find_devices(topology)


def test_topology_is_asked_for(capsys):
    assert main(["aot", "quickstart"]) == 1
    assert "--topology" in capsys.readouterr().err

"""Compiling a preset for TPUs that are not here, and saying what it takes."""

import dataclasses
import importlib.util
import re

import pytest

from ntl_jax.models import T5Config
from ntl_jax.sharding.mesh import make_mesh
from train import step
from train.__main__ import main
from train.aot.chips import BETWEEN_HOSTS
from train.aot.compile import (
    AotReport,
    abstract_task,
    batch_shapes,
    compile_ahead,
    render,
    step_times,
)
from train.aot.program_costs import Costs
from train.aot.topology import find_devices
from train.config import ConfigError, DataConfig, EvalConfig, MeshConfig, TrainConfig
from train.config.presets import load_preset
from train.state import abstract_state

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
def test_t5_3b_fits_a_slice_of_sixteen():
    needs_libtpu()
    preset, _ = load_preset("gsm8k-t5-3b")
    report = compile_ahead(preset, "v5e:4x4")
    assert report.device == "16 x TPU v5 lite" and report.mesh["fsdp"] == 16
    assert report.parameters == 2_851_598_336 and report.fits
    # Parameters and two moments, float32, of a sixteenth, and activations.
    assert 12 * report.parameters / 16 < report.arguments < 2.1 * 2**30
    assert report.temporaries < 4 * 2**30
    assert 60e12 < report.flops < 80e12


def needs_cuda_plugin():
    plugins = "jax_cuda13_plugin", "jax_cuda12_plugin"
    if not any(importlib.util.find_spec(plugin) for plugin in plugins):
        pytest.skip("jax[cuda13-local], the GPU compiler, is not installed")


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["xla", "triton"])
def test_a_step_for_gpus(attention):
    needs_cuda_plugin()
    model = dataclasses.replace(TINY.model, attention=attention)
    report = compile_ahead(dataclasses.replace(TINY, model=model), "h100:4")
    assert report.device == "4 x NVIDIA H100 80GB HBM3" and report.fits
    assert report.arguments >= 3 * report.parameters
    assert report.costs.collectives["all-gather"] > 0
    assert report.chip is not None and report.chip.interconnect == 450e9
    matrices = 2 * 6 * 8 * 128 * report.parameters / 2
    assert 0.3 < 4 * report.flops / matrices < 3


def program_of_two_gpus() -> str:
    """A step that shares out the batch, compiled."""
    model = dataclasses.replace(TINY.model, attention="xla")
    config = dataclasses.replace(TINY, model=model, mesh=MeshConfig(data=2))
    task = abstract_task(config, make_mesh(2, 1, 1, devices=find_devices("h200:2")))
    train_step = step.compile_train_step(task)
    lowered = train_step.lower(abstract_state(task), batch_shapes(task))
    return lowered.compile({"xla_gpu_autotune_level": 0}).as_text()


@pytest.mark.slow
def test_gpus_sum_gradients_where_they_lie(monkeypatch):
    needs_cuda_plugin()

    def summed_at_once() -> int:
        """Of how many arrays the largest sum over the two GPUs is."""
        sums = re.findall(r" all-reduce(?:-start)?\((.*?)\)", program_of_two_gpus())
        return max(operands.count("%") for operands in sums)

    assert summed_at_once() > 10
    monkeypatch.setattr(step, "COPIES_GRADIENTS", "")
    assert summed_at_once() == 1  # of one copy of all


@pytest.mark.slow
def test_gpus_wait_for_each_others_counts_before_all_else():
    needs_cuda_plugin()
    _, entry = program_of_two_gpus().split("\nENTRY ")  # in the order that it is run
    steps = entry.splitlines()
    sums = [
        i for i, line in enumerate(steps) if re.search(r"%all-reduce[.\w-]* =", line)
    ]
    products = [i for i, line in enumerate(steps) if re.search(r"gemm|cublas", line)]
    assert sums and sums[0] < products[0]
    # All others are of gradients, in the backward pass.
    half = products[len(products) // 2]
    assert not [i for i in sums if products[0] < i < half]


@pytest.mark.slow
def test_between_hosts_gpus_talk_more_slowly():
    needs_cuda_plugin()
    report = compile_ahead(TINY, "h200:2x2")
    assert report.device == "4 x NVIDIA H200"
    assert report.chip is not None and report.chip.interconnect == BETWEEN_HOSTS


@pytest.mark.slow
def test_what_does_not_fit_a_gpu_ends_in_failure(capsys):
    needs_cuda_plugin()
    flags = ["--mesh.data", "1", "--data.batch-size", "524288"]
    assert main(["aot", "quickstart", "--topology", "a100:1", *flags]) == 1
    assert "79 GiB" in capsys.readouterr().err


@pytest.mark.slow
def test_what_does_not_fit_ends_in_failure(capsys):
    needs_libtpu()
    flags = ["--model.num-layers", "24", "--model.num-decoder-layers", "24"]
    flags += ["--model.d-model", "4096", "--model.d-ff", "16384"]
    flags += ["--data.batch-size", "1", "--mesh.data", "1"]
    assert main(["aot", "quickstart", "--topology", "v5e:1x1", *flags]) == 1
    assert "does not fit v5e:1x1" in capsys.readouterr().err


def test_the_devices_here():
    report = compile_ahead(dataclasses.replace(TINY, mesh=MeshConfig()), "local")
    assert report.device == "8 x cpu" and report.memory is None and report.fits
    assert step_times(report) == {} and "GiB" in render(report)


@pytest.mark.parametrize(("gib", "shown"), [(50, False), (70, True), (90, False)])
def test_a_gpu_is_used_whole_where_that_is_needed(gib, shown):
    report = AotReport(
        device="1 x NVIDIA H100 80GB HBM3",
        mesh={"data": 1},
        parameters=1,
        arguments=2**30,
        temporaries=gib * 2**30,
        outputs=0,
        memory=80 * 2.0**30,
        flops=1.0,
        costs=Costs(),
        seconds=1.0,
        chip=None,
    )
    assert ("XLA_PYTHON_CLIENT_MEM_FRACTION" in render(report)) == shown


def test_a_mesh_that_does_not_fit():
    config = dataclasses.replace(TINY, mesh=MeshConfig(data=3))
    with pytest.raises(ConfigError, match="does not fill 8 device"):
        compile_ahead(config, "local")


def test_the_batch_of_evaluations_need_not_fit():
    config = dataclasses.replace(
        TINY, mesh=MeshConfig(), evaluation=EvalConfig(batch_size=3)
    )
    assert compile_ahead(config, "local").fits


@pytest.mark.parametrize("head", ["numformer", "lm"])
def test_a_preset_that_answers_with_a_number_is_refused(head, capsys):
    flags = ["--topology", "local", "--head", head]
    assert main(["aot", "three-digit-numformer", *flags]) == 1
    message = capsys.readouterr().err
    assert "error: this preset's model answers with a number" in message
    assert "--head" not in message


@pytest.mark.parametrize("head", ["numformer", "regression"])
def test_a_head_that_answers_with_a_number_is_to_be_left_out(head, capsys):
    assert main(["aot", "quickstart", "--topology", "local", "--head", head]) == 1
    assert f"compiled ahead: leave out --head {head}." in capsys.readouterr().err


def test_topology_is_asked_for(capsys):
    assert main(["aot", "quickstart"]) == 1
    assert "--topology" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("preset", "field"),
    [("gpt2", "n-positions"), ("granite", "max-position-embeddings")],
)
def test_rows_longer_than_the_positions_are_refused(preset, field, capsys):
    longer = ["--data.max-source-length=20", "--data.max-target-length=20"]
    at = [f"--model.{field}=32", "--topology=local", "--mesh.fsdp=-1"]
    assert main(["aot", f"{preset}-multiplication", *longer, *at]) == 1
    assert "40 tokens, more than the model's 32" in capsys.readouterr().err

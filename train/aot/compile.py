"""Compiles a preset's train step for absent devices, and reports what it needs.

`python -m train aot PRESET --topology v5e:4x4` (or `h100:8`): the compilers for TPUs
and GPUs run on any machine. `--topology local` takes the devices of this one.
"""

import contextlib
import dataclasses
import functools
import importlib.metadata
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from ntl_jax import NumberVocab
from ntl_jax.models import count_parameters
from ntl_jax.sharding.mesh import batch_sharding, make_mesh, tensor_size
from train.aot.chips import BETWEEN_HOSTS, CHIPS, Chip
from train.aot.matmul_flops import matmul_flops
from train.aot.program_costs import Costs, costs_of
from train.aot.topology import find_devices, first_line
from train.config import ConfigError, TrainConfig, mesh_shape, validate
from train.data.row_checks import check_positions
from train.heads import HEADS, head_of
from train.pretrained import fit_vocabulary
from train.state import Task, abstract_state, make_task
from train.step import compile_train_step

_COMPILERS = ("jaxlib", "libtpu")

MORE_ROOM = (
    "Take more devices, a larger --mesh.fsdp or --mesh.tensor, --model.remat True, "
    "--fused-head, a larger --accumulate or a smaller --data.batch-size."
)
"""Remedies where a program needs more memory than a device has."""


@dataclasses.dataclass(frozen=True)
class AotReport:
    """What a compiled train step needs, per device and step.

    Attributes:
        device: what it was compiled for.
        mesh: size of each axis.
        parameters: of the model, over all devices.
        arguments: bytes of state and batch.
        temporaries: further bytes while the step runs.
        outputs: bytes of the results that do not reuse the memory of an argument.
        memory: bytes of the device; None where it is not known.
        flops: of the matrix products, recomputed ones included.
        costs: the collectives.
        seconds: compile time.
        chip: the device's rates; None where they are not known.
    """

    device: str
    mesh: dict[str, int]
    parameters: int
    arguments: int
    temporaries: int
    outputs: int
    memory: float | None
    flops: float
    costs: Costs
    seconds: float
    chip: Chip | None

    @property
    def needed(self) -> int:
        """Bytes of device memory."""
        return self.arguments + self.temporaries + self.outputs

    @property
    def memory_gib(self) -> str:
        """The device's memory as text."""
        return "?" if self.memory is None else f"{self.memory / 2**30:.0f}"

    @property
    def fits(self) -> bool:
        """Whether the device holds it; True where its memory is not known."""
        return self.memory is None or self.needed <= self.memory


def compile_ahead(config: TrainConfig, topology: str) -> AotReport:
    """Compiles the train step of a config for a topology.

    The batch has the config's maximum lengths. Which tokens are numbers does not
    change the program, so no tokenizer and no data are read.

    Raises:
        ConfigError: the model answers with a number, no such topology, its compiler is
            not installed, the mesh does not fit the devices, or the program does not
            fit their memory.
    """
    _check_writes_text(config)
    devices = find_devices(topology)
    sizes = mesh_shape(config.mesh, len(devices))
    # No evaluation is compiled: its batch need not fit the mesh.
    rows = sizes["data"] * sizes["fsdp"]
    evaluation = dataclasses.replace(config.evaluation, batch_size=rows)
    config = dataclasses.replace(config, evaluation=evaluation)
    validate(config, len(devices), devices[0].platform)
    mesh = make_mesh(sizes["data"], sizes["fsdp"], sizes["tensor"], devices=devices)
    task = abstract_task(config, mesh)
    state = abstract_state(task)
    batch = batch_shapes(task)
    check_positions(batch["input_ids"].shape[1], config, task.model)
    start = time.perf_counter()
    try:
        traced = compile_train_step(task).trace(state, batch)
    except RuntimeError as error:
        if "cuDNN" not in str(error):
            raise
        raise ConfigError(
            f"--model.attention cudnn: {error} It comes with pip install 'jax[cuda13]'."
        ) from error
    with _fitting(f"{config.name} does not fit {topology}, mesh {sizes}"):
        compiled = traced.lower().compile(_compiler_options(topology, devices))
    seconds = time.perf_counter() - start
    memory, hlo = compiled.memory_analysis(), _hlo_of(compiled, topology)
    if memory is None or hlo is None:
        raise ConfigError(
            f"the compiler of {topology} does not report what a program needs."
        )
    chip = _chip_of(devices)
    return AotReport(
        device=f"{len(devices)} x {devices[0].device_kind}",
        mesh=sizes,
        parameters=count_parameters(state.params, task.model),
        arguments=memory.argument_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        outputs=memory.output_size_in_bytes - memory.alias_size_in_bytes,
        memory=chip.memory if chip else None,
        flops=matmul_flops(traced.jaxpr.jaxpr) / len(devices),
        costs=costs_of(hlo),
        seconds=seconds,
        chip=chip,
    )


def _check_writes_text(config: TrainConfig) -> None:
    if not head_of(config.model).writes_text:
        raise ConfigError(
            "this preset's model answers with a number, and only models that write "
            "text are compiled ahead: take another preset."
        )
    if not HEADS[config.head].writes_text:
        raise ConfigError(
            "only models that write text are compiled ahead: leave out "
            f"--head {config.head}."
        )


@contextlib.contextmanager
def _fitting(otherwise: str) -> Iterator[None]:
    """Turns a compiler's report of too little memory into a ConfigError."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise ConfigError(f"{otherwise}: {first_line(error)}\n{MORE_ROOM}") from error


def _hlo_of(compiled: jax.stages.Compiled, topology: str) -> str | None:
    """The compiled program as text."""
    try:
        return compiled.as_text()
    except jax.errors.JaxRuntimeError as error:
        versions = {name: importlib.metadata.version(name) for name in _COMPILERS}
        raise ConfigError(
            f"the program for {topology} cannot be read ({versions}): pip install "
            "'jax[tpu]' installs the compiler that belongs to this jaxlib. Error: "
            f"{first_line(error)}"
        ) from error


def _compiler_options(topology: str, devices: list[Any]) -> dict[str, Any]:
    """On absent GPUs kernels are not autotuned."""
    absent = devices[0].platform == "gpu" and topology != "local"
    return {"xla_gpu_autotune_level": 0} if absent else {}


def _chip_of(devices: list[Any]) -> Chip | None:
    """The rates of one device; None where they are not known."""
    chip = CHIPS.get(devices[0].device_kind)
    hosts = {device.process_index for device in devices}
    if chip is not None and devices[0].platform == "gpu" and len(hosts) > 1:
        return chip._replace(interconnect=BETWEEN_HOSTS)
    return chip


def abstract_task(config: TrainConfig, mesh: Mesh) -> Task:
    """The task of a config, with made-up ids for the digits and no tokenizer."""
    tensor = tensor_size(mesh)
    model = fit_vocabulary(config.model, config.model.vocab_size, tensor, grow=False)
    digits = {str(digit): digit + 1 for digit in range(10)} | {"<pad>": 0}
    vocab = NumberVocab.from_mapping(digits, vocab_size=model.vocab_size)
    return make_task(config, model, vocab, mesh)


def batch_shapes(task: Task) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes of a train batch of the config's maximum lengths."""
    data = task.config.data
    rows, source, target = (
        data.batch_size,
        data.max_source_length,
        data.max_target_length,
    )
    if task.model.decoder_only:
        source = target = source + target
    shape = functools.partial(jax.ShapeDtypeStruct, sharding=batch_sharding(task.mesh))
    return {
        "input_ids": shape((rows, source), jnp.int32),
        "attention_mask": shape((rows, source), jnp.bool_),
        "labels": shape((rows, target), jnp.int32),
    }


def render(report: AotReport) -> str:
    """The report as text."""
    gib = 2.0**30
    lines = [
        f"{report.device}, mesh {report.mesh}, {report.parameters:,} parameters, "
        f"compiled in {report.seconds:.0f} s",
        "",
        "per device          GiB",
        f"  arguments    {report.arguments / gib:8.2f}",
        f"  temporaries  {report.temporaries / gib:8.2f}",
        f"  output       {report.outputs / gib:8.2f}",
        f"  total        {report.needed / gib:8.2f}",
    ]
    if report.memory is not None:
        lines.append(f"  of           {report.memory / gib:8.2f}")
        share = report.needed / report.memory
        if "NVIDIA" in report.device and 0.75 < share <= 1:
            lines.append(
                "JAX takes 75% of a GPU: this needs XLA_PYTHON_CLIENT_MEM_FRACTION=.95"
            )
    lines += ["", f"matrix products     {report.flops / 1e12:10.2f} TFLOP per step"]
    for kind, size in sorted(report.costs.collectives.items()):
        largest = report.costs.largest[kind][1].strip("(").split("{")[0]
        lines.append(
            f"{kind:<19} {size / 1e9:10.3f} GB in {report.costs.calls[kind]:,} calls, "
            f"the largest of {largest}"
        )
    if report.chip is not None:
        times = step_times(report)
        lines += [""] + [f"{what:<19} {ms:10.1f} ms" for what, ms in times.items()]
    return "\n".join(lines)


def step_times(report: AotReport) -> dict[str, float]:
    """Milliseconds per step of each resource at its full rate, and of both.

    At best they overlap, at worst they do not. What device memory transfers is not
    counted.
    """
    chip = report.chip
    if chip is None:
        return {}
    each = {
        "matrix units": report.flops / chip.flops,
        "interconnect": sum(report.costs.collectives.values()) / chip.interconnect,
    }
    times = each.values()
    step = {"step, overlapping": max(times), "step, in turn": sum(times)}
    return {name: 1e3 * seconds for name, seconds in (each | step).items()}

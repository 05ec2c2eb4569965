"""Times the train step, alone or beside that of Hugging Face's model in PyTorch.

Run as ``python -m tests.benchmarks.step``; what follows ``--`` are flags of the preset,
here float32 and full rows of a few tokens unless they say otherwise:

    JAX_PLATFORMS=cpu python -m tests.benchmarks.step -- --model.unroll-layers True

Both train T5 of one size from random weights on random tokens, with dropout and AdamW:
ours with the preset's losses and all that a run does in a step, PyTorch's with cross
entropy alone. The two take turns, so that what else the machine does meets both.

``--alone`` leaves PyTorch out, and takes every preset whose model writes text as it is,
on every mesh; ``--profile`` then tells what GPUs did in a step:

    python -m tests.benchmarks.step --alone --profile --preset gsm8k-t5-3b -- \\
        --mesh.fsdp 2 --data.batch-size 64
"""

import argparse
import dataclasses
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import jax
import numpy as np

from ntl_jax.sharding.mesh import make_mesh
from tests.benchmarks.profile import gpu_kernels, spent
from train.__main__ import parse_config
from train.aot.compile import abstract_task, batch_shapes
from train.config import TrainConfig, mesh_shape
from train.state import Task, init_state
from train.step import compile_train_step

DEFAULTS = ("--model.dtype=float32", "--data.batch-size=8")
DEFAULTS += ("--data.max-source-length=128", "--data.max-target-length=64")
PROFILED = 3  # steps
SHARED = (  # of T5's sizes, named alike in both
    *("d_model", "d_kv", "d_ff", "num_layers", "num_decoder_layers", "num_heads"),
    *("vocab_size", "dropout_rate", "feed_forward_proj"),
)


def batch_of(task: Task) -> dict[str, np.ndarray]:
    """Random tokens, nothing padded."""
    random, above = np.random.default_rng(0), task.vocab.vocab_size
    return {
        name: np.ones(array.shape, bool)
        if array.dtype == bool
        else random.integers(3, above, array.shape, dtype=np.int32)
        for name, array in batch_shapes(task).items()
    }


def ours(config: TrainConfig, devices: list) -> Callable[[int], float]:
    """Takes steps of the program that a run compiles, and returns the last loss."""
    sizes = mesh_shape(config.mesh, len(devices))
    task = abstract_task(config, make_mesh(**sizes, devices=devices))
    shapes = batch_shapes(task)
    placed = {
        name: jax.device_put(array, shapes[name].sharding)
        for name, array in batch_of(task).items()
    }
    state, train_step = init_state(task), compile_train_step(task)

    def run(steps: int) -> float:
        nonlocal state
        for _ in range(steps):
            state, metrics = train_step(state, placed)
        return float(metrics["loss"])

    return run


def theirs(config: TrainConfig, devices: list) -> Callable[[int], float]:
    """The same in PyTorch, on the CPU or GPU that is here."""
    import torch
    import transformers

    device = "cuda" if torch.cuda.is_available() else "cpu"
    fields = dataclasses.asdict(config.model)
    sizes = {name: fields[name] for name in SHARED if name in fields}
    model = transformers.T5ForConditionalGeneration(
        transformers.T5Config(**sizes, decoder_start_token_id=0)
    )
    model = model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    arrays = batch_of(abstract_task(config, make_mesh(1, 1, 1, devices=devices)))
    batch = {
        "input_ids": torch.tensor(arrays["input_ids"], device=device).long(),
        "attention_mask": torch.tensor(arrays["attention_mask"], device=device),
        "labels": torch.tensor(arrays["labels"], device=device).long(),
    }

    def run(steps: int) -> float:
        for _ in range(steps):
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return loss.item()

    return run


def print_profile(run: Callable[[int], float]) -> None:
    """What each GPU did in a step, in ms, and the sums of its kernels by kind."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            run(PROFILED)
        for device, kernels in gpu_kernels(pathlib.Path(folder)).items():
            kinds: dict[str, float] = {}
            for kind, (start, end) in kernels:
                kinds[kind] = kinds.get(kind, 0.0) + end - start
            for told in (spent(kernels)._asdict(), kinds):
                each = ((name, ns / PROFILED / 1e6) for name, ns in told.items())
                print(device, ", ".join(f"{name} {ms:.1f}" for name, ms in each))


def main(arguments: list[str]) -> None:
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="of a round")
    parser.add_argument("--preset", default="gsm8k-t5-small")
    parser.add_argument("--alone", action="store_true", help="without PyTorch")
    parser.add_argument("--profile", action="store_true", help="of GPUs")
    options = parser.parse_args(arguments[:cut])
    flags = [] if options.alone else [*DEFAULTS, "--mesh.data=1"]
    config = parse_config(options.preset, [*flags, *arguments[cut + 1 :]], "aot")
    devices = jax.devices() if options.alone else jax.devices()[:1]
    runs = {"ntl_jax": ours(config, devices)}
    if not options.alone:
        runs["PyTorch"] = theirs(config, devices)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for name, run in runs.items():
        start = time.perf_counter()
        losses = [run(1) for _ in range(3)]
        took = time.perf_counter() - start
        print(f"{name}: first three steps {took:.1f} s, {losses}", flush=True)
    for _ in range(options.rounds):
        for name, run in runs.items():
            start = time.perf_counter()
            run(options.steps)
            seconds[name].append((time.perf_counter() - start) / options.steps)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}")
    for name, times in seconds.items():
        print(
            f"{name}: {1e3 * medians[name]:.2f} ms a step, rounds from "
            f"{1e3 * min(times):.2f} to {1e3 * max(times):.2f}"
        )
    if not options.alone:
        print(f"ratio {medians['PyTorch'] / medians['ntl_jax']:.2f}")
    statistics_of = [device.memory_stats() or {} for device in jax.local_devices()]
    if peaks := [of["peak_bytes_in_use"] for of in statistics_of if of]:
        print(f"ntl_jax: {max(peaks) / 2**30:.1f} GiB a device at most")
    if options.profile:
        print_profile(runs["ntl_jax"])


if __name__ == "__main__":
    main(sys.argv[1:])

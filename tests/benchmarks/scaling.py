"""Trains one preset on several meshes of one machine, and compares their speed.

Run as ``python -m tests.benchmarks.scaling 1x1x1 1x2x1 1x1x2`` on a machine with GPUs:
each mesh (data x fsdp x tensor) is a run of `python -m train` of its own, on as many
GPUs as it has, which CUDA_VISIBLE_DEVICES shows it: the first of those that it shows
here. Rows a device are fixed. What follows `--` goes to every run as it is. A run's
speed is the median over its log rows after the first two; MFU counts the matrix
products of a step without recomputation.

The checkpoints are removed, but for those of the mesh named by --keep, of which
``--resume-on`` names the mesh that goes on for ten steps (under a constant schedule).
"""

import argparse
import dataclasses
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

import jax

from tests.benchmarks.profile import gpu_kernels, spent

PROFILED_FROM = 35


class Mesh(NamedTuple):
    data: int
    fsdp: int
    tensor: int

    @classmethod
    def parse(cls, text: str) -> "Mesh":
        return cls(*map(int, text.split("x")))

    @property
    def devices(self) -> int:
        return self.data * self.fsdp * self.tensor

    def __str__(self) -> str:
        return f"{self.data}x{self.fsdp}x{self.tensor}"


def flags_of(mesh: Mesh, options: argparse.Namespace) -> list[str]:
    """What `train` is called with, but for the folder."""
    return [
        *("--steps", str(options.steps), "--log-every", "10"),
        *("--optimizer.warmup-steps", "10"),
        *("--data.batch-size", str(options.rows * mesh.devices)),
        *("--data.max-source-length", str(options.length)),
        *("--data.max-target-length", str(options.length)),
        *("--data.eval-size", "8", "--evaluation.batch-size", str(8 * mesh.devices)),
        *("--evaluation.max-new-tokens", "8", "--profile-at", str(PROFILED_FROM)),
        *("--mesh.data", str(mesh.data), "--mesh.fsdp", str(mesh.fsdp)),
        *("--mesh.tensor", str(mesh.tensor), "--no-cross-entropy-baseline"),
        *options.rest,
    ]


def train(
    mesh: Mesh, options: argparse.Namespace, folder: pathlib.Path, *more: str
) -> float:
    """One run; returns its seconds, start and end included."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(64)))
    environment = os.environ | {
        "CUDA_VISIBLE_DEVICES": ",".join(shown.split(",")[: mesh.devices]),
        "XLA_PYTHON_CLIENT_MEM_FRACTION": ".95",
    }
    if options.cpu:  # to try this script out
        count = f"--xla_force_host_platform_device_count={mesh.devices}"
        environment |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": count}
    command = [sys.executable, "-m", "train", options.preset, *flags_of(mesh, options)]
    start = time.perf_counter()
    with (folder.parent / f"{folder.name}.log").open("a") as log:
        done = subprocess.run(
            [*command, "--run-dir", str(folder), *more],
            env=environment,
            stdout=log,
            stderr=log,
        )
    if done.returncode:
        raise SystemExit(f"mesh {mesh} ended with {done.returncode}: see {log.name}")
    return time.perf_counter() - start


def read(folder: pathlib.Path) -> dict[str, float]:
    """What a finished run tells of its speed and losses."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["kind"] == "train"]
    timed = [row["steps_per_s"] for row in rows[2:] if row["step"] < PROFILED_FROM]
    timed += [row["steps_per_s"] for row in rows if row["step"] > PROFILED_FROM + 15]
    return {
        "ms": 1e3 / statistics.median(timed),
        "fastest ms": 1e3 / max(timed),
        "first loss": rows[0]["loss"],
        "last loss": rows[-1]["loss"],
        "GiB": rows[-1].get("peak_memory_gib", float("nan")),
    }


def shares_of(folder: pathlib.Path) -> dict[str, float]:
    """Of the profiled steps, the share in which the first GPU communicated.

    `collectives`: some collective ran. `exposed`: nothing else ran beside it.
    """
    kernels = gpu_kernels(folder / "profile").get("/device:GPU:0", [])
    if not kernels:
        return {}
    told = spent(kernels)
    return {
        "collectives": told.collectives / told.whole,
        "exposed": told.alone / told.whole,
    }


def lengths_of(folder: pathlib.Path) -> tuple[int, int]:
    """Tokens of a row's two sides, as its batches were padded."""
    log = (folder.parent / f"{folder.name}.log").read_text()
    ((source, target),) = set(re.findall(r"step for \d+ x (\d+) \+ (\d+) tokens", log))
    return int(source), int(target)


def step_flops(options: argparse.Namespace, lengths: tuple[int, int]) -> float:
    """FLOPs of the matrix products of a device's rows, recomputed ones not counted."""
    from ntl_jax.sharding.mesh import make_mesh
    from train.__main__ import parse_config
    from train.aot.compile import abstract_task, batch_shapes
    from train.aot.matmul_flops import matmul_flops
    from train.state import abstract_state
    from train.step import compile_train_step

    flags = flags_of(Mesh(1, 1, 1), options)
    flags += ["--data.max-source-length", str(lengths[0])]
    flags += ["--data.max-target-length", str(lengths[1])]
    config = parse_config(options.preset, flags, "aot")
    model = dataclasses.replace(config.model, remat=False)
    config = dataclasses.replace(config, model=model, accumulate=1, fused_head=False)
    task = abstract_task(config, make_mesh(1, 1, 1))
    traced = compile_train_step(task).trace(abstract_state(task), batch_shapes(task))
    return matmul_flops(traced.jaxpr.jaxpr)


def read_options(arguments: list[str]) -> argparse.Namespace:
    """The options; `rest` is what follows `--`, for the runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("meshes", nargs="+", type=Mesh.parse)
    parser.add_argument("--preset", default="gsm8k-t5-3b")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rows", type=int, default=32, help="a device")
    parser.add_argument("--length", type=int, default=256, help="of each side")
    parser.add_argument("--peak", type=float, default=989.0, help="TFLOP/s a device")
    parser.add_argument("--keep", type=Mesh.parse)
    parser.add_argument("--resume-on", type=Mesh.parse)
    parser.add_argument("--cpu", action="store_true", help="simulated devices")
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:cut])
    options.rest = arguments[cut + 1 :]
    return options


def main() -> None:
    options = read_options(sys.argv[1:])
    jax.config.update("jax_platforms", "cpu")  # here: the GPUs are for the runs
    out = pathlib.Path(os.environ.get("OUT", "."))
    print(
        "| mesh | tokens | TFLOP | ms | tokens/s | MFU | GiB | efficiency | loss |",
        end="",
    )
    print(" shares |\n|---|" + "---:|" * 9, flush=True)
    found, first = [], None
    for mesh in options.meshes:
        folder = out / f"{options.preset}-{mesh}"
        took = train(mesh, options, folder)
        row = read(folder) | shares_of(folder) | {"seconds": took}
        first = first or row["ms"]
        lengths = lengths_of(folder)
        flops = step_flops(options, lengths)
        tokens = options.rows * sum(lengths)
        row["MFU"] = flops / row["ms"] / options.peak / 1e9
        rate = tokens * mesh.devices / row["ms"] * 1e3
        shares = ", ".join(
            f"{k} {row[k]:.3f}" for k in ("collectives", "exposed") if k in row
        )
        print(
            f"| {mesh} | {lengths[0]} + {lengths[1]} | {flops / 1e12:.1f} | "
            f"{row['ms']:.1f} | {rate:,.0f} | {row['MFU']:.3f} | "
            f"{row['GiB']:.1f} | {first / row['ms']:.3f} | "
            f"{row['first loss']:.3f} -> {row['last loss']:.3f} | {shares} |",
            flush=True,
        )
        found.append({"mesh": str(mesh), "tokens/s": rate} | row)
        (out / "scaling.json").write_text(json.dumps(found))
        shutil.rmtree(folder / "profile", ignore_errors=True)
        if mesh != options.keep:
            shutil.rmtree(folder / "checkpoints")
    if options.resume_on and options.keep:
        folder = out / f"{options.preset}-{options.keep}"
        devices = options.keep.devices
        more = ["--data.batch-size", str(options.rows * devices)]
        more += ["--evaluation.batch-size", str(8 * devices)]
        parts = max(1, devices // options.resume_on.devices)  # to fit one as before
        more += ["--accumulate", str(parts)]
        more += ["--steps", str(options.steps + 10), "--resume"]
        train(options.resume_on, options, folder, *more)
        found = read(folder)
        print(f"{options.keep} resumed on {options.resume_on}: {found}")


if __name__ == "__main__":
    main()

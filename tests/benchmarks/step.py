"""Times the train step beside that of Hugging Face's model in PyTorch, on this machine.

Run as ``python -m tests.benchmarks.step``; what follows ``--`` are flags of the preset
`gsm8k-t5-small`, float32 and full rows unless they say otherwise:

    JAX_PLATFORMS=cpu python -m tests.benchmarks.step -- --model.unroll-layers

Both train T5 of one size from random weights on random tokens, with dropout and AdamW:
ours with the preset's losses and all that a run does in a step, PyTorch's with cross
entropy alone. The two take turns, so that what else the machine does meets both.
"""

import argparse
import dataclasses
import statistics
import sys
import time
from collections.abc import Callable

import jax
import numpy as np

from ntl_jax.sharding import make_mesh
from train.__main__ import parse_config
from train.aot import abstract_task, batch_shapes
from train.config import TrainConfig
from train.state import init_state
from train.step import compile_train_step

DEFAULTS = ("--model.dtype=float32", "--data.batch-size=8")
DEFAULTS += ("--data.max-source-length=128", "--data.max-target-length=64")
SHARED = (  # of T5's sizes, named alike in both
    *("d_model", "d_kv", "d_ff", "num_layers", "num_decoder_layers", "num_heads"),
    *("vocab_size", "dropout_rate", "feed_forward_proj"),
)


def batch_of(config: TrainConfig) -> dict[str, np.ndarray]:
    """Random tokens, nothing padded."""
    random, data = np.random.default_rng(0), config.data
    source = (data.batch_size, data.max_source_length)
    target = (data.batch_size, data.max_target_length)
    return {
        "input_ids": random.integers(3, 32_000, source, dtype=np.int32),
        "attention_mask": np.ones(source, bool),
        "labels": random.integers(3, 32_000, target, dtype=np.int32),
    }


def ours(config: TrainConfig) -> Callable[[], float]:
    """A step that returns the loss, of the program that a run compiles."""
    task = abstract_task(config, make_mesh(1, 1, 1, devices=jax.devices()[:1]))
    shapes, batch = batch_shapes(task), batch_of(config)
    placed = {
        name: jax.device_put(batch[name], shapes[name].sharding) for name in batch
    }
    state, train_step = init_state(task), compile_train_step(task)

    def step() -> float:
        nonlocal state
        state, metrics = train_step(state, placed)
        return float(metrics["loss"])

    return step


def theirs(config: TrainConfig) -> Callable[[], float]:
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
    arrays = batch_of(config)
    batch = {
        "input_ids": torch.tensor(arrays["input_ids"], device=device).long(),
        "attention_mask": torch.tensor(arrays["attention_mask"], device=device),
        "labels": torch.tensor(arrays["labels"], device=device).long(),
    }

    def step() -> float:
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


def main(arguments: list[str]) -> None:
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="of a round")
    options = parser.parse_args(arguments[:cut])
    flags = [*DEFAULTS, "--mesh.data=1", *arguments[cut + 1 :]]
    config = parse_config("gsm8k-t5-small", flags, "aot")
    steps = {"ntl_jax": ours(config), "PyTorch": theirs(config)}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for name, step in steps.items():
        start = time.perf_counter()
        losses = [step() for _ in range(3)]
        print(
            f"{name}: first three steps {time.perf_counter() - start:.1f} s, {losses}"
        )
    for _ in range(options.rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            for _ in range(options.steps):
                step()
            seconds[name].append((time.perf_counter() - start) / options.steps)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}")
    for name, times in seconds.items():
        print(
            f"{name}: {1e3 * medians[name]:.0f} ms a step, rounds from "
            f"{1e3 * min(times):.0f} to {1e3 * max(times):.0f}"
        )
    print(f"ratio {medians['PyTorch'] / medians['ntl_jax']:.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])

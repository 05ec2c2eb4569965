"""Times the fused linear head against logits made whole, in time and memory.

Run as ``python -m tests.benchmarks.fused``; --peers times Liger's fused linear
cross-entropy beside it. bfloat16, 8,192 tokens in 32 rows. Memory is what a compiled
program needs beside its arguments and the gradients it returns.
"""

import argparse
import json
import os
import pathlib
from functools import partial

import jax
import jax.numpy as jnp

from ntl_jax import (
    Objective,
    objective_from_hidden,
    stats_from_hidden,
    stats_from_logits,
)
from tests.benchmarks.losses import LENGTH, ROWS, digits_among
from tests.benchmarks.timing import temporaries, time_call

SIZES = ((32_128, 1_024), (50_257, 768), (50_304, 768), (128_256, 2_048))
OBJECTIVE = Objective(ce=1.0, was=0.3)


def draw(size: int, width: int):
    keys = jax.random.split(jax.random.key(0), 4)
    hidden = jax.random.normal(keys[0], (ROWS, LENGTH, width), jnp.bfloat16)
    kernel = 0.02 * jax.random.normal(keys[1], (width, size), jnp.bfloat16)
    text = jax.random.randint(keys[2], (ROWS, LENGTH), 0, size)
    number = jax.random.uniform(keys[3], text.shape) < 0.8
    return hidden, kernel, jnp.where(number, 100 + text % 10, text)


def programs_of(vocab, hidden, kernel, labels, tokens: int, columns: list[int]) -> dict:
    """{name: (function of hidden and kernel, its further arguments)}."""

    def total_of(stats):
        return OBJECTIVE.total(OBJECTIVE(stats, labels, vocab))

    def dense_stats(hidden, kernel):
        return stats_from_logits(hidden @ kernel, labels, vocab)

    def fused_stats(hidden, kernel, **options):
        return stats_from_hidden(hidden, kernel, labels, vocab, **options)

    def fused_total(hidden, kernel):
        return objective_from_hidden(
            OBJECTIVE, hidden, kernel, labels, vocab, tile_tokens=tokens
        )[0]

    def pulled(read, hidden, kernel, cotangent):
        stats, pull = jax.vjp(read, hidden, kernel)
        return stats, pull(cotangent)

    shapes = jax.eval_shape(dense_stats, hidden, kernel)
    cotangent = jax.tree.map(
        lambda x: 1e-4 * jax.random.normal(jax.random.key(5), x.shape), shapes
    )
    ways = {
        "dense": dense_stats,
        f"by tokens, {tokens} a tile": partial(fused_stats, tile_tokens=tokens),
    } | {
        f"by columns, {tile} a tile": partial(
            fused_stats, tile_tokens=tile, backward="columns"
        )
        for tile in columns
    }
    scalar = {
        name: lambda h, k, way=way: total_of(way(h, k)) for name, way in ways.items()
    }
    scalar[f"by tokens, {tokens} a tile"] = fused_total
    programs = {
        f"objective, {name}": (jax.value_and_grad(total, (0, 1)), ())
        for name, total in scalar.items()
    }
    return programs | {
        f"stats, {name}": (partial(pulled, read), (cotangent,))
        for name, read in ways.items()
    }


def measure(size: int, width: int, tokens: int, columns: list[int]) -> dict:
    """{name: (ms, bytes)} at one size of head, for tiles of so many tokens.

    `tokens` where the gradient is cut by tokens, each of `columns` where by columns.
    """
    hidden, kernel, labels = draw(size, width)
    vocab, results = digits_among(size), {}
    programs = programs_of(vocab, hidden, kernel, labels, tokens, columns)
    for name, (function, more) in programs.items():
        compiled = jax.jit(function).lower(hidden, kernel, *more).compile()
        timing = time_call(compiled, hidden, kernel, *more, rounds=5, seconds=0.15)
        results[name] = (timing.ms, temporaries(compiled))
    return {"V": size, "D": width, "results": results}


def print_table(rows: list[dict]) -> None:
    heads = ["V", "D", "program", "ms", "/ dense", "memory", "/ dense"]
    print("| " + " | ".join(heads) + " |\n|" + " --- |" * len(heads))
    for row in rows:
        for name, (ms, size) in row["results"].items():
            kind = name.split(",")[0]
            dense_ms, dense_size = row["results"][f"{kind}, dense"]
            cells = [f"{row['V']:,}", f"{row['D']:,}", name, f"{ms:.2f}"]
            cells += [f"{ms / dense_ms:.2f}", f"{size / 2**20:.0f} MiB"]
            print("| " + " | ".join([*cells, f"{size / dense_size:.1%}"]) + " |")


def time_liger(size: int, width: int) -> float:
    """Milliseconds of Liger's fused linear cross-entropy, forward and backward."""
    import torch
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    from tests.benchmarks.torch_losses import time_step

    loss = LigerFusedLinearCrossEntropyLoss()
    draw = {"device": "cuda", "dtype": torch.bfloat16}
    hidden = torch.randn(ROWS * LENGTH, width, **draw).requires_grad_()
    kernel = (0.02 * torch.randn(size, width, **draw)).requires_grad_()
    labels = torch.randint(0, size, (ROWS * LENGTH,), device="cuda")

    def step():
        hidden.grad = kernel.grad = None
        loss(kernel, hidden, labels).backward()

    return time_step(step, runs=10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=4096, help="of a tile")
    parser.add_argument(
        "--columns", type=int, nargs="*", default=[512, 1024], help="tokens of a tile"
    )
    parser.add_argument("--peers", action="store_true", help="Liger too")
    options = parser.parse_args()
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}\n")
    rows = [measure(*size, options.tokens, options.columns) for size in SIZES]
    print_table(rows)
    report = {"card": jax.devices()[0].device_kind, "rows": rows}
    if options.peers:
        report["liger"] = {str(size): time_liger(*size) for size in SIZES}
        print("Liger, ms:", report["liger"])
    out = pathlib.Path(os.environ.get("OUT", "."))
    (out / "fused.json").write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()

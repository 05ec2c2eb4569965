"""Times attention forward and backward: XLA's program, the Triton kernels, cuDNN.

Run as ``python -m tests.benchmarks.attention`` on a GPU. bfloat16, operands random,
one layer; T5's has a bias with a gradient and rows padded on the right. A table of
milliseconds, of bytes beside arguments and results, and of the largest difference from
the same attention in float32 (of output and gradients, relative to each one's largest
number). --tune times every kernel on its own, for the tiles that it may be given.
--tiny runs everything on small shapes, interpreted where there is no GPU.
"""

import argparse
import dataclasses
import json
import os
import pathlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax
import jax.numpy as jnp

from ntl_jax.kernels.attention import gpu
from ntl_jax.kernels.attention.dispatch import attend
from ntl_jax.kernels.attention.flash import flash_attention
from ntl_jax.kernels.attention.tiles import (
    Operands,
    Options,
    Tile,
    Tiles,
    default_tiles,
)
from ntl_jax.kernels.dropout import DropoutSite
from tests.benchmarks.timing import temporaries, time_call

KEY = jax.random.key(0)
CANDIDATES = {  # tiles beside the default ones, for all kernels at once
    "32x32": Tiles(*[Tile(32, 32)] * 4),
    "64x64": Tiles(*[Tile(64, 64)] * 4),
    "64x64, 3 stages": Tiles(*[Tile(64, 64, 4, 3)] * 4),
    "128x64, 8 warps": Tiles(*[Tile(128, 64, 8)] * 4),
}
TUNED = [
    Tile(queries, keys, warps, stages)
    for queries, keys in ((32, 64), (64, 32), (64, 64), (128, 32), (64, 128), (128, 64))
    for warps, stages in ((4, 2), (4, 3), (8, 2))
    if (warps == 4) == (queries * keys <= 64 * 64) or queries * keys == 64 * 64
]


@dataclasses.dataclass(frozen=True)
class Case:
    """One layer's attention."""

    rows: int
    length: int
    heads: int
    groups: int
    width: int
    biased: bool  # and padded, and not causal
    rate: float
    padded: bool = True

    def draw(self):
        """q, k, v, the bias, the mask and a cotangent."""
        keys = jax.random.split(KEY, 6)
        shape = (self.rows, self.length, self.heads, self.width)
        key_shape = (self.rows, self.length, self.groups, self.width)
        q, k, v, cotangent = (
            jax.random.normal(key, of, jnp.bfloat16)
            for key, of in zip(
                keys[:4], (shape, key_shape, key_shape, shape), strict=True
            )
        )
        if not self.biased:
            return q, k, v, None, None, cotangent
        # As after training: scores of T5 are not scaled, its q are small.
        q = q * jnp.bfloat16(self.width**-0.5)
        square = (1, self.heads, self.length, self.length)
        bias = jax.random.normal(keys[4], square)
        if not self.padded:
            return q, k, v, bias, None, cotangent
        least = 3 * self.length // 4
        lengths = jax.random.randint(keys[5], (self.rows,), least, self.length + 1)
        mask = jnp.arange(self.length)[None] < lengths[:, None]
        return q, k, v, bias, mask[:, None, None], cotangent

    def run(self, attention: Callable, q, k, v, bias, mask, cotangent, key):
        """The output, and the gradients of q, k, v and the bias."""
        dropout = DropoutSite(self.rate, key) if self.rate else None

        def of(q, k, v, bias):
            return attention(
                q,
                k,
                v,
                scale=1.0 if self.biased else self.width**-0.5,
                bias=bias,
                mask=mask,
                causal=not self.biased,
                dropout=dropout,
            )

        out, pull = jax.vjp(of, q, k, v, bias)
        return out, pull(cotangent.astype(out.dtype))


CASES = {
    "T5-small, 512": Case(32, 512, 8, 8, 64, True, 0.1),
    "T5-small, 512, no dropout": Case(32, 512, 8, 8, 64, True, 0.0),
    "T5-small, 512, no padding": Case(32, 512, 8, 8, 64, True, 0.0, False),
    "T5-small, 256": Case(32, 256, 8, 8, 64, True, 0.1),
    "T5-small, 128": Case(64, 128, 8, 8, 64, True, 0.1),
    "T5-small, 64": Case(256, 64, 8, 8, 64, True, 0.1),
    "T5-small, 32": Case(512, 32, 8, 8, 64, True, 0.1),
    "GPT-2, 32": Case(512, 32, 12, 12, 64, False, 0.1),
    "T5-3B, 256": Case(32, 256, 32, 32, 128, True, 0.1),
    "T5-3B, 256, no dropout": Case(32, 256, 32, 32, 128, True, 0.0),
    "GPT-2, 1024": Case(8, 1024, 12, 12, 64, False, 0.1),
    "GPT-2, 1024, no dropout": Case(8, 1024, 12, 12, 64, False, 0.0),
    "Granite 2B, 2048": Case(4, 2048, 32, 8, 64, False, 0.0),
}
TINY = {
    "T5, tiny": Case(2, 40, 2, 2, 16, True, 0.1),
    "GPT-2, tiny": Case(2, 40, 2, 1, 16, False, 0.0),
}


def ways_of(case: Case, interpret: bool, candidates: dict) -> dict[str, Callable]:
    """{name: attention}, XLA's first."""
    kernels = partial(flash_attention, interpret=interpret)
    ways: dict[str, Callable] = {
        "xla": partial(attend, implementation="xla"),
        "triton": kernels,
    }
    for name, tiles in candidates.items():
        ways[f"triton, {name}"] = partial(kernels, tiles=tiles)
    if not interpret and not case.rate:
        ways["cudnn"] = partial(attend, implementation="cudnn")
    return ways


def exact(case: Case, operands, key):
    """The same attention in float32."""
    with jax.default_matmul_precision("highest"):
        wide = jax.tree.map(
            lambda x: x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x, operands
        )
        attention = partial(attend, implementation="xla")
        return jax.jit(partial(case.run, attention))(*wide, key)


@jax.jit
def largest_difference(got, want):
    """Of output and gradients, relative to each one's largest number."""
    errors = jax.tree.map(
        lambda g, w: jnp.abs(g.astype(jnp.float32) - w).max() / jnp.abs(w).max(),
        got,
        want,
    )
    return jnp.stack(jax.tree.leaves(errors)).max()


def compiled_or_why(run: Callable, operands):
    """The compiled program, or the error that says why there is none."""
    try:
        return jax.jit(run).lower(*operands).compile()
    except (ValueError, NotImplementedError, RuntimeError) as error:
        return error  # a compiler's too: tiles may not fit


def compile_all(jobs: list[tuple[Callable, tuple]]) -> list:
    """Programs, or errors, of functions and their operands, several at once."""
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda job: compiled_or_why(*job), jobs))


def measure(name: str, case: Case, programs: dict) -> list[dict]:
    """Prints and returns a row a way."""
    operands = case.draw()
    want = exact(case, operands, KEY)
    rows: list[dict] = []
    for way, program in programs.items():
        if isinstance(program, Exception):
            first = str(program).strip().splitlines()[0][:60]
            print(f"| {name} | {way} | {type(program).__name__}: {first} | | | |")
            rows.append({"case": name, "way": way, "error": str(program)})
            continue
        difference = float(largest_difference(program(*operands, KEY), want))
        timing = time_call(program, *operands, KEY, rounds=7, seconds=0.05)
        row = {
            "case": name,
            "way": way,
            "ms": timing.ms,
            "spread": timing.spread,
            "bytes": temporaries(program),
            "difference": difference,
        }
        rows.append(row)
        ratio = rows[0]["ms"] / timing.ms
        cells = [name, way, f"{timing.ms:.3f}", f"{ratio:.2f}"]
        cells += [f"{row['bytes'] / 2**20:,.0f}", f"{difference:.1e}"]
        print("| " + " | ".join(cells) + " |", flush=True)
    return rows


def compare(cases: dict[str, Case], interpret: bool, candidates: dict) -> list[dict]:
    """Rows of all cases and ways."""
    print("| case | way | ms | times as fast | MiB | difference |")
    print("|---|---|" + "---:|" * 4)
    jobs = {
        (name, way): (partial(case.run, attention), (*shapes, KEY))
        for name, case in cases.items()
        for shapes in [jax.eval_shape(case.draw)]
        for way, attention in ways_of(case, interpret, candidates).items()
    }
    programs = dict(zip(jobs, compile_all(list(jobs.values())), strict=True))
    rows = []
    for name, case in cases.items():
        own = {way: program for (of, way), program in programs.items() if of == name}
        rows += measure(name, case, own)
    return rows


def kernels_of(case: Case, tile: Tile, interpret: bool) -> dict[str, Callable]:
    """{kernel: it alone}, of operands, cotangent, log_sums and means."""
    scale = 1.0 if case.biased else case.width**-0.5
    tiles = Tiles(*[tile] * 4)
    options = Options(scale, not case.biased, case.rate, tiles, interpret)

    def backward(parts: slice, x, cotangent, log_sums, means):
        # The compiler leaves out what is not returned.
        given = (x, cotangent, log_sums, means)
        return gpu.backward(*given, options)[parts]

    kernels: dict[str, Callable] = {
        "forward": lambda x, *_: gpu.forward(x, options),
        "dq": partial(backward, slice(0, 1)),
        "dk, dv": partial(backward, slice(1, 3)),
    }
    return kernels | ({"dbias": partial(backward, slice(3, 4))} if case.biased else {})


def tune(name: str, case: Case, tiles: list[Tile], interpret: bool) -> list[dict]:
    """Prints and returns each kernel's times, the fastest first."""
    q, k, v, bias, mask, cotangent = case.draw()
    hashes = None
    if case.rate:
        dropout = DropoutSite(case.rate, KEY)
        hashes = (*dropout.row_hashes(case.rows), jnp.zeros(case.rows, jnp.uint32))
    seen = None if mask is None else mask[:, 0, 0].astype(jnp.int8)
    x = Operands(q, k, v, bias, seen, hashes)
    per_query = jnp.zeros((case.rows, case.heads, case.length))
    given = (x, cotangent, per_query + 8.0, per_query)
    default = default_tiles(case.width, 2)
    rows: list[dict] = []
    jobs = [
        (kernel, tile, run)
        for tile in dict.fromkeys((*default, *tiles))
        for kernel, run in kernels_of(case, tile, interpret).items()
    ]

    programs = compile_all([(run, given) for _, _, run in jobs])
    for (kernel, tile, _), program in zip(jobs, programs, strict=True):
        if isinstance(program, Exception):
            continue  # these tiles do not fit into shared memory
        ms = time_call(program, *given, rounds=5, seconds=0.02).ms
        rows.append({"case": name, "kernel": kernel, "tile": tile, "ms": ms})
    for kernel in dict.fromkeys(row["kernel"] for row in rows):
        of_kernel = [row for row in rows if row["kernel"] == kernel]
        for row in sorted(of_kernel, key=lambda row: row["ms"])[:4]:
            tile = ", ".join(map(str, row["tile"]))
            print(f"| {name} | {kernel} | {tile} | {row['ms']:.3f} |", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="*", default=None)
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    cases = TINY if options.tiny else CASES
    names = list(cases) if options.cases is None else options.cases
    interpret = jax.default_backend() != "gpu"
    if interpret and not options.tiny:
        parser.error("there is no GPU; --tiny runs everything interpreted")
    device = jax.devices()[0].device_kind
    print(f"{device}, jax {jax.__version__}\n")
    chosen = {name: cases[name] for name in names}
    if options.tune:
        print(
            "| case | kernel | queries, keys, warps, stages | ms |\n|---|---|---|---:|"
        )
        tiles = TUNED[:1] if options.tiny else TUNED
        rows = [
            row
            for name, case in chosen.items()
            for row in tune(name, case, tiles, interpret)
        ]
    else:
        rows = compare(chosen, interpret, {} if options.tiny else CANDIDATES)
    out = pathlib.Path(os.environ.get("OUT", "."))
    (out / "attention.json").write_text(json.dumps({"card": device, "rows": rows}))


if __name__ == "__main__":
    main()

"""Times one forward and backward pass of every released size, and its memory.

Run as ``python -m tests.benchmarks.models`` on the device to measure. Random weights,
parameters float32, compute bfloat16, no dropout, cross-entropy + 0.3 NTL-WAS. 16 rows
of 256 source and 256 target tokens, or of 512 tokens for a decoder-only model. FLOPs
are 6 per token and parameter that it meets, recomputation not counted. Memory is the
compiled program's: parameters, gradients and temporaries.
"""

import argparse
import json
import os
import pathlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax
import jax.numpy as jnp

from ntl_jax import NumberVocab, Objective, stats_from_logits
from ntl_jax.models import (
    Config,
    GPT2Config,
    GraniteConfig,
    T5Config,
    bind,
    count_parameters,
    init_params,
)
from ntl_jax.models.layers import Unroll
from tests.benchmarks.timing import add_unroll, time_call

ROWS, LENGTH = 16, 512
SIZES: dict[str, tuple[partial[Config], bool]] = {  # name: (config, recompute layers)
    "T5-small": (partial(T5Config.small), False),
    "T5-base": (partial(T5Config.base), False),
    "T5-large": (partial(T5Config.large), False),
    "T5-3B": (partial(T5Config.t5_3b), True),
    "GPT-2": (partial(GPT2Config.small), False),
    "GPT-2 medium": (partial(GPT2Config.medium), False),
    "GPT-2 large": (partial(GPT2Config.large), True),
    "GPT-2 XL": (partial(GPT2Config.xl), True),
    "Granite 3.2 2B": (partial(GraniteConfig.granite_3_2_2b), True),
    "Granite 3.1 1B-A400M": (partial(GraniteConfig.granite_3_1_1b_a400m), True),
}
OBJECTIVE = Objective(ce=1.0, was=0.3)


def compiled_pass(config: Config):
    """(the compiled pass, its parameters' shapes)."""
    vocab = NumberVocab.from_mapping(
        {"a": 0} | {str(d): d + 10 for d in range(10)}, vocab_size=config.vocab_size
    )
    shapes = jax.eval_shape(partial(init_params, config), jax.random.key(0))

    def loss(params, ids, labels):
        model = bind(config, params)
        inputs = (ids, labels) if isinstance(config, T5Config) else (ids,)
        hidden = model.hidden(*inputs)  # type: ignore[operator]
        logits = model.logits(hidden, aligned=True)
        stats = stats_from_logits(logits, labels, vocab)
        return OBJECTIVE.total(OBJECTIVE(stats, labels, vocab))

    length = LENGTH // 2 if isinstance(config, T5Config) else LENGTH
    ids = jax.ShapeDtypeStruct((ROWS, length), jnp.int32)
    return jax.jit(jax.value_and_grad(loss)).lower(shapes, ids, ids).compile()


def parameters_met(config: Config, shapes) -> int:
    """Parameters that a token meets: of the experts, those that it is sent to."""
    total = count_parameters(shapes, config)
    if isinstance(config, GraniteConfig) and config.num_local_experts:
        experts = count_parameters(shapes["layers"]["mlp"])
        share = config.num_experts_per_tok / config.num_local_experts
        total -= round(experts * (1 - share))
    return total


def config_of(name: str, unroll: Unroll) -> Config:
    make, remat = SIZES[name]
    return make(dtype="bfloat16", remat=remat, unroll_layers=unroll)


def measure(name: str, config: Config, compiled) -> dict:
    params = jax.jit(init_params, static_argnums=0)(config, jax.random.key(0))
    length = LENGTH // 2 if isinstance(config, T5Config) else LENGTH
    draw = jax.random.randint(jax.random.key(1), (2, ROWS, length), 0, 50)
    timing = time_call(compiled, params, *draw, rounds=5, seconds=0.3)
    memory = compiled.memory_analysis()
    used = memory.argument_size_in_bytes + memory.output_size_in_bytes
    # Of an encoder-decoder each half of the tokens meets about half.
    flops = 6 * parameters_met(config, params) * ROWS * length
    return {
        "model": name,
        "parameters": count_parameters(params, config),
        "recomputed": config.remat,
        "ms": timing.ms,
        "tokens a second": ROWS * LENGTH / timing.ms * 1e3,
        "TFLOP/s": flops / timing.ms / 1e9,
        "GiB": (used + memory.temp_size_in_bytes) / 2**30,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(SIZES), choices=SIZES)
    add_unroll(parser)
    options = parser.parse_args()
    configs = {name: config_of(name, options.unroll) for name in options.models}
    device = jax.devices()[0].device_kind
    print(f"{device}, jax {jax.__version__}\n")
    heads = ["model", "parameters", "recomputed", "ms", "tokens a second", "TFLOP/s"]
    print("| " + " | ".join([*heads, "GiB"]) + " |\n|---|---:|---|" + "---:|" * 4)
    rows = []
    with ThreadPoolExecutor(4) as pool:
        waiting = {
            name: pool.submit(compiled_pass, config) for name, config in configs.items()
        }
        compiled = {name: future.result() for name, future in waiting.items()}
    for name in options.models:
        row = measure(name, configs[name], compiled.pop(name))
        rows.append(row)
        cells = [name, f"{row['parameters']:,}", "yes" if row["recomputed"] else "no"]
        cells += [f"{row['ms']:.1f}", f"{row['tokens a second']:,.0f}"]
        cells += [f"{row['TFLOP/s']:.0f}", f"{row['GiB']:.1f}"]
        print("| " + " | ".join(cells) + " |", flush=True)
    out = pathlib.Path(os.environ.get("OUT", "."))
    (out / "models.json").write_text(json.dumps({"card": device, "rows": rows}))


if __name__ == "__main__":
    main()

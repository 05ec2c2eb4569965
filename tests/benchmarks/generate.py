"""Times decoding: tokens a second of T5-small and T5-base, greedy and with 4 beams.

Run as ``python -m tests.benchmarks.generate`` on the device to measure. Prints markdown
and writes generate.json. Random weights, bfloat16, 64 sources of 128 tokens, 64 new
tokens in every row: the end token is held off, so no run is shorter than another.
"""

import argparse
import json
import os
import pathlib
from functools import partial

import jax
import numpy as np

from ntl_jax.generate import beam_search, greedy
from ntl_jax.models import T5Config, init_params
from tests.benchmarks.timing import add_unroll, time_call

ROWS, SOURCE, NEW_TOKENS = 64, 128, 64
SIZES = {"T5-small": T5Config.small, "T5-base": T5Config.base}
BEAMS = (1, 4)
COLUMNS = ("model", "beams", "ms", "spread", "tokens a second", "ms a step")


def answer(config, beams: int, length: int):
    """A function of parameters and sources that gives answers of `length` tokens."""
    fixed = {"max_new_tokens": length, "min_new_tokens": length}
    if beams == 1:
        return partial(greedy, config, **fixed)
    return partial(beam_search, config, num_beams=beams, **fixed)


def measure(config, beams: int, rows: int, source: int, length: int, rounds: int):
    """Of one line of the table, but for the model's name."""
    params = jax.jit(init_params, static_argnums=0)(config, jax.random.key(0))
    draw = np.random.default_rng(0)
    ids = draw.integers(2, 32_000, (rows, source), dtype=np.int32)
    ids = jax.device_put(ids)
    function = answer(config, beams, length)
    tokens = np.asarray(function(params, ids))
    if tokens.shape != (rows, length) or (tokens == config.eos_token_id).any():
        raise RuntimeError(f"answers of {config} have ended, or are {tokens.shape}")
    timing = time_call(function, params, ids, rounds=rounds)
    rate = rows * length / timing.ms * 1e3
    numbers = (timing.ms, timing.spread, rate, timing.ms / length)
    return dict(zip(COLUMNS[1:], (beams, *numbers), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(SIZES), choices=SIZES)
    parser.add_argument("--beams", nargs="*", type=int, default=list(BEAMS))
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--source", type=int, default=SOURCE)
    parser.add_argument("--new-tokens", type=int, default=NEW_TOKENS)
    parser.add_argument("--attention", default="auto")
    add_unroll(parser)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    options = parser.parse_args()
    sizes = (options.rows, options.source, options.new_tokens)
    device = jax.devices()[0].device_kind
    print(f"{device}, jax {jax.__version__}, bfloat16, {sizes[0]} rows, ", end="")
    print(f"{sizes[1]} source tokens, {sizes[2]} new tokens\n")
    print("| " + " | ".join(COLUMNS) + " |\n|---|" + "---:|" * (len(COLUMNS) - 1))
    lines = []
    for name in options.models:
        for beams in options.beams:
            config = SIZES[name](
                dtype="bfloat16",
                attention=options.attention,
                unroll_layers=options.unroll,
            )
            line = {"model": name} | measure(config, beams, *sizes, options.rounds)
            lines.append(line)
            print(
                f"| {name} | {beams} | {line['ms']:.2f} | {line['spread']:.1%} | "
                f"{line['tokens a second']:,.0f} | {line['ms a step']:.3f} |",
                flush=True,
            )
    report = {"device": device, "jax": jax.__version__, "sizes": sizes, "runs": lines}
    path = pathlib.Path(options.out, "generate.json")
    path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()

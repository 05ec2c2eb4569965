"""How the benchmarks time a compiled function on one device."""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import jax


class Timing(NamedTuple):
    """Milliseconds of one call.

    Attributes:
        ms: the median over the rounds.
        spread: (slowest - fastest) / fastest of the middle half of the rounds.
    """

    ms: float
    spread: float


def add_unroll(parser: argparse.ArgumentParser) -> None:
    """Adds ``--unroll``, a value of a model's `unroll_layers`."""
    choices = {"auto": "auto", "True": True, "False": False}
    parser.add_argument(
        "--unroll",
        type=lambda word: choices.get(word, word),
        choices=[*choices.values()],
        default="auto",
    )


def time_call(
    function: Callable, *operands, rounds: int = 11, seconds: float = 0.08
) -> Timing:
    """Times a jitted function by the calls that a device finishes back to back.

    Calls are queued without waiting, so what the host takes to launch one is hidden
    as long as the device takes longer.

    Args:
        function: compiled, or compiled by its first call.
        *operands: what it is called with.
        rounds: how often to measure.
        seconds: how long a round lasts at least.

    Returns:
        The Timing of one call.
    """
    jax.block_until_ready(function(*operands))
    start = time.perf_counter()
    jax.block_until_ready(function(*operands))
    calls = max(3, int(seconds / max(time.perf_counter() - start, 1e-6)))
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        for _ in range(calls):
            result = function(*operands)
        jax.block_until_ready(result)
        times.append((time.perf_counter() - start) / calls * 1e3)
    times = sorted(times[1:])  # the first warms the clocks
    middle = times[rounds // 4 : rounds - rounds // 4]
    return Timing(statistics.median(times), middle[-1] / middle[0] - 1)


def temporaries(compiled) -> int:
    """Bytes that a compiled program needs beside its arguments and results."""
    return compiled.memory_analysis().temp_size_in_bytes

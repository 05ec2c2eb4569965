"""What a program does, and what its devices send each other behind the partitioner.

Later passes of the compiler for CPUs turn bfloat16 into float32, those for TPUs and
GPUs do not; so the program is read before them.
"""

import re
from typing import NamedTuple


class Sent(NamedTuple):
    """One array of one collective operation, and what it is sent for."""

    operation: str
    dtype: str
    shape: tuple[int, ...]
    name: str


_COLLECTIVE = re.compile(
    r"= (?P<results>.*?) (?P<name>all-gather|all-reduce|reduce-scatter|all-to-all|"
    r"collective-permute)(-start)?\("
)
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")
_NAME = re.compile(r'op_name="([^"]*)"')


def sent_by(lowered, folder) -> list[Sent]:
    """All that the devices of a lowered program send each other.

    Args:
        lowered: what `jax.jit(...).lower` gives.
        folder: an empty one, for what the compiler writes.
    """
    options = {"xla_dump_to": str(folder), "xla_dump_hlo_pass_re": "spmd-partition.*"}
    lowered.compile(compiler_options=options)
    (file,) = folder.glob("*after_spmd-partitioning*")
    found = []
    for line in file.read_text().splitlines():
        match = _COLLECTIVE.search(line)
        if match is None:
            continue
        name = _NAME.search(line)
        for dtype, sizes in _ARRAY.findall(match["results"]):
            shape = tuple(int(size) for size in sizes.split(",") if size)
            found.append(Sent(match["name"], dtype, shape, name[1] if name else ""))
    assert found
    return found


def lines_of(lowered, operation: str) -> list[str]:
    """The lines with an operation of a lowered program, before a compiler's passes."""
    return [line for line in lowered.as_text().splitlines() if operation in line]

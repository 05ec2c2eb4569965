"""The collectives of a compiled program, loops counted as often as they run.

XLA's own cost analysis counts the body of a loop once, however many layers it stands
for. Here the optimised HLO is read: loops say how often they run.
"""

import dataclasses
import math
import re
from collections import Counter

COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "ragged-all-to-all",
)

_BITS = {"pred": 8, "s4": 4, "u4": 4, "bf16": 16, "f8e4m3fn": 8, "f8e5m2": 8}
_SHAPE = re.compile(r"\b(pred|[suf]\d+|bf16|f8e4m3fn|f8e5m2|c64|c128)\[([\d,]*)\]")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")
_OPCODE = re.compile(r"(?:^|[\s)}\]])([a-z][a-z0-9\-]*)\(")
_CALLED = re.compile(r"(?:body|to_apply|calls|branch_computations)=\{?(%?[\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CALLING = {"while", "call", "conditional", "async-start", "fusion"}


@dataclasses.dataclass
class Costs:
    """What one device sends in one run of the program.

    Attributes:
        collectives: bytes of the results of each kind of collective.
        calls: how many of each kind run.
        largest: the largest result of each kind, in bytes and as HLO prints it.
        channels: of the collectives counted so far. A TPU overlaps one with other work
            as several instructions, which hold copies of it on the same channel.
    """

    collectives: dict[str, float] = dataclasses.field(default_factory=dict)
    calls: Counter[str] = dataclasses.field(default_factory=Counter)
    largest: dict[str, tuple[float, str]] = dataclasses.field(default_factory=dict)
    channels: set[str] = dataclasses.field(default_factory=set)


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of HLO."""

    name: str
    opcode: str
    shape: str
    operands: tuple[str, ...]
    called: tuple[str, ...]
    trips: int | None  # iterations of a loop, where it says so
    condition: str | None
    text: str


def costs_of(hlo: str) -> Costs:
    """Reads the text of an optimised HLO module.

    Args:
        hlo: what `jax.stages.Compiled.as_text` returns.

    Raises:
        ValueError: the length of a loop is not known, or there is no entry.

    >>> hlo = '''
    ... ENTRY %main (p: f32[8]) -> f32[32] {
    ...   %p = f32[8]{0} parameter(0)
    ...   ROOT %all-gather.1 = f32[32]{0} all-gather(f32[8]{0} %p), dimensions={0}
    ... }
    ... '''
    >>> costs = costs_of(hlo)
    >>> costs.collectives["all-gather"], costs.calls["all-gather"]
    (128.0, 1)
    """
    computations, entry = parse(hlo)
    costs = Costs()
    _add(costs, computations, entry, 1)
    return costs


def parse(hlo: str) -> tuple[dict[str, list[Instruction]], str]:
    """({computation: its instructions}, the entry's name)."""
    computations: dict[str, list[Instruction]] = {}
    entry, lines = None, None
    for line in hlo.splitlines():
        head = re.match(r"^(ENTRY )?%?([\w.\-]+) .*\{\s*$", line)
        if head and "=" not in line.split("(")[0]:
            lines = computations.setdefault(head[2], [])
            entry = head[2] if head[1] else entry
        elif lines is not None and (found := _INSTRUCTION.match(line)):
            instruction = _read(found[1], found[2])
            if instruction is not None:
                lines.append(instruction)
    if entry is None:
        raise ValueError("not an HLO module: it has no ENTRY computation.")
    return computations, entry


def _read(name: str, rest: str) -> Instruction | None:
    opcode = _OPCODE.search(" " + rest)
    if opcode is None:
        return None
    shape, arguments = rest[: opcode.start()], rest[opcode.end() - 1 :]
    depth, end = 1, len(arguments)
    for place, letter in enumerate(arguments):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            end = place
            break
    trips = _TRIPS.search(rest)
    condition = re.search(r"condition=%?([\w.\-]+)", rest)
    called = [match.lstrip("%") for match in _CALLED.findall(rest)]
    if opcode[1] == "conditional":
        branches = re.search(r"branch_computations=\{([^}]*)\}", rest)
        called = (
            [x.strip().lstrip("%") for x in branches[1].split(",")] if branches else []
        )
    return Instruction(
        name=name,
        opcode=opcode[1],
        shape=shape.strip(),
        operands=tuple(re.findall(r"%([\w.\-]+)", arguments[:end])),
        called=tuple(called),
        trips=int(trips[1]) if trips else None,
        condition=condition[1] if condition else None,
        text=rest,
    )


def _array_bytes(array: tuple[str, str]) -> float:
    kind, dimensions = array
    bits = _BITS.get(kind) or int(re.sub(r"\D", "", kind))
    return bits / 8 * math.prod(int(size) for size in dimensions.split(",") if size)


def _sent(line: Instruction) -> float:
    """Bytes of a collective's results.

    An asynchronous one also lists its operands, before the results, and scratch space
    after them; the larger of operands and results is what is sent.
    """
    sizes = [_array_bytes(array) for array in _SHAPE.findall(line.shape)]
    if line.opcode.endswith("-start") and line.opcode != "all-reduce-start":
        several = len(line.operands)
        return max(sum(sizes[:several]), sum(sizes[several : 2 * several]))
    return sum(sizes)


def _trips(computations: dict[str, list[Instruction]], loop: Instruction) -> int:
    """Iterations of a loop: as annotated, or what its counter is compared with.

    `jax.lax.scan` counts up from 0 by ones.
    """
    if loop.trips is not None:
        return loop.trips
    lines = {line.name: line for line in computations[loop.condition or ""]}
    for line in lines.values():
        if line.opcode == "compare" and "direction=LT" in line.text:
            constant = lines.get(line.operands[1])
            if constant and (value := re.search(r"constant\((\d+)\)", constant.text)):
                return int(value[1])
    raise ValueError(f"the length of loop {loop.name} is not known.")


def _add(
    costs: Costs,
    computations: dict[str, list[Instruction]],
    name: str,
    times: int,
) -> None:
    """Adds the collectives of a computation that runs `times` times."""
    for line in computations[name]:
        runs = times * _trips(computations, line) if line.opcode == "while" else times
        if line.opcode in _CALLING:
            # A device takes one branch of a conditional: all of them are counted.
            for called in line.called:
                _add(costs, computations, called, runs)
        kind = line.opcode.removesuffix("-start")
        channel = re.search(r"channel_id=(\d+)", line.text)
        seen = channel is not None and channel[1] in costs.channels
        if kind in COLLECTIVES and not seen:
            if channel is not None:
                costs.channels.add(channel[1])
            size = _sent(line)
            costs.collectives[kind] = costs.collectives.get(kind, 0.0) + times * size
            costs.calls[kind] += times
            if size > costs.largest.get(kind, (0.0, ""))[0]:
                costs.largest[kind] = size, line.shape

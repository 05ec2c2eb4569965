"""What a compiled program moves and computes, loops counted as often as they run.

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
_SHAPE = re.compile(
    r"\b(pred|[suf]\d+|bf16|f8e4m3fn|f8e5m2|c64|c128)\[([\d,]*)\](\{[^}]*\})?"
)
# In a layout: an array in one of a TPU's memories beside the units.
_ON_CHIP = re.compile(r"S\([1-4]\)")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_OPCODE = re.compile(r"(?:^|[\s)}\]])([a-z][a-z0-9\-]*)\(")
_CALLED = re.compile(r"(?:body|to_apply|calls|branch_computations)=\{?(%?[\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CALLING = {"while", "call", "conditional", "async-start", "fusion"}
_SLICES = ("dynamic-slice", "slice")
_FREE = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "while",
    "call",
    "conditional",
    "partition-id",
    "replica-id",
    "after-all",
    "iota",
    "broadcast",
}


@dataclasses.dataclass
class Costs:
    """Of one device, for one run of the program.

    Attributes:
        moved: bytes read and written by all instructions, as if each read its operands
            from device memory and wrote its result there.
        collectives: bytes of the results of each kind of collective.
        calls: how often each kind runs.
        largest: the largest result of each kind, in bytes and as it is printed.
        channels: of the collectives that are counted. A TPU runs one beside other work
            as several instructions, which hold copies of it on the same channel.
    """

    moved: float = 0.0
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
    size: float  # bytes of the result in device memory
    operands: tuple[str, ...]
    called: tuple[str, ...]
    trips: int | None  # of a loop, where it says so
    condition: str | None
    root: bool
    text: str


def costs_of(hlo: str) -> Costs:
    """Reads the text of an optimised HLO module.

    Args:
        hlo: what `jax.stages.Compiled.as_text` returns.

    Raises:
        ValueError: a loop does not say how often it runs, or there is no entry.

    >>> hlo = '''
    ... ENTRY %main (p: f32[8]) -> f32[32] {
    ...   %p = f32[8]{0} parameter(0)
    ...   ROOT %all-gather.1 = f32[32]{0} all-gather(f32[8]{0} %p), dimensions={0}
    ... }
    ... '''
    >>> costs = costs_of(hlo)
    >>> costs.collectives["all-gather"], costs.moved
    (128.0, 160.0)
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
            instruction = _read(found[2], found[3], root=found[1] is not None)
            if instruction is not None:
                lines.append(instruction)
    if entry is None:
        raise ValueError("this is no HLO module: it has no ENTRY computation.")
    return computations, entry


def _read(name: str, rest: str, *, root: bool) -> Instruction | None:
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
        size=shape_bytes(shape, on_chip=False),
        operands=tuple(re.findall(r"%([\w.\-]+)", arguments[:end])),
        called=tuple(called),
        trips=int(trips[1]) if trips else None,
        condition=condition[1] if condition else None,
        root=root,
        text=rest,
    )


def shape_bytes(shape: str, *, on_chip: bool = True) -> float:
    """Bytes of a shape as HLO prints it; of a tuple, the sum.

    Args:
        shape: with or without layouts.
        on_chip: whether to count arrays that never reach the device's memory.

    >>> shape_bytes("(f32[2,3]{1,0}, bf16[4]{0:T(128)S(1)}, pred[])")
    33.0
    >>> shape_bytes("(f32[2,3]{1,0}, bf16[4]{0:T(128)S(1)}, pred[])", on_chip=False)
    25.0
    """
    arrays = _SHAPE.findall(shape)
    return sum(_array_bytes(array, on_chip) for array in arrays)


def _array_bytes(array: tuple[str, ...], on_chip: bool) -> float:
    kind, dimensions, layout = array
    if _ON_CHIP.search(layout) and not on_chip:
        return 0.0
    bits = _BITS.get(kind) or int(re.sub(r"\D", "", kind))
    return bits / 8 * math.prod(int(size) for size in dimensions.split(",") if size)


def _sent(line: Instruction) -> float:
    """Bytes of a collective's results.

    One that is started holds its operands before them, and what else it likes after
    them; of these and the results the larger are what travels.
    """
    sizes = [_array_bytes(array, True) for array in _SHAPE.findall(line.shape)]
    if line.opcode.endswith("-start") and line.opcode != "all-reduce-start":
        several = len(line.operands)
        return max(sum(sizes[:several]), sum(sizes[several : 2 * several]))
    return sum(sizes)


def _trips(computations: dict[str, list[Instruction]], loop: Instruction) -> int:
    """How often a loop runs: as it says, or as its counter is compared with.

    `jax.lax.scan` counts from 0 up by ones.
    """
    if loop.trips is not None:
        return loop.trips
    lines = {line.name: line for line in computations[loop.condition or ""]}
    for line in lines.values():
        if line.opcode == "compare" and "direction=LT" in line.text:
            constant = lines.get(line.operands[1])
            if constant and (value := re.search(r"constant\((\d+)\)", constant.text)):
                return int(value[1])
    raise ValueError(f"loop {loop.name} does not say how often it runs.")


def _add(
    costs: Costs, computations, name: str, times: int, *, inside: bool = False
) -> None:
    """Adds a computation that runs so often; ``inside`` a fusion nothing is moved."""
    sizes = {line.name: line.size for line in computations[name]}
    for line in computations[name]:
        runs = times * _trips(computations, line) if line.opcode == "while" else times
        if line.opcode in _CALLING:
            # Of branches each device takes one: counted as if it took them all.
            for called in line.called:
                fused = inside or line.opcode == "fusion"
                _add(costs, computations, called, runs, inside=fused)
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
        free = inside or line.opcode in _FREE or line.opcode.endswith("-done")
        if not free:
            costs.moved += times * _moved(computations, line, sizes)


def _moved(
    computations: dict[str, list[Instruction]],
    line: Instruction,
    sizes: dict[str, float],
) -> float:
    """Bytes that an instruction reads and writes; of slices, the slice alone."""
    operands = [sizes.get(operand, 0.0) for operand in line.operands]
    if line.opcode in (*_SLICES, "gather"):
        return 2 * min(line.size, operands[0])
    if line.opcode == "dynamic-update-slice":
        return 2 * min(operands[1], line.size)
    if line.opcode != "fusion" or not line.called:
        return line.size + sum(operands)
    inner = computations[line.called[0]]
    return _written(inner, line.size) + sum(
        _read_by(inner, place, size) for place, size in enumerate(operands)
    )


def _read_by(inner: list[Instruction], place: int, size: float) -> float:
    """What a fusion reads of an operand: of one that it only slices, the slices."""
    names: set[str] = set()
    for line in inner:  # in the order of their use
        given = line.opcode == "parameter" and f"parameter({place})" in line.text
        if given or (line.opcode == "bitcast" and names & set(line.operands)):
            names.add(line.name)
    users = [line for line in inner if names & set(line.operands)]
    users = [line for line in users if line.opcode != "bitcast"]
    whole = [
        line
        for line in users
        if line.opcode not in (*_SLICES, "dynamic-update-slice")
        or line.operands[0] not in names
    ]
    if whole or not users:
        return size
    slices = [line.size for line in users if line.opcode in _SLICES]
    return min(size, sum(slices))


def _written(inner: list[Instruction], size: float) -> float:
    """What a fusion writes: where it updates a slice in place, the slice."""
    lines = {line.name: line for line in inner}
    root = next((line for line in inner if line.root), inner[-1])
    roots = [root]
    if root.opcode == "tuple":
        roots = [lines[name] for name in root.operands if name in lines]
    written = 0.0
    for line in roots:
        while line.opcode == "bitcast" and line.operands[0] in lines:
            line = lines[line.operands[0]]
        updated = line.opcode == "dynamic-update-slice"
        update = lines.get(line.operands[1]) if updated else None
        written += line.size if update is None else update.size
    return min(size, written)

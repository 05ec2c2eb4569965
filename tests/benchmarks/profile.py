"""What a profile of JAX's says of GPUs."""

import pathlib
from typing import NamedTuple

from jax.profiler import ProfileData

_KINDS = {  # of a kernel, by what its name contains
    "collectives": ("nccl",),
    "products": ("gemm", "nvjet", "cublas", "cutlass", "xmma"),
    "attention": ("ntl_attention",),
    "losses": ("ntl_",),
    "copies": ("memcpy",),
}


class Kernel(NamedTuple):
    """One that ran, or a copy.

    Attributes:
        kind: "collectives", "products", "attention", "losses", "copies" or "others".
        span: when it began and ended, in nanoseconds.
    """

    kind: str
    span: tuple[float, float]


def gpu_kernels(folder: pathlib.Path) -> dict[str, list[Kernel]]:
    """All kernels of the one profile under a folder, by GPU."""
    (written,) = folder.rglob("*.xplane.pb")
    found: dict[str, list[Kernel]] = {}
    for plane in ProfileData.from_file(str(written)).planes:
        if not plane.name.startswith("/device:GPU"):
            continue
        kernels = [
            Kernel(
                _kind(event.name), (event.start_ns, event.start_ns + event.duration_ns)
            )
            for line in plane.lines
            if "Stream" in line.name
            for event in line.events
        ]
        if kernels:
            found[plane.name] = kernels
    return found


class Spent(NamedTuple):
    """What a GPU did with its time, in nanoseconds.

    Attributes:
        whole: from the first kernel's begin to the last one's end.
        busy: something ran.
        collectives: some collective ran.
        alone: nothing else ran beside it.
    """

    whole: float
    busy: float
    collectives: float
    alone: float


def spent(kernels: list[Kernel]) -> Spent:
    """Where the time of one GPU's kernels went.

    >>> products, sent = Kernel("products", (0, 6)), Kernel("collectives", (4, 9))
    >>> spent([products, sent, Kernel("copies", (10, 11))])
    Spent(whole=11, busy=10.0, collectives=5.0, alone=3.0)
    """
    spans = [kernel.span for kernel in kernels]
    sent = [kernel.span for kernel in kernels if kernel.kind == "collectives"]
    rest = [kernel.span for kernel in kernels if kernel.kind != "collectives"]
    return Spent(
        whole=max(end for _, end in spans) - min(start for start, _ in spans),
        busy=length(spans),
        collectives=length(sent),
        alone=length(spans) - length(rest),
    )


def length(spans: list[tuple[float, float]]) -> float:
    """Of the union of spans.

    >>> length([(5, 7), (0, 2), (1, 3)])
    5.0
    """
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _kind(name: str) -> str:
    """
    >>> [_kind(x) for x in ("ncclDevKernel_AllGather", "ntl_read_columns", "loop_add")]
    ['collectives', 'losses', 'others']
    """
    for kind, parts in _KINDS.items():
        if any(part in name.lower() for part in parts):
            return kind
    return "others"

"""What accelerators can do: memory, matrix units, memory bandwidth, interconnect."""

from typing import NamedTuple


class Chip(NamedTuple):
    """One device as JAX counts them.

    Attributes:
        memory: bytes of device memory.
        flops: bfloat16 floating-point operations a second.
        bandwidth: of the device memory [bytes/s].
        interconnect: to the other devices of its slice or host, all links, one way
            [bytes/s].
    """

    memory: float
    flops: float
    bandwidth: float
    interconnect: float


_GIB, _GB, _TERA = 2.0**30, 1e9, 1e12

CHIPS: dict[str, Chip] = {
    "TPU v4": Chip(32 * _GIB, 275 * _TERA, 1228 * _GB, 300 * _GB),
    "TPU v5 lite": Chip(16 * _GIB, 197 * _TERA, 819 * _GB, 200 * _GB),
    "TPU v5": Chip(95 * _GIB, 459 * _TERA, 2765 * _GB, 600 * _GB),
    "TPU v6 lite": Chip(32 * _GIB, 918 * _TERA, 1640 * _GB, 448 * _GB),
    "NVIDIA H100 80GB HBM3": Chip(80 * _GIB, 989 * _TERA, 3350 * _GB, 450 * _GB),
    "NVIDIA H200": Chip(141 * _GIB, 989 * _TERA, 4800 * _GB, 450 * _GB),
}
"""By JAX's `device_kind`. Sources: Google Cloud's pages on TPU versions (a slice's
interconnect in Gbit/s, over 8), NVIDIA's data sheets (dense bfloat16)."""

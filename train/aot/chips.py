"""Data sheets of accelerators: memory, peak FLOP/s, interconnect."""

from typing import NamedTuple

from train.aot.gpu_targets import GPU_TARGETS


class Chip(NamedTuple):
    """One device as JAX counts devices.

    Attributes:
        memory: bytes of device memory.
        flops: bfloat16 floating-point operations per second.
        interconnect: to the other devices of its slice or host, all links, one way
            [bytes/s].
    """

    memory: float
    flops: float
    interconnect: float


_GIB, _GB, _TERA = 2.0**30, 1e9, 1e12

CHIPS: dict[str, Chip] = {
    "TPU v4": Chip(32 * _GIB, 275 * _TERA, 300 * _GB),
    "TPU v5 lite": Chip(16 * _GIB, 197 * _TERA, 200 * _GB),
    "TPU v5": Chip(95 * _GIB, 459 * _TERA, 600 * _GB),
    "TPU v6 lite": Chip(32 * _GIB, 918 * _TERA, 448 * _GB),
}
"""By JAX's `device_kind`. Source: Google Cloud's pages on TPU versions (a slice's
interconnect in Gbit/s, over 8)."""

# Dense bfloat16, and NVLink one way. Source: NVIDIA's data sheets.
for _name, _tera, _links in (
    ("a100", 312, 300),
    ("h100", 989, 450),
    ("h200", 989, 450),
    ("b200", 2250, 900),
):
    _target = GPU_TARGETS[_name]
    CHIPS[_target.name] = Chip(_target.memory, _tera * _TERA, _links * _GB)

BETWEEN_HOSTS = 50 * _GB
"""From one GPU to other hosts: a 400 Gbit/s adapter each, as in NVIDIA's DGX."""

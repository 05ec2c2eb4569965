"""What accelerators can do: memory, matrix units, memory bandwidth, interconnect."""

from typing import NamedTuple

from train.aot.gpu_targets import GPU_TARGETS


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
    CHIPS[_target.name] = Chip(
        _target.memory, _tera * _TERA, _target.bandwidth, _links * _GB
    )

BETWEEN_HOSTS = 50 * _GB
"""Of a GPU to those of other hosts: a 400 Gbit/s adapter each, as in NVIDIA's DGX."""

"""NVIDIA GPUs as XLA's compiler describes them, to compile without one.

Sources of the figures: XLA's own descriptions, `xla/backends/gpu/target_config/specs`.
"""

from typing import NamedTuple


class GpuTarget(NamedTuple):
    """One GPU.

    Attributes:
        name: as the driver gives it, which JAX shows as `device_kind`.
        capability: its compute capability, major and minor.
        cores: streaming multiprocessors.
        lanes: float32 units per core.
        shared_memory: bytes per core.
        cache: bytes of the L2 cache.
        clock: GHz.
        memory: bytes that a program can use.
        bandwidth: of the device memory [bytes/s].
    """

    name: str
    capability: tuple[int, int]
    cores: int
    lanes: int
    shared_memory: int
    cache: int
    clock: float
    memory: int
    bandwidth: int

    def as_proto(self) -> str:
        """The text of a `GpuTargetConfigProto`."""
        major, minor = self.capability
        return f"""
gpu_device_info {{
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  core_count: {self.cores}
  fpus_per_core: {self.lanes}
  shared_memory_per_core: {self.shared_memory}
  shared_memory_per_block_optin: {self.shared_memory - 1024}
  shared_memory_per_block: 49152
  l2_cache_size: {self.cache}
  clock_rate_ghz: {self.clock}
  device_memory_size: {self.memory}
  memory_bandwidth: {self.bandwidth}
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: 2048
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "{self.name}"
"""


_A100 = GpuTarget(
    name="NVIDIA A100-SXM4-80GB",
    capability=(8, 0),
    cores=108,
    lanes=64,
    shared_memory=167936,
    cache=41943040,
    clock=1.41,
    memory=85100068864,
    bandwidth=2039040000000,
)
_H100 = GpuTarget(
    name="NVIDIA H100 80GB HBM3",
    capability=(9, 0),
    cores=132,
    lanes=128,
    shared_memory=233472,
    cache=52428800,
    clock=1.98,
    memory=84942979072,
    bandwidth=3352320000000,
)

GPU_TARGETS: dict[str, GpuTarget] = {
    "a100": _A100,
    "h100": _H100,
    "h200": _H100._replace(
        name="NVIDIA H200", memory=150754820096, bandwidth=4800000000000
    ),
    "b200": _H100._replace(
        name="NVIDIA B200",
        capability=(10, 0),
        cores=148,
        cache=132644864,
        clock=1.965,
        memory=191514411008,
        bandwidth=7672320000000,
    ),
}
"""By the name that `--topology` takes: the SXM modules."""

"""The hosts and the mesh of a run, and whether the mesh fits the devices."""

import dataclasses
import math
from typing import Annotated

import tyro

from train.config.ranges import NOT_NEGATIVE, SIZE, check


@dataclasses.dataclass(frozen=True)
class HostsConfig:
    """Several processes that train one model. Under srun, mpirun, Kubernetes and on TPU
    slices the first three flags are found; elsewhere they must be given."""

    coordinator: str | None = None
    """HOST:PORT, host 0's name and a free port there."""
    count: Annotated[int | None, SIZE] = None
    """Number of hosts (processes)."""
    index: Annotated[int | None, NOT_NEGATIVE] = None
    """Index of this host, from 0."""
    timeout: Annotated[int, SIZE] = 600
    """How long hosts wait for each other at the start [s]."""
    heartbeat_timeout: Annotated[
        int, SIZE, tyro.conf.arg(aliases=["--hosts.lost-after"])
    ] = 100
    """How long a host may be silent before it counts as dead, and all others exit
    [s]."""
    stall_timeout: Annotated[
        int, SIZE, tyro.conf.arg(aliases=["--hosts.stuck-after"])
    ] = 3600
    """How long a step, a save or an evaluation batch may take before a host exits, so
    that none waits for one that hangs [s]; reading the data and compiling count."""


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """How many devices each mesh axis takes; -1 takes all that are left."""

    data: int = -1
    """Replicas of the parameters, each with its share of the batch; 1 where another
    axis is -1."""
    fsdp: int = 1
    """Shards of parameters and optimizer state, over which the batch is sharded too."""
    tensor: int = 1
    """Shards of heads, feed-forward units and vocabulary."""


def mesh_shape(mesh: MeshConfig, num_devices: int) -> dict[str, int]:
    """Axis sizes with -1 filled in. Raises ConfigError where they do not fit."""
    shape = dataclasses.asdict(mesh)
    if shape["data"] == -1 and -1 in (shape["fsdp"], shape["tensor"]):
        shape["data"] = 1
    for axis, size in shape.items():
        check(
            size == -1 or size >= 1,
            f"--mesh.{axis} is {size}: give 1 or more, or -1 for all that are left.",
        )
    free = [axis for axis, size in shape.items() if size == -1]
    check(len(free) <= 1, f"only one mesh axis can be -1, not {' and '.join(free)}.")
    fixed = math.prod(size for size in shape.values() if size != -1)
    check(
        num_devices % fixed == 0 if free else fixed == num_devices,
        f"the mesh {shape} does not fill {num_devices} device(s): the product of the "
        f"sizes must be {num_devices}; -1 takes what is left.",
    )
    return shape | {axis: num_devices // fixed for axis in free}

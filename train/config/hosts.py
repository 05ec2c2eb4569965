"""Which process of a run this one is; every field is a command-line flag."""

import dataclasses
from typing import Annotated

import tyro


@dataclasses.dataclass(frozen=True)
class HostsConfig:
    """Several processes that train one model. Under srun, mpirun, Kubernetes and on TPU
    slices the first three flags are found; elsewhere they must be given."""

    coordinator: str | None = None
    """HOST:PORT, host 0's name and a free port there."""
    count: int | None = None
    """Number of hosts (processes)."""
    index: int | None = None
    """Index of this host, from 0."""
    timeout: int = 600
    """How long hosts wait for each other at the start [s]."""
    heartbeat_timeout: Annotated[int, tyro.conf.arg(aliases=["--hosts.lost-after"])] = (
        100
    )
    """How long a host may be silent before it counts as dead, and all others exit
    [s]."""
    stall_timeout: Annotated[int, tyro.conf.arg(aliases=["--hosts.stuck-after"])] = 3600
    """How long a step, a save or an evaluation batch may take before a host exits, so
    that none waits for one that hangs [s]; reading the data and compiling count."""

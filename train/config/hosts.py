"""Which process of a run this one is; every field is a command-line flag."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class HostsConfig:
    """Several processes that train one model; srun, mpirun, Kubernetes and TPU slices
    say of themselves who is who, elsewhere the first three flags do."""

    coordinator: str | None = None
    """HOST:PORT, host 0's name and a free port there."""
    count: int | None = None
    """How many hosts (processes) there are."""
    index: int | None = None
    """Which of them this one is, from 0."""
    timeout: int = 600
    """How long hosts wait for each other at the start [s]."""
    lost_after: int = 100
    """After which silence a host counts as dead, and all others end [s]."""
    stuck_after: int = 3600
    """After how long without a step, a save or an evaluation batch a host ends itself,
    so that none waits for one that hangs [s]; reading the data and compiling take part
    of it."""

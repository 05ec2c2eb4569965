"""One run on many hosts: joining, sharing out a batch, speaking with one voice."""

import collections
import glob
import importlib.util
import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding

from train.config import ConfigError
from train.config.hosts import HostsConfig
from train.multihost.rollcall import roll_call

logger = logging.getLogger("train")

_NO_CLUSTER = "coordinator_address should be defined"  # jax.distributed's own words


def join(config: HostsConfig) -> None:
    """Makes this process one of several, where flags or a launcher say that it is.

    Must come before JAX looks for devices. Launchers are those that
    `jax.distributed.initialize` knows: srun, mpirun, Kubernetes jobs and TPU slices.

    Raises:
        ConfigError: the flags contradict each other, hosts are missing after
            `config.timeout` seconds, or have not all as many devices; the message
            names them.
    """
    if jax.distributed.is_initialized():
        return
    given = [config.coordinator, config.count, config.index]
    if any(value is not None for value in given):
        if any(value is None for value in given):
            raise ConfigError(
                "--hosts.coordinator, --hosts.count and --hosts.index belong together: "
                f"got {given[0]}, {given[1]} and {given[2]}."
            )
        roll_call(config)
        _initialize(config, config.coordinator, config.count, config.index)
    elif found := launcher():
        try:
            _initialize(config)
        except ValueError as error:
            if found != "TPU" or _NO_CLUSTER not in str(error):
                raise ConfigError(
                    f"started by {found}, but JAX cannot tell its hosts from it "
                    f"({error}): give --hosts.coordinator, --hosts.count and "
                    "--hosts.index."
                ) from error
    if jax.distributed.is_initialized():
        _check_devices()


def _check_devices() -> None:
    """JAX's own exchange between hosts takes as many devices of each."""
    counts = collections.Counter(device.process_index for device in jax.devices())
    if len(set(counts.values())) > 1:
        each = ", ".join(f"{counts[host]} on host {host}" for host in sorted(counts))
        raise ConfigError(
            f"every host must have the same number of devices, not {each}: look for "
            "those that are missing, or leave some out (CUDA_VISIBLE_DEVICES)."
        )


def launcher() -> str | None:
    """What started several processes of this run, as the environment tells.

    Raises:
        ConfigError: it counts them by what is no number.
    """
    environment = os.environ
    if _tasks("SLURM_NTASKS") > 1 and "SLURM_LOCALID" in environment:
        return "srun"
    if _tasks("OMPI_COMM_WORLD_SIZE") > 1:
        return "mpirun"
    if "JOB_COMPLETION_INDEX" in environment:
        return "Kubernetes"
    chips = glob.glob("/dev/accel*") + glob.glob("/dev/vfio/[0-9]*")
    wanted = environment.get("JAX_PLATFORMS", "tpu")
    if chips and "tpu" in wanted and importlib.util.find_spec("libtpu"):
        return "TPU"
    return None


def _tasks(variable: str) -> int:
    """How many processes a variable of the environment counts; 1 where it is unset."""
    value = os.environ.get(variable) or "1"
    if not value.isdecimal():
        raise ConfigError(
            f"the environment has {variable}={value}, which is no number: unset it, or "
            "start the run as its launcher does."
        )
    return int(value)


def _initialize(config: HostsConfig, *where: Any) -> None:
    """Where a host stays away, JAX would abort the process; this ends it, and why."""
    late = threading.Timer(config.timeout, _end_alone, (config.timeout,))
    late.daemon = True
    late.start()
    try:
        jax.distributed.initialize(
            *where,
            initialization_timeout=config.timeout + 60,  # _end_alone comes first
            heartbeat_timeout_seconds=config.lost_after,
            # A host that fails does not wait for those that it leaves behind.
            shutdown_timeout_seconds=min(config.timeout, 30),
        )
    finally:
        late.cancel()


def _end_alone(timeout: int) -> None:
    """Ends this process, whose main thread waits in JAX for a host that stays away."""
    print(
        f"error: not every host came within {timeout} s (--hosts.timeout): look at the "
        "logs of the others, or start this one alone.",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)


def several() -> bool:
    """Whether the run has more than one process."""
    return jax.process_count() > 1


def is_coordinator() -> bool:
    """Whether this process writes the files that are written once."""
    return jax.process_index() == 0


def broadcast_from_coordinator(what: Callable[[], Any]) -> Any:
    """What `what` returns on the first host, on every host.

    Args:
        what: called on the first host alone; returns what JSON can hold.

    Raises:
        ConfigError: on every host, where it was raised on the first.
    """
    if not several():
        return what()
    said: dict[str, Any] = {}
    if is_coordinator():
        try:
            said = {"value": what()}
        except ConfigError as error:
            said = {"error": str(error)}
    text = np.frombuffer(json.dumps(said).encode(), np.uint8)
    length = int(multihost_utils.broadcast_one_to_all(np.int32(text.size)))
    padded = np.resize(text, length)
    heard = multihost_utils.broadcast_one_to_all(padded)
    said = json.loads(bytes(np.asarray(heard, np.uint8)))
    if "error" in said:
        raise ConfigError(said["error"])
    return said["value"]


def assert_all_hosts(
    good: bool, message: str, kind: type[ConfigError] = ConfigError
) -> None:
    """Raises an error on every host where `good` is false on one, and names those."""
    if not several():
        if not good:
            raise kind(message)
        return
    flags = np.asarray(multihost_utils.process_allgather(np.asarray(good)))
    bad = np.flatnonzero(~flags.reshape(-1).astype(bool))
    if bad.size:
        where = ", ".join(map(str, bad))
        raise kind(message if not good else f"on host {where} this failed: see there.")


def local_rows(sharding: NamedSharding, batch_size: int) -> np.ndarray:
    """The rows of each global batch that this process's devices hold.

    Args:
        sharding: of the batch; axis 0 is split, and hosts may share rows.
        batch_size: rows over all processes.

    Returns:
        i64 [rows], ascending.
    """
    places = sharding.addressable_devices_indices_map((batch_size,)).values()
    rows = {
        row
        for index in places
        if index is not None
        for row in range(*index[0].indices(batch_size))
    }
    return np.asarray(sorted(rows))


def place(
    batch: dict[str, np.ndarray],
    sharding: NamedSharding,
    rows: np.ndarray,
    batch_size: int,
) -> dict[str, jax.Array]:
    """Puts a batch on the mesh, each process the rows that its devices hold.

    Args:
        batch: arrays [len(rows), ...].
        sharding: of the batch.
        rows: where these rows lie in the batch, ascending; at least `local_rows`.
        batch_size: rows over all processes.

    Returns:
        Arrays [batch_size, ...], the same whatever the number of processes.
    """
    if not several():
        return jax.device_put(batch, sharding)

    def whole(array: np.ndarray) -> jax.Array:
        def part(index: Any) -> np.ndarray:
            start, stop, _ = index[0].indices(batch_size)
            first = int(np.searchsorted(rows, start))
            return array[first : first + stop - start]

        shape = (batch_size, *array.shape[1:])
        return jax.make_array_from_callback(shape, sharding, part)

    return {name: whole(array) for name, array in batch.items()}


def gathered(tree: Any) -> Any:
    """A tree of arrays as NumPy arrays, whole on every host."""
    if not several():
        return jax.device_get(tree)
    return multihost_utils.process_allgather(tree, tiled=True)


def mean_over_hosts(value: float) -> float:
    """The mean of what every host has."""
    if not several():
        return value
    return float(np.mean(multihost_utils.process_allgather(np.float32(value))))


def sync_hosts() -> None:
    """Waits until every host has come to the end of the run."""
    if several():
        multihost_utils.sync_global_devices("end of the run")


def leave(status: int) -> None:
    """Ends a process of several at once: JAX's own end waits for hosts that are gone.

    The others notice, and end too.
    """
    if jax.distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

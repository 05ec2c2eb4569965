"""One run on several hosts: joining, exchanging values, and ending together."""

import collections
import contextlib
import faulthandler
import glob
import importlib.util
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding

from train.config import ConfigError
from train.config.hosts import HostsConfig

_NO_CLUSTER = "coordinator_address should be defined"  # jax.distributed's own words
_stall_timeout: int | None = None  # as faulthandler's timer, one per process


def join(config: HostsConfig) -> None:
    """Makes this process one of several, where flags or a launcher say that it is.

    Must come before JAX looks for devices. Launchers are those that
    `jax.distributed.initialize` knows: srun, mpirun, Kubernetes jobs and TPU slices.

    Raises:
        ConfigError: the flags contradict each other, or the hosts have different
            numbers of devices.
        SystemExit: hosts are missing after `config.timeout` seconds.
    """
    if jax.distributed.is_initialized():
        return
    given = (config.coordinator, config.count, config.index)
    if given != (None, None, None):
        _check_flags(*given)
        _initialize(config, *given)
    elif found := launcher():
        try:
            _initialize(config)
        except ValueError as error:
            if found != "TPU" or _NO_CLUSTER not in str(error):
                raise ConfigError(
                    f"started by {found}, but JAX cannot infer its hosts ({error}): "
                    "give --hosts.coordinator, --hosts.count and --hosts.index."
                ) from error
    if jax.distributed.is_initialized():
        _check_devices()


def _check_flags(address: str | None, count: int | None, index: int | None) -> None:
    if address is None or count is None or index is None:
        raise ConfigError(
            "--hosts.coordinator, --hosts.count and --hosts.index belong together: "
            f"got {address}, {count} and {index}."
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ConfigError(
            f"--hosts.coordinator {address} is not an address: give HOST:PORT, host "
            "0's name and a free port there, the same on every host."
        )
    if not 0 <= index < count:
        raise ConfigError(
            f"--hosts.index {index} must be in 0 to {count - 1}, as --hosts.count is "
            f"{count}."
        )


def _check_devices() -> None:
    """JAX's exchange between hosts needs the same number of devices on each."""
    counts = collections.Counter(device.process_index for device in jax.devices())
    if len(set(counts.values())) > 1:
        each = ", ".join(f"{counts[host]} on host {host}" for host in sorted(counts))
        raise ConfigError(
            f"every host must have the same number of devices, not {each}: look for "
            "those that are missing, or leave some out (CUDA_VISIBLE_DEVICES)."
        )


def launcher() -> str | None:
    """What started several processes of this run, by its environment variables.

    Raises:
        ConfigError: a variable that counts them is not a number.
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
    """The number of processes in an environment variable; 1 where it is unset."""
    value = os.environ.get(variable) or "1"
    if not value.isdecimal():
        raise ConfigError(
            f"the environment has {variable}={value}, which is not a number: unset "
            "it, or start the run with its launcher."
        )
    return int(value)


def _initialize(config: HostsConfig, *cluster: Any) -> None:
    """Joins; where a host is missing, JAX alone would abort with a stack of C++."""
    late = threading.Timer(config.timeout, _end_alone, (config,))
    late.daemon = True
    late.start()
    try:
        jax.distributed.initialize(
            *cluster,
            initialization_timeout=config.timeout + 60,  # _end_alone comes first
            heartbeat_timeout_seconds=config.heartbeat_timeout,
            # A host that fails does not wait for those that it leaves behind.
            shutdown_timeout_seconds=min(config.timeout, 30),
        )
    finally:
        late.cancel()


def _end_alone(config: HostsConfig) -> None:
    """Ends this process, whose main thread waits in JAX for a missing host."""
    coordinator = config.coordinator or "as the launcher says"
    print(
        f"error: not all hosts joined within {config.timeout} s (--hosts.timeout; "
        f"--hosts.coordinator {coordinator}): look at the logs of the others, and "
        "check that each has its own --hosts.index and can reach the coordinator.",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)


@contextlib.contextmanager
def stall_timer(seconds: int) -> Iterator[None]:
    """Ends this process, one of several, where `made_progress` is not called in time.

    Where one host hangs, all others wait for it forever: JAX notices only processes
    that are gone. faulthandler prints where every thread stands, and exits with status
    1. A process that runs alone has no timer.

    Args:
        seconds: how long a step, a save or an evaluation batch may take.
    """
    global _stall_timeout
    _stall_timeout = seconds if several() else None
    made_progress()
    try:
        yield
    finally:
        _stall_timeout = None
        faulthandler.cancel_dump_traceback_later()


def made_progress() -> None:
    """Restarts the stall timer, where one runs."""
    if _stall_timeout is not None:
        faulthandler.dump_traceback_later(_stall_timeout, exit=True)


def several() -> bool:
    """Whether the run has more than one process."""
    return jax.process_count() > 1


def is_coordinator() -> bool:
    """Whether this process writes the files that are written once."""
    return jax.process_index() == 0


def broadcast_from_coordinator(compute: Callable[[], Any]) -> Any:
    """Calls a function on host 0 and returns its result on every host.

    Args:
        compute: called on host 0 alone; returns what JSON can hold.

    Raises:
        ConfigError: on every host, where host 0 raised it.
    """
    if not several():
        return compute()
    message: dict[str, Any] = {}
    if is_coordinator():
        try:
            message = {"value": compute()}
        except ConfigError as error:
            message = {"error": str(error)}
    text = np.frombuffer(json.dumps(message).encode(), np.uint8)
    length = int(multihost_utils.broadcast_one_to_all(np.int32(text.size)))
    payload = multihost_utils.broadcast_one_to_all(np.resize(text, length))
    message = json.loads(bytes(np.asarray(payload, np.uint8)))
    if "error" in message:
        raise ConfigError(message["error"])
    return message["value"]


def assert_all_hosts(
    good: bool, message: str, kind: type[ConfigError] = ConfigError
) -> None:
    """Raises an error on every host where `good` is false on any, and names those."""
    if not several():
        if not good:
            raise kind(message)
        return
    flags = np.asarray(multihost_utils.process_allgather(np.asarray(good)))
    bad = np.flatnonzero(~flags.reshape(-1).astype(bool))
    if bad.size:
        where = ", ".join(map(str, bad))
        raise kind(
            message if not good else f"this failed on host {where}: see its log."
        )


def local_rows(sharding: NamedSharding, batch_size: int) -> np.ndarray:
    """The rows of each global batch that this process's devices hold.

    Args:
        sharding: of the batch; axis 0 is sharded, and hosts may hold the same rows.
        batch_size: rows over all processes.

    Returns:
        i64 [rows], ascending.
    """
    indices = sharding.addressable_devices_indices_map((batch_size,)).values()
    rows = {
        row
        for index in indices
        if index is not None
        for row in range(*index[0].indices(batch_size))
    }
    return np.asarray(sorted(rows))


def global_batch(
    batch: dict[str, np.ndarray], sharding: NamedSharding, batch_size: int
) -> dict[str, jax.Array]:
    """Shards a batch over the mesh.

    Args:
        batch: arrays [rows, ...], of this process's `local_rows` or of all rows.
        sharding: of the batch.
        batch_size: rows over all processes.

    Returns:
        Arrays [batch_size, ...], the same whatever the number of processes.
    """
    shapes = {name: (batch_size, *array.shape[1:]) for name, array in batch.items()}
    return jax.make_array_from_process_local_data(sharding, batch, shapes)


def gathered(tree: Any) -> Any:
    """All-gathers a tree of arrays as NumPy arrays on every host."""
    if not several():
        return jax.device_get(tree)
    return multihost_utils.process_allgather(tree, tiled=True)


def mean_over_hosts(value: float) -> float:
    """The mean of a value over all hosts."""
    if not several():
        return value
    return float(np.mean(multihost_utils.process_allgather(np.float32(value))))


def sync_hosts() -> None:
    """Waits until every host is at the end of the run."""
    if several():
        multihost_utils.sync_global_devices("end of the run")


def leave(status: int) -> None:
    """Exits at once where this process is one of several, and the others follow.

    JAX's own shutdown would wait for hosts that are gone.
    """
    if jax.distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

"""The devices that `--topology` names: TPUs and GPUs, which may be absent."""

import importlib.util
import logging
import math
import os
from typing import Any

import jax
from jax.experimental import topologies

from train.aot.gpu_targets import GPU_TARGETS
from train.config import ConfigError

logger = logging.getLogger("train")

# What libtpu needs to be given without a TPU: (accelerator type, cores per chip in its
# number, the configuration in which a chip is one device).
_TPUS = {
    "v4": ("v4", 2, "megacore"),
    "v5e": ("v5litepod", 1, None),
    "v5p": ("v5p", 2, None),
    "v6e": ("v6e", 1, None),
}
_FLAT = ("v5e", "v6e")  # three sides would abort their compiler and the process
_PLANES = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
"""The slices of these. Source, also of the rule for cubes: Google Cloud's pages on TPU
versions."""
_CUDA_PLUGINS = ("jax_cuda13_plugin", "jax_cuda12_plugin")


def find_devices(topology: str) -> list[Any]:
    """The devices of a topology, or those of this machine.

    Args:
        topology: a TPU and its grid of chips, such as "v5e:4x4"; a GPU and how many,
            "h100:8", or hosts times GPUs of a host, "h100:2x8"; or "local".

    Raises:
        ConfigError: unknown topology, no slice has that shape, or its compiler is not
            installed.
    """
    if topology == "local":
        return jax.devices()
    name, _, grid = topology.partition(":")
    sides = [int(side) if side.isdecimal() else 0 for side in grid.split("x")]
    if min(sides) > 0 and name in _TPUS and len(sides) in (2, 3):
        _check_slice(topology, name, sides)
        return _tpus(topology, name, sides)
    if min(sides) > 0 and name in GPU_TARGETS and len(sides) in (1, 2):
        return _gpus(topology, name, sides)
    raise ConfigError(
        f"--topology {topology}: give 'local', or one of {', '.join(_TPUS)} with a "
        "grid of chips, such as v5e:4x4, v4:2x2x4 or v5p:2x2x2, or one of "
        f"{', '.join(GPU_TARGETS)} with the number of GPUs, such as h100:8, or hosts "
        "and GPUs of each, such as h100:2x8."
    )


def _check_slice(topology: str, name: str, sides: list[int]) -> None:
    """Refuses grids that no TPU has; the compiler would accept them."""
    if name not in _FLAT:
        cube = (*sides, 1)[:3]
        if any(side % 4 for side in cube) and not {1, 2, 4}.issuperset(cube):
            raise ConfigError(
                f"--topology {topology}: there is no such slice of {name}, so give "
                "sides of 1, 2 and 4 chips, or multiples of 4 alone, such as "
                f"{name}:2x2x4 or {name}:4x4x8."
            )
        return
    if math.prod(sides[2:]) != 1:
        raise ConfigError(
            f"--topology {topology}: the chips of {name} lie in a plane, so give "
            f"two sides, such as {name}:{sides[0]}x{sides[1]}."
        )
    if "x".join(map(str, sorted(sides[:2]))) not in _PLANES:
        raise ConfigError(
            f"--topology {topology}: there is no such slice of {name}, so give one of "
            f"{', '.join(_PLANES)}."
        )


def _tpus(topology: str, name: str, sides: list[int]) -> list[Any]:
    if importlib.util.find_spec("libtpu") is None:
        raise ConfigError(
            f"--topology {topology} takes the TPU compiler: pip install 'jax[tpu]'."
        )
    kind, cores, chip_config = _TPUS[name]
    # Without these, libtpu asks the network what machine it runs on.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # no TPU is claimed
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", f"{kind}-{math.prod(sides) * cores}")
    options: dict[str, Any] = {}
    if chip_config is not None:
        options["chip_config_name"] = chip_config
    # A host holds 2 x 2 chips, fewer where a side of the grid is odd.
    options["chips_per_host_bounds"] = [*(2 - side % 2 for side in sides[:2]), 1]
    if os.environ.pop("XLA_FLAGS", None) is not None:
        # It would abort the process at any flag that it does not know.
        logger.warning("XLA_FLAGS are not for the TPU compiler: LIBTPU_INIT_ARGS are.")
    return _described("tpu", topology, options)


def _gpus(topology: str, name: str, sides: list[int]) -> list[Any]:
    if not any(importlib.util.find_spec(plugin) for plugin in _CUDA_PLUGINS):
        raise ConfigError(
            f"--topology {topology} takes the GPU compiler, which needs no GPU: "
            "pip install 'jax[cuda13-local]', with JAX_PLATFORMS=cpu beside it."
        )
    hosts, gpus = sides if len(sides) == 2 else (1, *sides)
    options = {
        "target_config": GPU_TARGETS[name].as_proto(),
        "topology": f"1x{hosts}x{gpus}",
    }
    return _described("cuda", topology, options)


def _described(platform: str, topology: str, options: dict[str, Any]) -> list[Any]:
    jax.config.update("jax_platforms", "cpu")  # for everything else in this process
    try:
        described = topologies.get_topology_desc(
            platform=platform, topology_name=topology, **options
        )
    except jax.errors.JaxRuntimeError as error:
        raise ConfigError(f"--topology {topology}: {first_line(error)}") from error
    return list(described.devices)


def first_line(error: Exception) -> str:
    """The first line of an error that may go on for pages."""
    return str(error).strip().splitlines()[0]

"""The parameters of a finished run, sharded over the devices of this machine."""

import dataclasses
import functools
import logging
import math
import os

import jax
from jax.sharding import Mesh

from ntl_jax.models import AnyConfig, init_params
from ntl_jax.sharding.mesh import make_mesh
from ntl_jax.sharding.rules import param_shardings
from train.checkpointing.checkpointer import Checkpointer
from train.checkpointing.storage import AnyPath
from train.config import ConfigError, MeshConfig, mesh_shape
from train.config.validate import check_attention
from train.multihost.hosts import launcher, several
from train.state import Params, check_heads

logger = logging.getLogger("train")


def fitting_mesh(trained_on: MeshConfig, model: AnyConfig) -> MeshConfig:
    """The mesh of a run, or one that fits this machine's devices.

    The latter has the largest `fsdp` axis that the parameters and the devices allow. It
    is taken, and logged, where the run's mesh needs another number of devices, or its
    parameters take more than half of a device's memory.

    Args:
        trained_on: the run's mesh.
        model: the model's config.
    """
    try:
        if _leaves_room(open_mesh(trained_on, model), model):
            return trained_on
    except ConfigError:
        pass
    found = _most_sharded(model)
    logger.info(
        "the run's mesh does not fit the %d device(s) here: taking --mesh.data %d "
        "--mesh.fsdp %d --mesh.tensor 1",
        jax.device_count(),
        found.data,
        found.fsdp,
    )
    return found


def _leaves_room(mesh: Mesh, model: AnyConfig) -> bool:
    shapes = _shapes(model)
    leaves = zip(
        jax.tree.leaves(shapes),
        jax.tree.leaves(param_shardings(model, shapes, mesh)),
        strict=True,
    )
    needed = sum(
        math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf, sharding in leaves
    )
    memory = device_memory()
    return memory is None or 2 * needed <= memory


def device_memory() -> int | None:
    """Bytes of a device's memory; None where it does not report them."""
    return (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")


def _most_sharded(model: AnyConfig) -> MeshConfig:
    count = jax.device_count()
    for fsdp in range(count, 1, -1):
        mesh = MeshConfig(data=count // fsdp, fsdp=fsdp, tensor=1)
        try:
            if count % fsdp == 0:
                open_mesh(mesh, model)
                return mesh
        except ConfigError:
            continue
    return MeshConfig(data=count, fsdp=1, tensor=1)


def open_mesh(config: MeshConfig, model: AnyConfig) -> Mesh:
    """A mesh of all devices of this machine.

    Raises:
        ConfigError: the sizes do not fit the devices, or the model.
    """
    sizes = mesh_shape(config, jax.device_count())
    mesh = make_mesh(sizes["data"], sizes["fsdp"], sizes["tensor"])
    check_heads(model, mesh)
    try:
        param_shardings(model, _shapes(model), mesh)
    except ValueError as error:
        raise ConfigError(f"--mesh does not suit the model: {error}") from error
    return mesh


def runnable(model: AnyConfig) -> AnyConfig:
    """The model of a finished run, with XLA's attention where its own cannot run."""
    try:
        check_attention(model)
    except ConfigError as error:
        logger.info("the run's %s Taking 'xla'.", error)
        return dataclasses.replace(model, attention="xla")
    return model


def restored_params(run_dir: AnyPath, model: AnyConfig, mesh: Mesh) -> Params:
    """The parameters of a run's newest checkpoint, each device reading its shards.

    Args:
        run_dir: the run's folder.
        model: the config that it resolved to.
        mesh: from `open_mesh`.

    Raises:
        ConfigError: there is no finished checkpoint, or none that is whole.
    """
    shapes = _shapes(model)
    abstract = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=sharding
        ),
        shapes,
        param_shardings(model, shapes, mesh),
    )
    with Checkpointer(run_dir) as checkpointer:
        return checkpointer.newest_params(abstract)


def _shapes(model: AnyConfig) -> Params:
    return jax.eval_shape(functools.partial(init_params, model), jax.random.key(0))


def refuse_several_hosts(command: str) -> None:
    """For commands that run in one process, on the devices of one host.

    Raises:
        ConfigError: this process is one of several.
    """
    found = launcher()
    workers = os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",")
    if several() or found in ("srun", "mpirun") or (found and len(workers) > 1):
        raise ConfigError(
            f"{command} runs on the devices of one host, but this is one of several"
            f"{f' that {found} started' if found else ''}: start it once, on one host."
        )

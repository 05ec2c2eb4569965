"""The mesh of a run: its axis sizes, and whether they fit the devices."""

import dataclasses
import math


class ConfigError(ValueError):
    """A run that cannot be what its flags say; the message is for the user."""


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """How many devices each mesh axis takes; -1 takes all that are left."""

    data: int = -1
    """Replicas of the parameters, each with its share of the batch; 1 where another
    axis is -1."""
    fsdp: int = 1
    """Shards of parameters and optimizer state that also share out the batch."""
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


def check(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)

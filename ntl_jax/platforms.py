"""What kind of device a program is for."""

import jax


def traced_platform() -> str:
    """The platform of what is being traced: the mesh's devices', else JAX's default.

    A program may be compiled for GPUs where there are none: the mesh then says so.

    Returns:
        "cpu", "gpu" or "tpu".
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def compute_capability() -> tuple[int, ...] | None:
    """NVIDIA's version of what the GPU here can do, such as (9, 0) of an H100.

    Returns:
        None where there is no NVIDIA GPU, as where a program is compiled ahead of time.
    """
    text = str(getattr(jax.devices()[0], "compute_capability", ""))
    parts = text.split(".")
    return tuple(map(int, parts)) if all(map(str.isdigit, parts)) else None

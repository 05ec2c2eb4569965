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

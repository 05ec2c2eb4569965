"""What kind of device a program is for, and whether kernels can be compiled for it."""

import importlib.util
import warnings
from functools import cache

import jax


def traced_platform() -> str:
    """The platform of what is being traced: the mesh's devices', else JAX's default.

    A program may be compiled for GPUs where there are none: the mesh then says so. The
    default is that of ``jax.default_device`` where it is set.

    Returns:
        "cpu", "gpu" or "tpu".
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    if device is None:
        device = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(device, str):
        device = jax.devices(device)[0]
    return jax.default_backend() if device is None else device.platform


def compute_capability() -> tuple[int, ...] | None:
    """NVIDIA's version of what the GPU here can do, such as (9, 0) of an H100.

    Returns:
        None where there is no GPU, as where a program is compiled ahead of time; () of
        a GPU that is none of NVIDIA's.
    """
    text = getattr(jax.devices()[0], "compute_capability", None)
    if text is None:
        return None
    parts = str(text).split(".")
    return tuple(map(int, parts)) if all(map(str.isdigit, parts)) else ()


@cache
def has_triton() -> bool:
    """Whether this JAX has the Triton backend of Pallas, deprecated since 0.12.

    To be asked before anything is imported that stands on it. Where it is missing, it
    warns once that GPUs run XLA's programs instead of the kernels.
    """
    if importlib.util.find_spec("jax.experimental.pallas.triton") is not None:
        return True
    warnings.warn(
        f"JAX {jax.__version__} has no Triton backend of Pallas: attention and losses "
        "run XLA's programs on GPUs, which take more time and memory. Install an "
        "earlier JAX for the kernels.",
        stacklevel=2,
    )
    return False

"""What the backward pass keeps of a layer that it otherwise computes again."""

from collections.abc import Callable
from typing import Literal

import jax
from jaxtyping import Array

from ntl_jax.kernels.platforms import traced_platform
from ntl_jax.kernels.residuals import GATHERED, name_residual, save_policy
from ntl_jax.sharding.constrain import all_gather_kernel
from ntl_jax.sharding.mesh import fsdp_size

Remat = bool | Literal["matmuls", "gathered"]
"""What the backward pass recomputes: nothing, whole layers, or of each layer all but
its products with parameters and what `name_residual` marks, which are kept. "gathered"
keeps the kernels that `fsdp` cuts too, as they were gathered for the forward pass, so
that they are not sent again: two bytes a parameter in bfloat16, on every device."""

Gather = Literal["inputs", "outputs", "outputs on TPUs"] | None
"""Which side of a kernel `tensor` cuts: "outputs" of what projects from the residual
stream, "inputs" of what projects back. None, and "outputs on TPUs" on other devices:
left to the partitioner to gather."""

_TPUS_GATHER = jax.__version_info__ >= (0, 12)


def gather_inwards(remat: Remat) -> Gather:
    """The `Gather` of kernels that project from the residual stream.

    They are gathered in one piece to be kept. Else it is left to the partitioner, but
    on TPUs: there it sends such a kernel part by part, and adds up products with the
    parts, for each of which all that was added up is read and written again. So there
    they are gathered in one piece too, unless the backward pass recomputes nothing and
    would keep them. Not before jax 0.12: of programs with dropout such products end its
    compiler for TPUs, libtpu 0.0.42, in an overflow of its own stack.
    """
    if remat == "gathered":
        return "outputs"
    return "outputs on TPUs" if remat and _TPUS_GATHER else None


def gathered(kernel: Array, gather: Gather) -> Array:
    """`all_gather_kernel`, for ``remat="gathered"`` to keep; for None, as it is."""
    if gather == "outputs on TPUs":
        gather = "outputs" if traced_platform() == "tpu" else None
    if gather is None:
        return kernel
    kernel = all_gather_kernel(kernel, tensor_shards=gather)
    return name_residual(kernel, GATHERED) if fsdp_size() > 1 else kernel


def remat_layer(step: Callable, remat: Remat, *, prevent_cse: bool) -> Callable:
    """A layer whose backward pass recomputes what `remat` says.

    Args:
        step: a function of arrays.
        remat: what is computed again.
        prevent_cse: as of `jax.checkpoint`; needless inside a scan.
    """
    if not remat:
        return step
    policy = None if remat is True else save_policy(remat)
    return jax.checkpoint(step, prevent_cse=prevent_cse, policy=policy)

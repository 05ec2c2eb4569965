"""What the first save of a run waits for, readied beside other work."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax

from train.checkpointing.digests import compile_digests
from train.checkpointing.pinned import reserve_pinned


def ready_first_save(saved: Any) -> Future[None]:
    """Compiles the programs of the checksums and pins host memory for GPUs' arrays.

    Args:
        saved: a tree of the arrays, of which shapes, dtypes and shardings count. They
            may be given away as soon as this returns.

    Returns:
        What is done when all is there; its result raises ConfigError where there is no
        room.
    """
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), saved
    )
    pool = ThreadPoolExecutor(1, thread_name_prefix="first-save")
    ready = pool.submit(_ready, shapes)
    pool.shutdown(wait=False)
    return ready


def _ready(shapes: Any) -> None:
    reserve_pinned(shapes)
    compile_digests(shapes)

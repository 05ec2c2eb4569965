"""Losses on arrays that are split along Explicit mesh axes, JAX's default."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, cast

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

P = ParamSpec("P")
R = TypeVar("R")


def on_auto_axes(function: Callable[P, R]) -> Callable[P, R]:
    """Leaves layouts inside a function to the partitioner, as on Auto axes.

    On Explicit axes the layout is a part of an array's type, and operations that could
    lay their result out in several ways, such as reading columns of split logits, are
    errors. Of a loss the layout of the results is clear: that of the positions.

    Args:
        function: the first axes of its first array are those of the positions, *B,
            and *B is the shape of its argument `labels`, if it has one. Results are
            [*B, ...], [*B] or begin as *B does.

    Returns:
        The same function. Where its operands are split along Explicit axes, the axes of
        its results that are positions are split as those of the operands, and no other.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        leaves, tree = jax.tree.flatten((args, kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
        arrays = [leaves[i] for i in places]
        split = [x for x in arrays if _is_split(x)]
        if not split:
            return function(*args, **kwargs)

        def call(*arrays):
            filled = list(leaves)
            for place, array in zip(places, arrays, strict=True):
                filled[place] = array
            taken: tuple[Any, dict[str, Any]] = jax.tree.unflatten(tree, filled)
            return cast(Callable[..., R], function)(*taken[0], **taken[1])

        labels = signature.bind(*args, **kwargs).arguments.get("labels", arrays[0])
        positions = jnp.shape(labels)
        batch = _batch_spec([arrays[0], labels], len(positions))
        mesh = jax.typeof(split[0]).sharding.mesh

        def sharding(result: jax.ShapeDtypeStruct) -> NamedSharding:
            spec = _spec_of(result.shape, positions, batch)
            return NamedSharding(mesh, PartitionSpec(*spec))

        plain = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays]
        shardings = jax.tree.map(sharding, jax.eval_shape(call, *plain))
        automatic: Any = jax.sharding.auto_axes(
            call, axes=mesh.explicit_axes, out_sharding=shardings
        )
        return automatic(*arrays)

    return run


def _is_split(array: jax.Array) -> bool:
    sharding = jax.typeof(array).sharding
    return bool(sharding.mesh.explicit_axes) and any(sharding.spec)


def _batch_spec(arrays: Sequence[Any], rank: int) -> tuple[Any, ...]:
    """How the first axes of the arrays are split; of the first that is."""
    for array in arrays:
        if isinstance(array, jax.Array):
            spec = tuple(jax.typeof(array).sharding.spec)[:rank]
            if any(spec):
                return spec + (None,) * (rank - len(spec))
    return (None,) * rank


def _spec_of(
    shape: tuple[int, ...], positions: tuple[int, ...], batch: tuple[Any, ...]
) -> list[Any]:
    """Of a result: as the positions, as far as its axes are theirs."""
    spec: list[Any] = [None] * len(shape)
    for axis, (size, theirs) in enumerate(zip(shape, positions, strict=False)):
        if size != theirs:
            break
        spec[axis] = batch[axis]
    return spec

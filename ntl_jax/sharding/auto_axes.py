"""Losses on arrays that are sharded along Explicit mesh axes, JAX's default."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, cast

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

P = ParamSpec("P")
R = TypeVar("R")


def on_auto_axes(
    *, labels: int | None = 1
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Leaves shardings inside a function to the partitioner, as on Auto axes.

    On Explicit axes the sharding is part of an array's type, and operations whose
    result could be sharded in several ways, such as reading columns of sharded logits,
    are errors. The results of a loss are sharded as its positions are. It decorates
    what users call; functions that these call need it only if users call them too.

    Args:
        labels: which positional argument has the shape of the positions, *B, unless an
            argument is named ``labels``; None where they are all axes of the first
            array. The first array begins with the axes *B, unless it is a scalar.

    Returns:
        A decorator. Where the operands are sharded along Explicit axes, the leading
        axes of the results that are positions are sharded as the operands', and no
        other axes; elsewhere it changes nothing.
    """
    return functools.partial(_on_auto_axes, labels=labels)


def _on_auto_axes(function: Callable[P, R], labels: int | None) -> Callable[P, R]:
    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        leaves, tree = jax.tree.flatten((args, kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
        arrays = [leaves[i] for i in places]
        sharded = [x for x in arrays if _is_sharded(x)]
        if not sharded:
            return function(*args, **kwargs)

        def call(*arrays):
            filled = list(leaves)
            for place, array in zip(places, arrays, strict=True):
                filled[place] = array
            arguments: tuple[Any, dict[str, Any]] = jax.tree.unflatten(tree, filled)
            return cast(Callable[..., R], function)(*arguments[0], **arguments[1])

        of_positions: Any = kwargs.get("labels", arrays[0])
        if labels is not None and labels < len(args):
            of_positions = args[labels]
        positions = jnp.shape(of_positions)
        batch = _batch_spec([arrays[0], of_positions], len(positions))
        mesh = jax.typeof(sharded[0]).sharding.mesh

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


def _is_sharded(array: jax.Array) -> bool:
    sharding = jax.typeof(array).sharding
    return bool(sharding.mesh.explicit_axes) and any(sharding.spec)


def _batch_spec(arrays: Sequence[Any], rank: int) -> tuple[Any, ...]:
    """The spec of the leading axes, from the first array where they are sharded."""
    for array in arrays:
        if isinstance(array, jax.Array):
            spec = tuple(jax.typeof(array).sharding.spec)[:rank]
            if any(spec):
                return spec + (None,) * (rank - len(spec))
    return (None,) * rank


def _spec_of(
    shape: tuple[int, ...], positions: tuple[int, ...], batch: tuple[Any, ...]
) -> list[Any]:
    """Of a result: that of the positions, for its leading axes that are theirs."""
    spec: list[Any] = [None] * len(shape)
    for axis, (size, expected) in enumerate(zip(shape, positions, strict=False)):
        if size != expected:
            break
        spec[axis] = batch[axis]
    return spec

"""Sums and counts: the only way from losses a token to a loss a batch.

Means over devices or micro-batches are made from sums and counts, never from means,
because every part holds another number of numbers.
"""

import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32

Reduction = Literal["mean", "sum"] | None

_BLOCK = 1024  # threads of a GPU that work together


class Term(NamedTuple):
    """A weighted sum of token losses and the weight it is made of.

    Attributes:
        sum: f32[], sum_i w_i l_i.
        count: f32[], sum_i w_i.
    """

    sum: Float32[Array, ""]
    count: Float32[Array, ""]

    @property
    def mean(self) -> Float32[Array, ""]:
        """sum / count, or 0 where the count is 0."""
        empty = self.count == 0
        return jnp.where(empty, 0.0, self.sum / jnp.where(empty, 1.0, self.count))


def weighted_sum_and_count(
    value: Float32[Array, "*B"], weight: Float32[Array, "*B"]
) -> Term:
    """Adds up token losses and their weights.

    Args:
        value: losses [*B].
        weight: non-negative weights [*B].

    Returns:
        Term(sum_i w_i l_i, sum_i w_i), float32 scalars; the sum is in the units of the
        losses.

    >>> weighted_sum_and_count(jnp.array([2.0, 4.0]), jnp.array([1.0, 0.5]))
    Term(sum=Array(4., dtype=float32), count=Array(1.5, dtype=float32))
    """
    return Term(jnp.sum(value * weight), jnp.sum(weight))


def weighted_mean(
    value: Float32[Array, "*B"], weight: Float32[Array, "*B"]
) -> Float32[Array, ""]:
    """The weighted mean of token losses, 0 (with gradient 0) where no token counts.

    Args:
        value: losses [*B].
        weight: non-negative weights [*B].

    Returns:
        sum_i w_i l_i / sum_i w_i, a float32 scalar in the units of the losses.

    >>> float(weighted_mean(jnp.array([2.0, 5.0]), jnp.array([1.0, 0.5])))
    3.0
    >>> float(weighted_mean(jnp.array([2.0, 5.0]), jnp.zeros(2)))
    0.0
    """
    return weighted_sum_and_count(value, weight).mean


def sum_each(arrays: dict[str, Array]) -> dict[str, Float32[Array, ""]]:
    """The sums of several arrays, at the price of one where their shapes agree.

    Args:
        arrays: {name: f32[*B]}.

    Returns:
        {name: f32[]}.
    """
    by_shape: dict[tuple[int, ...], list[str]] = {}
    for name, array in arrays.items():
        by_shape.setdefault(array.shape, []).append(name)
    sums = {}
    for shape, names in by_shape.items():
        parts = [arrays[name] for name in names]
        # Not fused with what made them: XLA sums up in one block of threads, which
        # would then make every token's loss on its own.
        if math.prod(shape) > _BLOCK:
            parts = [_materialize(part) for part in parts]
        stacked = jnp.stack(parts)
        totals = unstack(jnp.sum(stacked, axis=range(1, len(shape) + 1)))
        sums |= dict(zip(names, totals, strict=True))
    return sums


@jax.custom_vjp
def unstack(x: Float32[Array, "N *B"]) -> tuple[Float32[Array, "*B"], ...]:
    """The parts of x along its first axis.

    On the way back they are put side by side again, where JAX itself would add up as
    many padded arrays.
    """
    return _unstack(x)[0]


def _unstack(x):
    return tuple(x[i] for i in range(x.shape[0])), None


unstack.defvjp(_unstack, lambda _, parts: (jnp.stack(parts),))


@jax.custom_vjp
def _materialize(x: Array) -> Array:
    """x itself, which XLA finishes before it goes on; nothing to its gradient."""
    return jax.lax.optimization_barrier(x)


_materialize.defvjp(
    lambda x: (_materialize(x), None), lambda _, cotangent: (cotangent,)
)


def reduce_tokens(
    value: Float32[Array, "*B"], weight: Float32[Array, "*B"], reduction: Reduction
) -> Float32[Array, "..."]:
    """Applies the ``reduction`` argument of the losses on logits.

    Args:
        value: losses [*B].
        weight: non-negative weights [*B].
        reduction: None for the weighted token losses [*B], "sum" for their sum, "mean"
            for the sum over the sum of the weights.

    Returns:
        float32, [*B] or a scalar.

    Raises:
        ValueError: for any other reduction.
    """
    if reduction is None:
        return value * weight
    if reduction == "sum":
        return weighted_sum_and_count(value, weight).sum
    if reduction == "mean":
        return weighted_mean(value, weight)
    raise ValueError(f"reduction must be None, 'mean' or 'sum', not {reduction!r}.")

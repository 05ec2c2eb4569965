"""The objective of a batch and its gradient, all at once or in successive parts."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int

from ntl_jax.models import Params
from ntl_jax.sharding.constrain import split_rows
from ntl_jax.sharding.mesh import on_mesh
from ntl_jax.sharding.rules import param_shardings
from train.heads import Batch, head_of
from train.heads.base import Counts, Terms
from train.state import Task


def loss_and_grads(
    params: Params, batch: Batch, task: Task, dropout_key: jax.Array | None = None
) -> tuple[Float32[Array, ""], Terms, Params]:
    """The objective of a batch, its terms as sums and counts, and its gradient.

    With `--accumulate N` the batch is gone through in N parts, whose sums are divided
    by the counts of the whole: loss and gradient are those of one part, dropout masks
    included. Where experts are routed, the loss that balances them is added, and that
    of a batch in parts is the mean of the parts': E sum_e f_e P_e is a product of two
    means over the batch, so the mean exceeds the whole batch's by E sum_e
    cov(f_e, P_e) over parts of equally many tokens. Exact, each part's gradient would
    need the visits f_e of all others: a forward pass over the whole batch beforehand.

    Args:
        params: the parameters.
        batch: see `Batch`.
        task: static.
        dropout_key: None for no dropout.

    Returns:
        A scalar; {name: sum and count}; and the gradients, laid out as the parameters.
    """
    shardings = param_shardings(task.model, params, task.mesh)
    head = head_of(task.model)

    def value_and_grad(part: Batch, rows: Int[Array, "B"] | int, counts: Counts | None):
        def loss(params: Params) -> tuple[Float32[Array, ""], Terms]:
            return head.total_and_terms(task, params, part, dropout_key, rows, counts)

        (total, terms), grads = jax.value_and_grad(loss, has_aux=True)(params)
        return total, terms, jax.lax.with_sharding_constraint(grads, shardings)

    parts = task.config.accumulate
    with on_mesh(task.mesh):
        if parts == 1 and task.mesh.size == 1:
            return value_and_grad(batch, 0, None)
        counts = head.counts(task, batch)
        if parts == 1:
            # The gradient needs the counts of all devices. Added up together with the
            # sums, they would have all devices wait for each other half way.
            batch, counts = jax.lax.optimization_barrier((batch, counts))
            return value_and_grad(batch, 0, counts)
        rows = jnp.arange(len(batch["input_ids"]), dtype=jnp.int32)
        pieces = split_rows((batch, rows), parts)
        add = functools.partial(_add_part, value_and_grad, counts)
        shapes = jax.eval_shape(lambda: add(None, jax.tree.map(lambda x: x[0], pieces)))
        nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes[0])
        return jax.lax.scan(add, nothing, pieces)[0]


def _add_part(value_and_grad, counts: Counts, so_far: Any, piece: Any):
    """Adds a part's loss, terms and gradient to those of the parts before it."""
    batch, rows = piece
    # Masks are drawn by a row's number in the whole batch; `dropout` adds its place.
    offset = rows - jnp.arange(len(rows), dtype=rows.dtype)
    found = value_and_grad(batch, offset, counts)
    if so_far is None:
        return found, None
    return jax.tree.map(jnp.add, so_far, found), None

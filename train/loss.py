"""The objective of a batch and its gradient, all at once or in successive parts."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int

from ntl_jax.losses import Term, objective_from_hidden, stats_from_logits
from ntl_jax.models import AnyConfig, GraniteConfig, Params
from ntl_jax.sharding.constrain import split_rows
from ntl_jax.sharding.mesh import data_shards, on_mesh
from ntl_jax.sharding.rules import param_shardings
from train.heads.families import answer_hidden, answer_labels, label_segments
from train.heads.number_answers import (
    NumberModel,
    answer_counts,
    answer_terms,
    total_loss,
)
from train.state import Task

Batch = dict[str, jax.Array]
"""input_ids i32 [B, S], attention_mask bool [B, S], labels i32 [B, T], S = T for a
decoder-only model. Where several texts share a row also segment_ids i32 [B, S], and for
an encoder-decoder target_segment_ids i32 [B, T]; for a regression head targets f32 [B];
for a Numformer input_values and label_values f32 [B, S], S = T.
In evaluation also weights f32 [B], 0 for the rows that only fill up the last batch, and
for a decoder-only model prompt_ids and prompt_mask [B, P]."""

Counts = dict[str, Float32[Array, ""]]
Terms = dict[str, Term]

TILE_TOKENS = 4096
"""Tokens whose logits a device makes at a time, under a fused head."""


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

    def value_and_grad(part: Batch, rows: Int[Array, "B"] | int, counts: Counts | None):
        def loss(params: Params) -> tuple[Float32[Array, ""], Terms]:
            return _total_and_terms(params, part, task, dropout_key, rows, counts)

        (total, terms), grads = jax.value_and_grad(loss, has_aux=True)(params)
        return total, terms, jax.lax.with_sharding_constraint(grads, shardings)

    parts = task.config.accumulate
    with on_mesh(task.mesh):
        if parts == 1 and task.mesh.size == 1:
            return value_and_grad(batch, 0, None)
        counts = _counts(batch, task)
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


def _counts(batch: Batch, task: Task) -> Counts:
    """What the sums of a whole batch are divided by."""
    if isinstance(task.model, NumberModel):
        return answer_counts(task.model, batch)
    labels, segments = (
        answer_labels(task.model, batch),
        label_segments(task.model, batch),
    )
    return task.objective.counts(labels, task.vocab, segment_ids=segments)


def _total_and_terms(
    params: Params,
    batch: Batch,
    task: Task,
    dropout_key: jax.Array | None,
    row_offset: Int[Array, "B"] | int,
    counts: Counts | None,
) -> tuple[Float32[Array, ""], Terms]:
    """The objective of a batch, or a part's share of it where counts are given."""
    model, objective, vocab = task.model, task.objective, task.vocab
    if isinstance(model, NumberModel):
        _, terms = answer_terms(model, params, batch, dropout_key, row_offset)
        if counts is None:
            return total_loss(terms), terms
        shares = {n: term._replace(count=counts[n]) for n, term in terms.items()}
        return total_loss(shares), terms
    answer = answer_hidden(model, params, batch, dropout_key, row_offset)
    segments = label_segments(model, batch)
    if task.config.fused_head:
        groups = data_shards(task.mesh)
        total, terms = objective_from_hidden(
            objective,
            answer.hidden,
            answer.model.head,
            answer.labels,
            vocab,
            segment_ids=segments,
            counts=counts,
            tile_tokens=groups * TILE_TOKENS,
            row_groups=groups,
            logits_dtype=jnp.float32,
        )
    else:
        logits = answer.model.logits(answer.hidden, aligned=True)
        stats = stats_from_logits(logits, answer.labels, vocab)
        terms = objective(stats, answer.labels, vocab, segment_ids=segments)
        total = objective.total(terms, counts)
    if answer.router_loss is None:
        return total, terms
    one = jnp.ones((), jnp.float32)
    share = router_coefficient(model) / task.config.accumulate
    terms = terms | {"router": Term(answer.router_loss, one)}
    return total + share * answer.router_loss, terms


def router_coefficient(model: AnyConfig) -> float:
    """What the loss that balances experts is multiplied by."""
    return model.router_aux_loss_coef if isinstance(model, GraniteConfig) else 0.0

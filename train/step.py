"""One optimizer step and one evaluation step: pure functions of state and batch."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import optax

from ntl_jax.losses import (
    NumberStats,
    Objective,
    Term,
    stats_from_logits,
)
from ntl_jax.models import bind, shift_right
from train.optimizer import learning_rate_schedule
from train.state import Params, Task, TrainState, state_shardings

Batch = dict[str, jax.Array]
"""input_ids i32 [B, S], attention_mask bool [B, S], labels i32 [B, T]; in evaluation
also weights f32 [B], 0 for the rows that only fill up the last batch."""

MAX_DISTRIBUTION = 100
"""Largest K for which evaluation accumulates the [K, K] number distributions."""


def number_stats(
    params: Params, batch: Batch, task: Task, dropout_key: jax.Array | None = None
) -> NumberStats:
    """Runs the model on a batch, teacher-forced."""
    model = bind(task.model, params)
    decoder_input_ids = shift_right(
        batch["labels"],
        start_id=task.model.decoder_start_token_id,
        pad_id=task.model.pad_token_id,
    )
    logits = model(
        batch["input_ids"],
        decoder_input_ids,
        attention_mask=batch["attention_mask"],
        dropout_key=dropout_key,
    )  # [B, T, V]
    return stats_from_logits(logits, batch["labels"], task.vocab)


def loss_and_grads(
    params: Params, batch: Batch, task: Task, dropout_key: jax.Array | None = None
) -> tuple[jax.Array, dict[str, Term], Params]:
    """The objective of a batch, its terms as sums and counts, and its gradient."""

    def loss_fn(params: Params) -> tuple[jax.Array, dict[str, Term]]:
        stats = number_stats(params, batch, task, dropout_key)
        terms = task.objective(stats, batch["labels"], task.vocab)
        return task.objective.total(terms), terms

    (loss, terms), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
    return loss, terms, grads


def train_step(
    state: TrainState, batch: Batch, task: Task
) -> tuple[TrainState, dict[str, jax.Array]]:
    """One optimizer step on the objective.

    Args:
        state: the state, donated.
        batch: see `Batch`.
        task: static.

    Returns:
        The next state, and scalars: loss; each term's mean; grad_norm; learning_rate;
        bad_leaf, the index of the first leaf whose gradient (else, whose new value) is
        not finite, or -1.
    """
    dropout_key = jax.random.fold_in(jax.random.key(task.config.seed), state.step)
    loss, terms, grads = loss_and_grads(state.params, batch, task, dropout_key)
    updates, opt_state = task.optimizer.update(grads, state.opt_state, state.params)
    scale = state.plateau.scale
    params = jax.tree.map(lambda p, u: p + scale * u, state.params, updates)
    bad_gradient = _bad_leaf(grads)
    metrics = {
        "loss": loss,
        "grad_norm": optax.tree.norm(grads),
        "learning_rate": learning_rate(state, task),
        "bad_leaf": jnp.where(bad_gradient >= 0, bad_gradient, _bad_leaf(params)),
    } | {name: term.mean for name, term in terms.items()}
    return TrainState(state.step + 1, params, opt_state, state.plateau), metrics


def _bad_leaf(tree: Params) -> jax.Array:
    """The index of the first leaf that is not finite, or -1."""
    finite = jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)])
    return jnp.where(finite.all(), -1, jnp.argmin(finite))


def learning_rate(state: TrainState, task: Task) -> jax.Array:
    """The learning rate of the coming step."""
    schedule = learning_rate_schedule(task.config.optimizer, task.config.steps)
    return jnp.asarray(schedule(state.step), jnp.float32) * state.plateau.scale


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class EvalSums:
    """Sums over evaluation batches; add them up, divide once."""

    terms: dict[str, Term]
    digits: jax.Array  # f32 [K, K]: probabilities summed by true (row) number token
    counts: jax.Array  # f32 [K]: labels of each number token

    def __add__(self, other: "EvalSums") -> "EvalSums":
        return jax.tree.map(jnp.add, self, other)


def evaluation_objective(objective: Objective) -> Objective:
    """The trained objective, with CE and NTL-WAS always reported beside it."""
    filled = {name: 0.0 for name in ("ce", "was") if getattr(objective, name) is None}
    return dataclasses.replace(objective, **filled)


def eval_step(params: Params, batch: Batch, task: Task) -> EvalSums:
    """Teacher-forced sums of one batch: every loss term and the digit distribution."""
    labels, vocab = batch["labels"], task.vocab
    stats = number_stats(params, batch, task)
    weights = jnp.broadcast_to(batch["weights"][:, None], labels.shape)
    terms = evaluation_objective(task.objective)(stats, labels, vocab, weights=weights)
    size = len(vocab.token_ids)
    if size > MAX_DISTRIBUTION:
        empty = jnp.zeros((0, 0), jnp.float32)
        return EvalSums(terms, empty, jnp.zeros((0,), jnp.float32))
    # [B, T] -> number row of the label, or `size` where it is no number
    row = jnp.asarray(vocab.row)[jnp.maximum(labels, 0)]
    row = jnp.where((labels >= 0) & (row >= 0), row, size)
    true = jax.nn.one_hot(row, size) * weights[..., None]  # [B, T, K]
    predicted = jax.nn.softmax(stats.number_logits, axis=-1)
    sums = jnp.einsum("btk,btj->kj", true, predicted, precision="highest")
    return EvalSums(terms, sums, true.sum((0, 1)))


def compile_train_step(task: Task):
    """`train_step` jitted: state donated, its shardings pinned on both sides."""
    shardings = state_shardings(task)
    return jax.jit(
        functools.partial(train_step, task=task),
        donate_argnums=0,
        in_shardings=(shardings, None),
        out_shardings=(shardings, None),
    )

"""One optimizer step and one evaluation step: pure functions of state and batch."""

import dataclasses
import functools
import os

import jax
import jax.numpy as jnp
import optax

from ntl_jax.losses import Objective, Term, stats_from_hidden, stats_from_logits
from ntl_jax.sharding.mesh import data_shards, on_mesh
from train.heads.families import answer_hidden
from train.heads.number_answers import NumberModel, answer_terms
from train.loss import TILE_TOKENS, Batch, loss_and_grads
from train.optimizer import learning_rate_schedule
from train.state import Params, Task, TrainState, state_shardings

MAX_DISTRIBUTION = 100
"""Largest K for which evaluation keeps the distributions over number tokens."""


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
class EvalOutputs:
    """What evaluation learns of one batch, the right answers being fed."""

    terms: dict[str, Term]  # sums and counts: add them up, divide once
    number_logits: jax.Array  # f32 [B, T, K]; K = 0 beyond MAX_DISTRIBUTION
    number_rows: jax.Array  # i32 [B, T]: row of the label's token, -1 if no number
    predictions: jax.Array | None = None  # f32 [B], of models that answer so, scaled


def evaluation_objective(objective: Objective) -> Objective:
    """The trained objective, with CE and NTL-WAS always reported beside it."""
    filled = {name: 0.0 for name in ("ce", "was") if getattr(objective, name) is None}
    return dataclasses.replace(objective, **filled)


def eval_step(params: Params, batch: Batch, task: Task) -> EvalOutputs:
    """Teacher-forced sums of every loss term of one batch, and its number logits."""
    with on_mesh(task.mesh):
        return _eval_step(params, batch, task)


def _eval_step(params: Params, batch: Batch, task: Task) -> EvalOutputs:
    if isinstance(task.model, NumberModel):
        predictions, terms = answer_terms(task.model, params, batch)
        none = jnp.full((len(predictions), 1), -1, jnp.int32)
        empty = jnp.zeros((*none.shape, 0), jnp.float32)
        return EvalOutputs(terms, empty, none, predictions)
    vocab = task.vocab
    answer = answer_hidden(task.model, params, batch)
    labels = answer.labels
    if task.config.fused_head:
        groups = data_shards(task.mesh)
        stats = stats_from_hidden(
            answer.hidden,
            answer.model.head,
            labels,
            vocab,
            tile_tokens=groups * TILE_TOKENS,
            logits_dtype=jnp.float32,
        )
    else:
        stats = stats_from_logits(
            answer.model.logits(answer.hidden, aligned=True), labels, vocab
        )
    weights = jnp.broadcast_to(batch["weights"][:, None], labels.shape)
    terms = evaluation_objective(task.objective)(stats, labels, vocab, weights=weights)
    number_logits = stats.number_logits
    if len(vocab.token_ids) > MAX_DISTRIBUTION:
        number_logits = number_logits[..., :0]
    rows = jnp.asarray(vocab.row)[jnp.maximum(labels, 0)]  # [B, T]
    counted = (labels >= 0) & (weights > 0)
    return EvalOutputs(terms, number_logits, jnp.where(counted, rows, -1))


DETERMINISTIC = {"xla_gpu_deterministic_ops": True}
"""Compiler options: sums in one order, and no algorithm chosen by its measured time."""

COPIES_GRADIENTS = "all-reduce-contiguous"
"""The pass of XLA for GPUs that copies gradients into one piece to sum them over
devices, and out of it again, which takes longer than it saves."""


def compiler_options(task: Task) -> dict[str, bool | str] | None:
    """What the programs that training depends on are compiled with."""
    devices = task.mesh.devices
    if devices.flat[0].platform != "gpu":
        return None
    options: dict[str, bool | str] = {}
    if devices.size > 1:
        options |= {"xla_disable_hlo_passes": _passes_left_out()}
    if task.config.deterministic:
        options |= DETERMINISTIC
    return options or None


def _passes_left_out() -> str:
    """`COPIES_GRADIENTS`, and what XLA_FLAGS names: the option would take its place."""
    said = (flag.partition("=") for flag in os.environ.get("XLA_FLAGS", "").split())
    named = [value for name, _, value in said if name == "--xla_disable_hlo_passes"]
    return ",".join([*named, COPIES_GRADIENTS])


def compile_train_step(task: Task):
    """`train_step` jitted: state donated, its shardings pinned on both sides."""
    shardings = state_shardings(task)
    return jax.jit(
        functools.partial(train_step, task=task),
        donate_argnums=0,
        in_shardings=(shardings, None),
        out_shardings=(shardings, None),
        compiler_options=compiler_options(task),
    )

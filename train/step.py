"""One optimizer step and one evaluation step: pure functions of state and batch."""

import functools
import os

import jax
import jax.numpy as jnp
import optax

from ntl_jax.sharding.mesh import on_mesh
from train.heads import Batch, EvalOutputs, head_of
from train.loss import loss_and_grads
from train.optimizer import learning_rate_schedule
from train.state import Params, Task, TrainState, state_shardings


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


def eval_step(params: Params, batch: Batch, task: Task) -> EvalOutputs:
    """Teacher-forced sums of every loss term of one batch, and its number logits."""
    with on_mesh(task.mesh):
        return head_of(task.model).evaluate(task, params, batch)


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

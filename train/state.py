"""The train state: a plain pytree, born sharded."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from ntl_jax.losses import Objective
from ntl_jax.models import AnyConfig, init_params
from ntl_jax.numbers.value_scales import ValueScale
from ntl_jax.numbers.vocab import NumberVocab
from ntl_jax.sharding.mesh import replicated, tensor_size
from ntl_jax.sharding.rules import param_shardings, reduced_sharding
from train.config import ConfigError, TrainConfig
from train.optimizer import make_optimizer, make_plateau

Params = dict[str, Any]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """All that changes while training.

    The fields are typed loosely: the same tree also holds shapes, or shardings.
    """

    step: Any  # i32 []: optimizer steps taken
    params: Params
    opt_state: optax.OptState
    plateau: Any  # ReduceLROnPlateauState; its scale multiplies the learning rate


@dataclasses.dataclass(frozen=True)
class Task:
    """All that does not change: what the jitted steps close over."""

    config: TrainConfig
    model: AnyConfig
    vocab: NumberVocab
    objective: Objective
    optimizer: optax.GradientTransformation
    plateau: optax.GradientTransformationExtraArgs
    mesh: Mesh
    scale: ValueScale
    """What the numbers of a model that answers with one went through."""


def make_task(
    config: TrainConfig,
    model: AnyConfig,
    vocab: NumberVocab,
    mesh: Mesh,
    scale: ValueScale | None = None,
) -> Task:
    """Builds the static parts of a run from its config."""
    return Task(
        config=config,
        model=model,
        vocab=vocab,
        objective=config.loss.objective(),
        optimizer=make_optimizer(config.optimizer, config.steps),
        plateau=make_plateau(config.optimizer),
        mesh=mesh,
        scale=scale or ValueScale("none"),
    )


def _fresh_state(params: Params, task: Task) -> TrainState:
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        opt_state=task.optimizer.init(params),
        plateau=task.plateau.init(params),
    )


def _random_state(key: jax.Array, task: Task) -> TrainState:
    return _fresh_state(init_params(task.model, key), task)


def check_layout(model: AnyConfig, mesh: Mesh, *, resume: bool) -> None:
    """Raises ConfigError where a model's parameters cannot be laid out on a mesh."""
    make = functools.partial(init_params, model)
    _layout(model, jax.eval_shape(make, jax.random.key(0)), mesh, resume)


def check_heads(model: AnyConfig, mesh: Mesh) -> None:
    """Raises ConfigError where heads that have biases of their own, as a T5's do, do
    not divide over the mesh's `tensor` axis."""
    heads, tensor = model.biased_heads, tensor_size(mesh)
    if heads is None or heads % tensor == 0:
        return
    *others, most = [
        str(size)
        for size in range(1, heads + 1)
        if heads % size == mesh.size % size == 0
    ]
    sizes = f"{', '.join(others)} or {most}" if others else most
    raise ConfigError(
        f"--mesh.tensor {tensor} does not divide the model's {heads} heads: take "
        f"{sizes}."
    )


def _layout(model: AnyConfig, shapes: Params, mesh: Mesh, resume: bool) -> Params:
    check_heads(model, mesh)
    try:
        return param_shardings(model, shapes, mesh)
    except ValueError as error:
        told = f"--mesh does not suit the model: {error}"
        if resume:
            told += "\nA resumed run keeps the vocabulary rows that it began with: "
            told += "give a --mesh.tensor that divides them, or --mesh.fsdp instead."
        raise ConfigError(told) from error


def state_shardings(task: Task) -> TrainState:
    """A NamedSharding for every leaf; optimizer moments follow their parameters."""
    shapes = jax.eval_shape(
        functools.partial(_random_state, task=task), jax.random.key(0)
    )
    params = _layout(task.model, shapes.params, task.mesh, task.config.resume)
    whole = replicated(task.mesh)
    opt_state = optax.tree_map_params(
        task.optimizer,
        lambda leaf, param, sharding: reduced_sharding(
            sharding, param.shape, leaf.shape
        ),
        shapes.opt_state,
        shapes.params,
        params,
        transform_non_params=lambda _: whole,
    )
    return TrainState(
        step=whole,
        params=params,
        opt_state=opt_state,
        plateau=jax.tree.map(lambda _: whole, shapes.plateau),
    )


def abstract_state(task: Task) -> TrainState:
    """Shapes, dtypes and shardings of the state, for restoring into."""
    shapes = jax.eval_shape(
        functools.partial(_random_state, task=task), jax.random.key(0)
    )
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=sharding
        ),
        shapes,
        state_shardings(task),
    )


def init_state(task: Task, params: Params | None = None) -> TrainState:
    """A state at step 0: from `params` (as loaded), else from the config's seed."""
    shardings = state_shardings(task)
    if params is None:
        init = jax.jit(
            functools.partial(_random_state, task=task), out_shardings=shardings
        )
        return init(jax.random.key(task.config.seed))
    placed = jax.device_put(params, shardings.params)

    def rest(params: Params) -> TrainState:  # without a copy of the parameters
        return dataclasses.replace(_fresh_state(params, task), params=None)

    init = jax.jit(rest, out_shardings=dataclasses.replace(shardings, params=None))
    return dataclasses.replace(init(placed), params=placed)

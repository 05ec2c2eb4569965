"""AdamW or Adafactor with clipping, warm-up, schedules and reduce-on-plateau."""

from typing import Any

import jax
import optax
from optax.contrib import reduce_on_plateau

from train.config import OptimizerConfig


def learning_rate_schedule(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """Learning rate as a function of the step, before any plateau factor."""
    peak, warmup = config.learning_rate, config.warmup_steps
    last = peak * config.final_fraction
    decay = {
        "constant": optax.constant_schedule(peak),
        "plateau": optax.constant_schedule(peak),
        "linear": optax.linear_schedule(peak, last, steps - warmup),
        "cosine": optax.cosine_decay_schedule(
            peak, steps - warmup, config.final_fraction
        ),
    }[config.schedule]
    if warmup == 0:
        return decay
    # Step 0 already learns: the ramp is 1/warmup, 2/warmup, ..., 1.
    ramp = optax.linear_schedule(peak / warmup, peak, max(warmup - 1, 1))
    return optax.join_schedules([ramp, decay], [warmup])


def decays(path: jax.tree_util.KeyPath) -> bool:
    """Whether weight decay applies: not to norm scales, biases, position biases."""
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    return not ("bias" in name or name.endswith("scale"))


def decay_mask(params: Any) -> Any:
    """True where weight decay applies, in the shape of `params`."""
    return jax.tree_util.tree_map_with_path(lambda path, _: decays(path), params)


def make_optimizer(config: OptimizerConfig, steps: int) -> optax.GradientTransformation:
    """Clipping by global norm, then AdamW or Adafactor.

    Sources: Loshchilov & Hutter 2019 (AdamW); Shazeer & Stern 2018 (Adafactor), with
    the update relative to each parameter's root mean square, as T5 was trained.
    """
    schedule = learning_rate_schedule(config, steps)
    if config.name == "adamw":
        optimizer = optax.adamw(
            schedule,
            b1=config.b1,
            b2=config.b2,
            eps=config.eps,
            mu_dtype=config.mu_dtype,
            weight_decay=config.weight_decay,
            mask=decay_mask,
        )
    else:
        optimizer = optax.adafactor(
            schedule,
            # optax applies this rate as it is; AdamW's is times the learning rate.
            weight_decay_rate=lambda step: config.weight_decay * schedule(step),
            weight_decay_mask=decay_mask,
        )
    if config.clip_norm is None:
        return optimizer
    return optax.chain(optax.clip_by_global_norm(config.clip_norm), optimizer)


def make_plateau(config: OptimizerConfig) -> optax.GradientTransformationExtraArgs:
    """Reduce-on-plateau, stepped once an evaluation.

    Equals `torch.optim.lr_scheduler.ReduceLROnPlateau` with its default relative
    threshold 1e-4: PyTorch reduces when more than `patience` evaluations in a row
    were no better, optax when `patience` were.
    """
    return reduce_on_plateau(
        factor=config.plateau_factor,
        patience=config.plateau_patience + 1,
        rtol=1e-4,
        atol=0.0,
    )

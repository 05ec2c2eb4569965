"""AdamW with clipping, warm-up, the usual schedules and reduce-on-plateau."""

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


def make_optimizer(config: OptimizerConfig, steps: int) -> optax.GradientTransformation:
    """Clipping by global norm, then AdamW (Loshchilov & Hutter, 2019)."""
    adamw = optax.adamw(
        learning_rate_schedule(config, steps),
        b1=config.b1,
        b2=config.b2,
        eps=config.eps,
        weight_decay=config.weight_decay,
        mask=lambda params: jax.tree_util.tree_map_with_path(
            lambda path, _: decays(path), params
        ),
    )
    if config.clip_norm is None:
        return adamw
    return optax.chain(optax.clip_by_global_norm(config.clip_norm), adamw)


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

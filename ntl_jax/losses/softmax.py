"""The distribution over number tokens, and what the losses on it share."""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32

from ntl_jax.losses.stats import NumberStats, check_stats
from ntl_jax.losses.targets import NumberTargets

Support = Literal["numbers", "full"]

# How much worse than the worst number it is to put all mass elsewhere: ntloss 0.3.2,
# AbstractNTLoss.reweigh_fn.
REWEIGH_FACTOR = 1.01


def logits_of_numbers(
    stats: NumberStats, targets: NumberTargets
) -> Float32[Array, "*B K"]:
    """The number logits at the targets; zeros, without a gradient, elsewhere."""
    check_stats(stats, targets.mask.shape)
    return jnp.where(targets.mask[..., None], stats.number_logits, 0.0)


def number_probabilities(
    stats: NumberStats, targets: NumberTargets, support: Support
) -> Float32[Array, "*B K"]:
    """The probability of each number token.

    Args:
        stats: NumberStats over [*B].
        targets: positions outside its mask get the uniform distribution, and no
            gradient.
        support: "numbers" for a softmax over the K number logits (sums to 1), "full"
            for the number part of the softmax over all V columns (sums to the mass that
            is on numbers, which is how the paper's equations read).

    Returns:
        f32[*B, K] in [0, 1].

    Raises:
        ValueError: for any other support.
    """
    logits = logits_of_numbers(stats, targets)  # [*B, K]
    if support == "numbers":
        return jax.nn.softmax(logits, axis=-1)
    if support == "full":
        log_sum = jnp.where(targets.mask, stats.log_sum, jnp.log(logits.shape[-1]))
        return jnp.exp(logits - log_sum[..., None])
    raise ValueError(f"support must be 'numbers' or 'full', not {support!r}.")


def shift_logits(logits: Float32[Array, "*B K"]) -> Float32[Array, "*B K"]:
    """Logits of the same softmax, of which the largest is 0."""
    return logits - jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))


@jax.custom_vjp
def softmax_mean(
    logits: Float32[Array, "*B K"], x: Float32[Array, "*B K"]
) -> Float32[Array, "*B"]:
    """sum_k q_k x_k, where q is the softmax of the logits.

    On the way back q is made anew, and never written to memory.

    Args:
        logits: [*B, K], the largest of which is about 0, as `shift_logits` has it.
        x: [*B, K], constants: they get no gradient.

    Returns:
        f32[*B], in the units of x.
    """
    return _softmax_mean(logits, x)[0]


def _softmax_mean(logits, x):
    _, _, mean = _mass_and_mean(logits, x)
    return mean[..., 0], (logits, x)


def _softmax_mean_backward(residuals, cotangent):
    # The mean is made anew too. Of one kept from the way forward XLA for CPUs, as of
    # jaxlib 0.10.2, compiles wrong second derivatives at some shapes.
    logits, x = residuals
    mass, total, mean = _mass_and_mean(logits, x)
    return mass / total * ((x - mean) * cotangent[..., None]), None


def _mass_and_mean(logits, x):
    """exp of the logits [*B, K], its sum [*B, 1], and the mean of x [*B, 1]."""
    mass = jnp.exp(logits)
    total = jnp.sum(mass, axis=-1, keepdims=True)
    return mass, total, jnp.sum(mass * x, axis=-1, keepdims=True) / total


softmax_mean.defvjp(_softmax_mean, _softmax_mean_backward)


def log_number_mass(stats: NumberStats, targets: NumberTargets) -> Float32[Array, "*B"]:
    """The log of the probability that is on number tokens, 0 outside the mask.

    Args:
        stats: NumberStats over [*B].
        targets: which positions to look at.

    Returns:
        f32[*B], at most 0.
    """
    logits = logits_of_numbers(stats, targets)  # [*B, K]
    on_numbers = jax.nn.logsumexp(logits, axis=-1)  # [*B]
    everywhere = jnp.where(targets.mask, stats.log_sum, on_numbers)
    return jnp.minimum(on_numbers - everywhere, 0.0)  # rounding can leave 1e-7 above


def reweigh_and_mask(
    loss: Float32[Array, "*B"],
    stats: NumberStats,
    targets: NumberTargets,
    *,
    support: Support,
    reweigh: bool,
    worst: Float32[Array, ""],
) -> tuple[Float32[Array, "*B"], Float32[Array, "*B"]]:
    """Reweighs a loss by the number mass where asked, and zeroes it off the numbers.

    m loss + 1.01 worst (1 - m), where m is the softmax mass on number tokens

    Args:
        loss: [*B], the loss of each position.
        stats: NumberStats over [*B].
        targets: which positions count.
        support: the support that the loss was made with.
        reweigh: whether to charge for mass that is not on numbers.
        worst: the largest loss that any two numbers can have.

    Returns:
        (value, weight), both f32[*B].

    Raises:
        ValueError: to reweigh under the full support, which holds the mass already.

    Source: ntloss 0.3.2, ``AbstractNTLoss.reweigh_fn``.
    """
    if reweigh:
        if support == "full":
            raise ValueError(
                "reweigh=True needs support='numbers': under support='full' the number "
                "mass scales the loss already."
            )
        log_mass = log_number_mass(stats, targets)
        # Not with expm1, whose derivative rounds a small mass to multiples of 6e-8.
        farthest = REWEIGH_FACTOR * worst
        loss = farthest + jnp.exp(log_mass) * (loss - farthest)
    return jnp.where(targets.mask, loss, 0.0), targets.weight


def abs_zero_grad(x: Float[Array, "*B"]) -> Float[Array, "*B"]:
    """|x|, whose gradient at 0 is 0, as PyTorch has it.

    That of ``jnp.abs`` at 0 is 1: a prediction that is right to the last digit would
    be pushed away.

    Args:
        x: of any shape and floating dtype.

    Returns:
        Of the shape and dtype of x, not negative.

    >>> print(jax.grad(jnp.abs)(0.0), jax.grad(abs_zero_grad)(jnp.float32(0.0)))
    1.0 0.0
    """
    return x * jax.lax.stop_gradient(jnp.sign(x))

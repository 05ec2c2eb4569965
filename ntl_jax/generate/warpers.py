"""What sampling leaves of a distribution: temperature, then top-k, then top-p."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32

from ntl_jax.generate.top_k import top_k as largest
from ntl_jax.sharding.constrain import shard_over_all


def restrict(
    logits: Float32[Array, "*B V"],
    *,
    temperature: float | Float[Array, ""] = 1.0,
    top_k: int | None = None,
    top_p: float | Float[Array, ""] | None = None,
) -> Float32[Array, "*B V"]:
    """Logits over the temperature, -inf where top-k or top-p leave a token out.

    Top-k keeps what is as likely as the k-th likeliest token. Top-p then keeps the
    fewest tokens whose probabilities come to p or more, and always one.

    Args:
        logits: [*B, V].
        temperature: above 0; under 1 likely tokens get likelier.
        top_k: at least 1; None keeps all.
        top_p: in (0, 1]; None keeps all.

    Returns:
        [*B, V]: their softmax is what is drawn from.

    >>> logits = jnp.log(jnp.array([0.5, 0.3, 0.15, 0.05]))
    >>> jnp.isfinite(restrict(logits, top_k=3))
    Array([ True,  True,  True, False], dtype=bool)
    >>> jnp.isfinite(restrict(logits, top_p=0.7))
    Array([ True,  True, False, False], dtype=bool)

    Source: transformers, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper.
    """
    logits = logits / jnp.asarray(temperature, jnp.float32)
    ascending = None
    if top_k is not None and top_k < logits.shape[-1]:
        best = largest(logits, top_k)[0]  # [*B, k], falling
        logits = jnp.where(logits >= best[..., -1:], logits, -jnp.inf)
        ascending = jnp.flip(best, axis=-1)
    if top_p is None:
        return logits
    if ascending is None:
        ascending = jnp.sort(shard_over_all(logits), axis=-1)
    below = jnp.cumsum(jax.nn.softmax(ascending, axis=-1), axis=-1)
    kept = below > 1 - jnp.asarray(top_p, jnp.float32)
    least = jnp.min(jnp.where(kept, ascending, jnp.inf), axis=-1, keepdims=True)
    least = jnp.minimum(least, ascending[..., -1:])  # one token always stays
    return jnp.where(logits >= least, logits, -jnp.inf)

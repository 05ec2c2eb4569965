"""Granite's mixture of experts: which experts a token visits, and how evenly.

Source: behaviour as transformers' GraniteMoeForCausalLM; the routers' loss is that of
Fedus et al. 2021 (Switch Transformers), equations 4 to 6.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Float32

from ntl_jax.kernels.einsum import einsum_float32
from ntl_jax.kernels.experts import run_experts
from ntl_jax.models.attention import Mask
from ntl_jax.models.granite.config import GraniteConfig
from ntl_jax.models.layers import Linear, RMSNorm
from ntl_jax.sharding.spmd import row_by_row


class MixtureOfExperts(nnx.Module):
    """Experts behind a norm and a router: each token visits the A that score highest.

    The experts' matrices are kept as the files have them, [out, in] for each expert,
    with gate and up apart, so that a mesh axis can cut both by units.
    """

    def __init__(self, config: GraniteConfig, rngs: nnx.Rngs):
        width, inner = config.hidden_size, config.intermediate_size
        experts, std = config.num_local_experts, config.initializer_range
        self.visits = config.num_experts_per_tok
        self.norm = RMSNorm(width, eps=config.rms_norm_eps)
        self.router = Linear(width, experts, std=std, rngs=rngs)
        gate_up = (experts, 2, inner, width)
        self.gate_up = nnx.Param(std * jax.random.normal(rngs.params(), gate_up))
        down = (experts, width, inner)
        self.down = nnx.Param(std * jax.random.normal(rngs.params(), down))

    def __call__(
        self, x: Float[Array, "B T D"]
    ) -> tuple[Float[Array, "B T D"], Float32[Array, "B T E"]]:
        """What the experts add to the residual stream, and the router's scores."""
        normed = self.norm(x)
        router = self.router.kernel[...].astype(x.dtype)
        scores = einsum_float32("BTD,DE->BTE", normed, router)
        # The softmax is over the chosen experts only: their weights sum to 1.
        best, chosen = _highest(scores, self.visits)  # [B, T, A]
        weights = jax.nn.softmax(best, axis=-1)
        gate_up, down = (w[...].astype(x.dtype) for w in (self.gate_up, self.down))
        return run_experts(normed, weights, chosen, gate_up, down), scores


def _highest(scores: Float32[Array, "B T E"], visits: int):
    return row_by_row(partial(jax.lax.top_k, k=visits), scores)


class RouterSums(NamedTuple):
    """What the routers' loss is made of, added up over tokens and layers."""

    visits: Float32[Array, "E"]
    probabilities: Float32[Array, "E"]
    tokens: Float32[Array, ""]


def no_router_sums(experts: int) -> RouterSums:
    """The sums over no token."""
    nothing = jnp.zeros((experts,), jnp.float32)
    return RouterSums(nothing, nothing, jnp.float32(0))


def add_router_sums(
    sums: RouterSums,
    scores: Float32[Array, "B T E"],
    visits: int,
    attention_mask: Mask | None,
) -> RouterSums:
    """The sums with one more layer's scores in them; padding does not count."""
    experts = scores.shape[-1]
    _, chosen = _highest(scores, visits)  # [B, T, A]
    visited = jnp.sum(jax.nn.one_hot(chosen, experts, dtype=jnp.float32), axis=-2)
    probabilities = jax.nn.softmax(scores, axis=-1)
    if attention_mask is None:
        present = jnp.ones(scores.shape[:-1], jnp.float32)
    else:
        present = attention_mask.astype(bool).astype(jnp.float32)
    return RouterSums(
        sums.visits + jnp.sum(visited * present[..., None], axis=(0, 1)),
        sums.probabilities + jnp.sum(probabilities * present[..., None], axis=(0, 1)),
        sums.tokens + jnp.sum(present),
    )


def router_loss(sums: RouterSums) -> Float32[Array, ""]:
    """How unevenly the experts are visited.

    E * sum_e (visits_e / tokens) * (probabilities_e / tokens)

    Args:
        sums: over all layers and tokens.

    Returns:
        A scalar: A, the visits of a token, where all experts are visited alike, and
        more where those are visited more that score higher; 0 without any token.

    Source: transformers' load_balancing_loss_func.
    """
    tokens = jnp.maximum(sums.tokens, 1.0)
    evenness = jnp.sum(sums.visits / tokens * sums.probabilities / tokens)
    return len(sums.visits) * evenness

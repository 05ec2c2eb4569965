"""T5's layers: attention, the feed-forward layer, and what each stack makes of them.

Attention scores are not divided by sqrt(H). Norms come first, residuals around them.
Source: Raffel et al. 2020; behaviour as transformers' T5Block.
"""

from collections.abc import Callable
from functools import partial

import jax
from flax import nnx
from jaxtyping import Array, Bool, Float

from ntl_jax.kernels.attention.dispatch import Implementation, attend
from ntl_jax.kernels.dropout import Dropout
from ntl_jax.models.attention import Visible
from ntl_jax.models.layers import Linear, RMSNorm
from ntl_jax.models.remat import gather_inwards
from ntl_jax.models.t5.config import T5Config

_ACTIVATIONS: dict[str, Callable] = {
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "gelu_new": partial(jax.nn.gelu, approximate=True),
}
EMBEDDED, PROBABILITIES, ATTENDED, INNER, OUTER, FINAL, CROSS = range(7)
"""Dropout sites of a stack; the first and the sixth lie outside its layers."""

KeysValues = tuple[Float[Array, "B S N H"], Float[Array, "B S N H"]]
Seen = Bool[Array, "#B 1 #T S"] | None


class Attention(nnx.Module):
    """Pre-norm multi-head attention with a residual; one class for self and cross."""

    def __init__(self, config: T5Config, rngs: nnx.Rngs):
        width, heads = config.d_model, config.num_heads
        inner, factor = heads * config.d_kv, config.initializer_factor
        self.heads = heads
        self.implementation: Implementation = config.attention
        self.norm = RMSNorm(width, eps=config.layer_norm_epsilon, scale=factor)
        gather = gather_inwards(config.remat)
        inwards = partial(Linear, width, inner, rngs=rngs, gather=gather)
        self.q = inwards(std=factor * (width * config.d_kv) ** -0.5)
        self.k = inwards(std=factor * width**-0.5)
        self.v = inwards(std=factor * width**-0.5)
        std = factor * inner**-0.5
        self.o = Linear(inner, width, std=std, rngs=rngs, gather="inputs")

    def project(self, x: Float[Array, "B S D"]) -> KeysValues:
        """Keys and values of `x`, [B, S, N, H] each."""
        shape = (*x.shape[:2], self.heads, -1)
        return self.k(x).reshape(shape), self.v(x).reshape(shape)

    def __call__(
        self, normed, memory: KeysValues, bias, visible: Visible, dropout: Dropout
    ) -> Float[Array, "B T D"]:
        """Attention of normed queries [B, T, D] over a memory's keys and values."""
        batch, length, _ = normed.shape
        mixed = attend(
            self.q(normed).reshape(batch, length, self.heads, -1),  # [B, T, N, H]
            *memory,
            scale=1.0,  # no 1/sqrt(H)
            bias=bias,
            **visible._asdict(),
            dropout=dropout.at(PROBABILITIES),
            implementation=self.implementation,
        )
        return dropout(self.o(mixed.reshape(batch, length, -1)), ATTENDED)


class FeedForward(nnx.Module):
    """Pre-norm feed-forward layer, `wo(act(wi x))` or `wo(act(wi_0 x) * wi_1 x)`."""

    def __init__(self, config: T5Config, rngs: nnx.Rngs):
        width, inner, factor = config.d_model, config.d_ff, config.initializer_factor
        self.gated = config.gated
        self.activation = config.activation
        self.norm = RMSNorm(width, eps=config.layer_norm_epsilon, scale=factor)
        std, gather = factor * width**-0.5, gather_inwards(config.remat)
        inwards = partial(Linear, width, inner, std=std, rngs=rngs, gather=gather)
        if self.gated:
            self.wi_0, self.wi_1 = inwards(), inwards()
        else:
            self.wi = inwards()
        std = factor * inner**-0.5
        self.wo = Linear(inner, width, std=std, rngs=rngs, gather="inputs")

    def __call__(self, x: Float[Array, "B T D"], dropout) -> Float[Array, "B T D"]:
        activate, y = _ACTIVATIONS[self.activation], self.norm(x)
        if self.gated:
            h = dropout(activate(self.wi_0(y)) * self.wi_1(y), INNER)  # [B, T, F]
        elif self.activation == "relu":
            h = dropout.at(INNER).relu(self.wi(y))
        else:
            h = dropout(activate(self.wi(y)), INNER)
        return x + dropout(self.wo(h), OUTER)


class EncoderLayer(nnx.Module):
    """Self-attention over the whole source, then the feed-forward layer."""

    def __init__(self, config: T5Config, rngs: nnx.Rngs):
        self.attention = Attention(config, rngs)
        self.mlp = FeedForward(config, rngs)

    def __call__(self, x, bias, seen: Seen, dropout: Dropout) -> Float[Array, "B S D"]:
        normed = self.attention.norm(x)
        own = self.attention.project(normed)
        x = x + self.attention(normed, own, bias, Visible(seen), dropout)
        return self.mlp(x, dropout)


class DecoderLayer(nnx.Module):
    """Causal self-attention, attention over the source, then the feed-forward layer."""

    def __init__(self, config: T5Config, rngs: nnx.Rngs):
        self.attention = Attention(config, rngs)
        self.cross_attention = Attention(config, rngs)
        self.mlp = FeedForward(config, rngs)

    def __call__(
        self, x, bias, seen: Seen, source, seen_source: Seen, dropout: Dropout
    ):
        normed = self.attention.norm(x)
        own = self.attention.project(normed)
        x = x + self.attention(normed, own, bias, Visible(seen, causal=True), dropout)
        normed = self.cross_attention.norm(x)
        cross, visible = dropout.after(CROSS), Visible(seen_source)
        x = x + self.cross_attention(normed, source, None, visible, cross)
        return self.mlp(x, dropout)

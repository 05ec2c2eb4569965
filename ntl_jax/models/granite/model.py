"""Granite, dense and mixture of experts: decoder-only, as IBM released it.

One parameter layout, stacked over L layers (W is the table's rows, V or more):

    embed/embedding                             [W, D]
    layers/attention/norm/scale                 [L, D]
    layers/attention/q/kernel                   [L, D, N*H]
    layers/attention/{k,v}/kernel               [L, D, K*H]
    layers/attention/o/kernel                   [L, N*H, D]
    layers/mlp/norm/scale                       [L, D]
    layers/mlp/{gate,up}/kernel                 [L, D, F]         (dense)
    layers/mlp/down/kernel                      [L, F, D]         (dense)
    layers/mlp/router/kernel                    [L, D, E]         (experts)
    layers/mlp/gate_up, layers/mlp/down         [L, E, 2, F, D], [L, E, D, F]
    final_norm/scale                            [D]
    lm_head/kernel                              [D, W]            (untied)

with {q,k,v,o}/bias and {gate,up,down}/bias where the config has them. Four numbers
set Granite apart from Llama: the embeddings, the scores and what each layer adds are
multiplied, and the logits divided, by numbers of the config.
Source: behaviour as transformers' GraniteForCausalLM and GraniteMoeForCausalLM.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Float32, Int, Key

from ntl_jax.kernels.attention.dispatch import Implementation, attend
from ntl_jax.kernels.dropout import Dropout, RowOffset
from ntl_jax.models.attention import Mask, Visible, token_positions
from ntl_jax.models.decoder_only import DecoderOnly, HeadTriple, Sizes
from ntl_jax.models.granite.config import GraniteConfig
from ntl_jax.models.granite.moe import (
    MixtureOfExperts,
    add_router_sums,
    no_router_sums,
    router_loss,
)
from ntl_jax.models.layers import Embedding, Linear, RMSNorm, stack_layers
from ntl_jax.models.remat import Gather, gather_inwards
from ntl_jax.sharding.constrain import constrain

_PROBABILITIES = 0  # the dropout site

Rotation = tuple[Float32[Array, "#B T 1 H/2"], Float32[Array, "#B T 1 H/2"]]


class Projection(Linear):
    """`y = x @ kernel`, and `+ bias` where there is one."""

    def __init__(
        self,
        d_in: int,
        d_out: int,
        *,
        std: float,
        bias: bool,
        rngs: nnx.Rngs,
        gather: Gather = None,
    ):
        super().__init__(d_in, d_out, std=std, rngs=rngs, gather=gather)
        if bias:
            self.bias = nnx.Param(jnp.zeros((d_out,), jnp.float32))
        self.biased = bias

    def __call__(self, x: Float[Array, "B T I"]) -> Float[Array, "B T O"]:
        y = super().__call__(x)
        return y + self.bias[...].astype(x.dtype)[None, None] if self.biased else y


class Attention(nnx.Module):
    """Causal attention behind a norm, with rotary positions, heads in groups."""

    def __init__(self, config: GraniteConfig, rngs: nnx.Rngs):
        width, own = config.hidden_size, config.num_attention_heads * config.head_dim
        shared = config.num_key_value_heads * config.head_dim
        std, bias = config.initializer_range, config.attention_bias
        self.head_dim = config.head_dim
        self.scale = config.attention_multiplier
        self.implementation: Implementation = config.attention
        self.norm = RMSNorm(width, eps=config.rms_norm_eps)
        project = partial(Projection, std=std, bias=bias, rngs=rngs)
        gather = gather_inwards(config.remat)
        self.q = project(width, own, gather=gather)
        self.k = project(width, shared, gather=gather)
        self.v = project(width, shared, gather=gather)
        self.o = project(own, width, gather="inputs")

    def project(self, x: Float[Array, "B T D"], rotation: Rotation):
        """Rotated queries [B, T, N, H] and keys [B, T, K, H], and values."""
        normed = self.norm(x)
        q, k, v = (
            project(normed).reshape(*x.shape[:2], -1, self.head_dim)
            for project in (self.q, self.k, self.v)
        )
        return rotate(q, rotation), rotate(k, rotation), v

    def mix(self, q, k, v, visible: Visible, dropout: Dropout) -> Float[Array, "B T D"]:
        """What attention adds to the residual stream, before its multiplier."""
        mixed = attend(
            q,
            k,
            v,
            scale=self.scale,
            **visible._asdict(),
            dropout=dropout.at(_PROBABILITIES),
            implementation=self.implementation,
        )
        return self.o(mixed.reshape(*mixed.shape[:2], -1))


class FeedForward(nnx.Module):
    """`down(silu(gate x) * up x)` behind a norm."""

    def __init__(self, config: GraniteConfig, rngs: nnx.Rngs):
        width, inner = config.hidden_size, config.intermediate_size
        project = partial(
            Projection, std=config.initializer_range, bias=config.mlp_bias, rngs=rngs
        )
        self.norm = RMSNorm(width, eps=config.rms_norm_eps)
        gather = gather_inwards(config.remat)
        self.gate = project(width, inner, gather=gather)
        self.up = project(width, inner, gather=gather)
        self.down = project(inner, width, gather="inputs")

    def __call__(self, x: Float[Array, "B T D"]) -> tuple[Float[Array, "B T D"], None]:
        y = self.norm(x)
        return self.down(jax.nn.silu(self.gate(y)) * self.up(y)), None


class Block(nnx.Module):
    """One layer: attention, then the feed-forward layer, each added to its input."""

    def __init__(self, config: GraniteConfig, rngs: nnx.Rngs):
        self.residual_multiplier = config.residual_multiplier
        self.attention = Attention(config, rngs)
        feed_forward = MixtureOfExperts if config.num_local_experts else FeedForward
        self.mlp = feed_forward(config, rngs)

    def finish(self, x, q, k, v, visible: Visible, dropout: Dropout):
        """The layer after its projections, and its router's scores (dense: None).

        Keys and values may be a cache's.
        """
        x = self._add(x, self.attention.mix(q, k, v, visible, dropout))
        update, scores = self.mlp(x)
        return self._add(x, update), scores

    def _add(self, x, update) -> Float[Array, "B T D"]:
        # In float32: a multiplier rounded to bfloat16 would be off by up to 0.2%.
        update = update.astype(jnp.float32) * self.residual_multiplier
        return (x.astype(jnp.float32) + update).astype(x.dtype)


class Granite(DecoderOnly):
    """The decoder-only model with its language-model head.

    Args:
        config: sizes and options.
        rngs: its `params` stream draws the parameters, float32, laid out as this module
            says.

    Source: transformers' GraniteForCausalLM and GraniteMoeForCausalLM.
    """

    def __init__(self, config: GraniteConfig, rngs: nnx.Rngs):
        self.config = config
        std, width = config.initializer_range, config.hidden_size
        self.embed = Embedding(config.vocab_size, width, std=std, rngs=rngs)
        count = config.num_hidden_layers
        self.layers = stack_layers(partial(Block, config), count, rngs)
        self.final_norm = RMSNorm(width, eps=config.rms_norm_eps)
        if not config.tie_word_embeddings:
            self.lm_head = Linear(width, config.vocab_size, std=std, rngs=rngs)
        self.pad_vocabulary()

    @property
    def sizes(self) -> Sizes:
        """What the cache and the layers' runner need to know."""
        config = self.config
        return Sizes(
            layers=config.num_hidden_layers,
            key_value_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            longest=config.max_position_embeddings,
            longest_field="max_position_embeddings",
        )

    @property
    def table(self) -> Embedding:
        """The embeddings of tokens, W rows."""
        return self.embed

    def embed_tokens(
        self, input_ids, positions
    ) -> tuple[Float[Array, "B T D"], Rotation]:
        """Tokens, embedded, and the angles by which layers rotate them."""
        x = self.embed(input_ids, "float32") * self.config.embedding_multiplier
        if positions is None:
            positions = token_positions(input_ids.shape[1])
        by = rotation(positions, self.config.head_dim, self.config.rope_theta)
        return x.astype(self.config.dtype), by

    def dropout(self, key, row_offset: RowOffset) -> Dropout:
        """The dropout of a forward pass: of attention's probabilities alone."""
        return Dropout(self.config.attention_dropout, key, row_offset)

    def project(self, layer: Block, x, context: Rotation) -> HeadTriple:
        """A layer's rotated queries and keys, and its values."""
        return layer.attention.project(x, context)

    def finish_layer(
        self, layer: Block, x, q, k, v, visible: Visible, dropout: Dropout
    ):
        """A layer after its projections, without its router's scores."""
        return layer.finish(x, q, k, v, visible, dropout)[0]

    def finish(self, x) -> Float[Array, "B T D"]:
        """The last layer's states, normed and divided, ready for the head."""
        x = self.final_norm(x)
        return (x.astype(jnp.float32) / self.config.logits_scaling).astype(x.dtype)

    def hidden_for_training(
        self, input_ids: Int[Array, "B T"], **options: Any
    ) -> tuple[Float[Array, "B T D"], Float32[Array, ""] | None]:
        """`hidden_and_router_loss` where experts are routed, else `hidden` and None."""
        if self.config.num_local_experts:
            return self.hidden_and_router_loss(input_ids, **options)
        return super().hidden_for_training(input_ids, **options)

    def hidden_and_router_loss(
        self,
        input_ids: Int[Array, "B T"],
        *,
        attention_mask: Mask | None = None,
        segment_ids: Int[Array, "B T"] | None = None,
        dropout_key: Key[Array, ""] | None = None,
        row_offset: RowOffset = 0,
    ) -> tuple[Float[Array, "B T D"], Float32[Array, ""]]:
        """Hidden states, and the routers' loss over all tokens but padding.

        Training adds `router_aux_loss_coef` times the loss to its own. The loss is a
        product of two means over the batch, so parts of a batch do not add up to it.

        Args:
            input_ids: as in `hidden`, and so are the others.

        Returns:
            `hidden`'s result, and a scalar, see `granite_moe.router_loss`.

        Raises:
            ValueError: the model is dense; else as `hidden`.
        """
        if not self.config.num_local_experts:
            raise ValueError(
                "num_local_experts is 0: a dense model has no routers; call hidden"
            )
        dropout = self.dropout(dropout_key, row_offset)
        x, by, visible = self.embed_rows(
            input_ids, attention_mask, segment_ids, dropout
        )
        visits = self.config.num_experts_per_tok

        def step(layer, index, carry):
            x, sums = carry
            q, k, v = self.project(layer, x, by)
            at_layer = dropout._replace(layer=index)
            x, scores = layer.finish(x, q, k, v, visible, at_layer)
            x = constrain(x, "batch")
            return x, add_router_sums(sums, scores, visits, attention_mask)

        sums = no_router_sums(self.config.num_local_experts)
        x, sums = self.run(step, (x, sums))
        return self.finish(x), router_loss(sums)


def rotation(positions: Int[Array, "#B T"], width: int, theta: float) -> Rotation:
    """Cosines and sines of angles position * theta**(-2i / width), i < width / 2."""
    powers = np.arange(0, width, 2, dtype=np.float64) / width
    speeds = jnp.asarray((theta**-powers).astype(np.float32))
    angles = positions.astype(jnp.float32)[..., None, None] * speeds[None, None, None]
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: Float[Array, "B T N H"], by: Rotation) -> Float[Array, "B T N H"]:
    """Rotary positions: places i and i + H/2 turn together, by the i-th angle."""
    cos, sin = by
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = (first * cos - second * sin, second * cos + first * sin)
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)

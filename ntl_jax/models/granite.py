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

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Float32, Int, Key

from ntl_jax.models.attention import (
    Cache,
    Mask,
    attend,
    causal_mask,
    start_cache,
    token_positions,
)
from ntl_jax.models.granite_config import GraniteConfig
from ntl_jax.models.granite_moe import (
    MixtureOfExperts,
    add_router_sums,
    no_router_sums,
    router_loss,
)
from ntl_jax.models.layers import (
    Dropout,
    Embedding,
    Linear,
    RMSNorm,
    einsum_float32,
    run_layers,
    stack_layers,
)
from ntl_jax.models.relative_bias import MASKED

_PROBABILITIES = 0  # the dropout site
_NO_DROPOUT = Dropout(0.0, None)

RowOffset = int | Int[Array, ""] | Int[Array, "B"]
Rotation = tuple[Float32[Array, "#B T 1 H/2"], Float32[Array, "#B T 1 H/2"]]


class Projection(Linear):
    """`y = x @ kernel`, and `+ bias` where there is one."""

    def __init__(
        self, d_in: int, d_out: int, *, std: float, bias: bool, rngs: nnx.Rngs
    ):
        super().__init__(d_in, d_out, std=std, rngs=rngs)
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
        self.norm = RMSNorm(width, eps=config.rms_norm_eps)
        self.q = Projection(width, own, std=std, bias=bias, rngs=rngs)
        self.k = Projection(width, shared, std=std, bias=bias, rngs=rngs)
        self.v = Projection(width, shared, std=std, bias=bias, rngs=rngs)
        self.o = Projection(own, width, std=std, bias=bias, rngs=rngs)

    def project(self, x: Float[Array, "B T D"], rotation: Rotation):
        """Rotated queries [B, T, N, H] and keys [B, T, K, H], and values."""
        normed = self.norm(x)
        q, k, v = (
            project(normed).reshape(*x.shape[:2], -1, self.head_dim)
            for project in (self.q, self.k, self.v)
        )
        return rotate(q, rotation), rotate(k, rotation), v

    def mix(self, q, k, v, mask, drop: Dropout) -> Float[Array, "B T D"]:
        """What attention adds to the residual stream, before its multiplier."""
        drop_probabilities = partial(drop, site=_PROBABILITIES)
        mixed = attend(q, k, v, scale=self.scale, mask=mask, drop=drop_probabilities)
        return self.o(mixed.reshape(*mixed.shape[:2], -1))


class FeedForward(nnx.Module):
    """`down(silu(gate x) * up x)` behind a norm."""

    def __init__(self, config: GraniteConfig, rngs: nnx.Rngs):
        width, inner = config.hidden_size, config.intermediate_size
        project = partial(
            Projection, std=config.initializer_range, bias=config.mlp_bias, rngs=rngs
        )
        self.norm = RMSNorm(width, eps=config.rms_norm_eps)
        self.gate, self.up = project(width, inner), project(width, inner)
        self.down = project(inner, width)

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

    def finish(self, x, q, k, v, mask, drop: Dropout):
        """The layer after its projections, and its router's scores (dense: None).

        Keys and values may be a cache's.
        """
        x = self._add(x, self.attention.mix(q, k, v, mask, drop))
        update, scores = self.mlp(x)
        return self._add(x, update), scores

    def _add(self, x, update) -> Float[Array, "B T D"]:
        # In float32: a multiplier rounded to bfloat16 would be off by up to 0.2%.
        update = update.astype(jnp.float32) * self.residual_multiplier
        return (x.astype(jnp.float32) + update).astype(x.dtype)


class Granite(nnx.Module):
    """The decoder-only model with its language-model head."""

    def __init__(self, config: GraniteConfig, rngs: nnx.Rngs):
        self.config = config
        std, width = config.initializer_range, config.hidden_size
        padding = config.rows - config.vocab_size
        self.embed = Embedding(config.vocab_size, width, std=std, rngs=rngs)
        count = config.num_hidden_layers
        self.layers = stack_layers(partial(Block, config), count, rngs)
        self.final_norm = RMSNorm(width, eps=config.rms_norm_eps)
        if padding:
            table = self.embed.embedding[...]
            self.embed.embedding = nnx.Param(jnp.pad(table, ((0, padding), (0, 0))))
        if not config.tie_word_embeddings:
            self.lm_head = Linear(width, config.vocab_size, std=std, rngs=rngs)
            kernel = self.lm_head.kernel[...]
            self.lm_head.kernel = nnx.Param(jnp.pad(kernel, ((0, 0), (0, padding))))

    def __call__(
        self,
        input_ids: Int[Array, "B T"],
        *,
        attention_mask: Mask | None = None,
        segment_ids: Int[Array, "B T"] | None = None,
        dropout_key: Key[Array, ""] | None = None,
        row_offset: RowOffset = 0,
    ) -> Float32[Array, "B T W"]:
        """Logits of the token after each position; arguments as `hidden`."""
        hidden = self.hidden(
            input_ids,
            attention_mask=attention_mask,
            segment_ids=segment_ids,
            dropout_key=dropout_key,
            row_offset=row_offset,
        )
        return self.logits(hidden)

    def hidden(
        self,
        input_ids: Int[Array, "B T"],
        *,
        attention_mask: Mask | None = None,
        segment_ids: Int[Array, "B T"] | None = None,
        dropout_key: Key[Array, ""] | None = None,
        row_offset: RowOffset = 0,
    ) -> Float[Array, "B T D"]:
        """The last hidden states, scaled and ready for the head.

        Args:
            input_ids: tokens.
            attention_mask: true or non-zero where a token is none of padding, on
                either side; None where there is no padding. Padding has no position.
            segment_ids: equal, side by side, where tokens belong together, in rows
                that hold several texts: each starts at position 0 and sees itself
                alone.
            dropout_key: a threefry key of this step; None means no dropout.
            row_offset: see `dropout`; for batches that come in parts.

        Returns:
            [B, T, D] in the config's dtype: `hidden @ head` are the logits. Where
            the input is padding it is finite, and of no meaning.

        Raises:
            ValueError: shapes disagree, or a row is longer than
                `max_position_embeddings`.
        """
        drop = Dropout(self.config.attention_dropout, dropout_key, row_offset)
        return self._read(input_ids, attention_mask, segment_ids, drop, False)[0]

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
        drop = Dropout(self.config.attention_dropout, dropout_key, row_offset)
        x, sums = self._read(input_ids, attention_mask, segment_ids, drop, True)
        return x, router_loss(sums)

    @jax.named_scope("head")
    def logits(self, hidden: Float[Array, "B T D"]) -> Float32[Array, "B T W"]:
        """Float32 logits of hidden states; -1e30 in columns of padding."""
        if self.config.tie_word_embeddings:
            table = self.embed.embedding[...].astype(hidden.dtype)
            logits = einsum_float32("BTD,VD->BTV", hidden, table)
        else:
            kernel = self.lm_head.kernel[...].astype(hidden.dtype)
            logits = einsum_float32("BTD,DV->BTV", hidden, kernel)
        if self.config.rows == self.config.vocab_size:
            return logits
        columns = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
        return jnp.where(columns < self.config.vocab_size, logits, jnp.float32(MASKED))

    @property
    def head(self) -> Float32[Array, "D W"]:
        """The head's kernel: the table's transpose where the two are tied."""
        if self.config.tie_word_embeddings:
            return self.embed.embedding[...].T
        return self.lm_head.kernel[...]

    def prefill(
        self,
        input_ids: Int[Array, "B P"],
        attention_mask: Mask | None,
        length: int,
    ) -> tuple[Float[Array, "B 1 D"], Cache]:
        """Reads prompts, padded on the left, ahead of `decode_step`.

        Args:
            input_ids: the prompts, each ending in the last column.
            attention_mask: zero where a prompt is padded; None: nowhere.
            length: how many tokens are to come.

        Returns:
            The last column's hidden states, and a cache for P + length tokens.

        Raises:
            ValueError: shapes disagree, or P + length is beyond
                `max_position_embeddings`.
        """
        self._check(input_ids, length, attention_mask, None)
        config, (batch, prompt) = self.config, input_ids.shape
        mask = causal_mask(prompt, attention_mask)
        rotation = self._rotation(token_positions(prompt, attention_mask))
        shape = (batch, prompt, config.num_key_value_heads, config.head_dim)
        empty = jnp.zeros((config.num_hidden_layers, *shape), config.dtype)

        def step(layer, index, carry):
            x, keys, values = carry
            q, k, v = layer.attention.project(x, rotation)
            keys = jax.lax.dynamic_update_index_in_dim(keys, k, index, 0)
            values = jax.lax.dynamic_update_index_in_dim(values, v, index, 0)
            return layer.finish(x, q, k, v, mask, _NO_DROPOUT)[0], keys, values

        x, keys, values = self._run(step, (self._embed(input_ids), empty, empty))
        cache = start_cache(keys, values, attention_mask, length)
        return self._finish(x[:, -1:]), cache

    def decode_step(
        self, tokens: Int[Array, "B"], cache: Cache
    ) -> tuple[Float[Array, "B 1 D"], Cache]:
        """Hidden states after one more token a row, and the cache with that token.

        The cache must have room: a step beyond its `length` overwrites the last slot.
        """
        mask = cache.seen_by_next()[:, None, None]  # [B, 1, 1, S]
        rotation = self._rotation(cache.positions[:, None])

        def step(layer, index, carry):
            x, keys, values = carry
            q, k, v = layer.attention.project(x, rotation)
            start = (index, 0, cache.filled, 0, 0)
            # The cache is carried, not scanned over: it is then written in place.
            keys = jax.lax.dynamic_update_slice(keys, k[None], start)
            values = jax.lax.dynamic_update_slice(values, v[None], start)
            own = keys[index], values[index]
            return layer.finish(x, q, *own, mask, _NO_DROPOUT)[0], keys, values

        carry = (self._embed(tokens[:, None]), cache.keys, cache.values)
        x, keys, values = self._run(step, carry)
        return self._finish(x), cache.advanced(keys, values)

    def _read(self, input_ids, attention_mask, segment_ids, drop, with_sums: bool):
        """Hidden states ready for the head, and sums for the routers' loss or none."""
        self._check(input_ids, 0, attention_mask, segment_ids)
        length, visits = input_ids.shape[1], self.config.num_experts_per_tok
        mask = causal_mask(length, attention_mask, segment_ids)
        positions = token_positions(length, attention_mask, segment_ids)
        rotation = self._rotation(positions)

        def step(layer, index, carry):
            x, sums = carry
            projected = layer.attention.project(x, rotation)
            x, scores = layer.finish(x, *projected, mask, drop._replace(layer=index))
            if with_sums:
                sums = add_router_sums(sums, scores, visits, attention_mask)
            return x, sums

        sums = no_router_sums(self.config.num_local_experts)
        x, sums = self._run(step, (self._embed(input_ids), sums))
        return self._finish(x), sums

    def _embed(self, input_ids) -> Float[Array, "B T D"]:
        x = self.embed(input_ids, "float32") * self.config.embedding_multiplier
        return x.astype(self.config.dtype)

    def _rotation(self, positions) -> Rotation:
        return rotation(positions, self.config.head_dim, self.config.rope_theta)

    def _finish(self, x) -> Float[Array, "B T D"]:
        x = self.final_norm(x)
        return (x.astype(jnp.float32) / self.config.logits_scaling).astype(x.dtype)

    def _run(self, step, carry):
        config = self.config
        unroll, remat = config.unroll_layers, config.remat
        count = config.num_hidden_layers
        return run_layers(self.layers, count, step, carry, unroll=unroll, remat=remat)

    def _check(self, input_ids, more: int, *rows: Array | None) -> None:
        if input_ids.ndim != 2:
            raise ValueError(
                f"input_ids must be [B, T]; their shape is {input_ids.shape}"
            )
        for other in rows:
            if other is not None and other.shape != input_ids.shape:
                raise ValueError(
                    f"attention_mask and segment_ids must have the shape of input_ids "
                    f"{input_ids.shape}; one is {other.shape}"
                )
        limit = self.config.max_position_embeddings
        if input_ids.shape[1] + more > limit:
            raise ValueError(
                f"{input_ids.shape[1]} tokens and {more} to come are "
                f"{input_ids.shape[1] + more}, but the model has "
                f"max_position_embeddings = {limit}; shorten them"
            )


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

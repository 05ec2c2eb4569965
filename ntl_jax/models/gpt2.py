"""GPT-2: the decoder-only model of the paper's multiplication experiments.

One parameter layout, stacked over L layers (W is the table's rows, V or more):

    wte/embedding                               [W, D]
    wpe/embedding                               [n_positions, D]
    layers/attention/norm/{scale,bias}          [L, D]
    layers/attention/qkv/{kernel,bias}          [L, D, 3, N*H], [L, 3, N*H]
    layers/attention/o/{kernel,bias}            [L, N*H, D], [L, D]
    layers/mlp/norm/{scale,bias}                [L, D]
    layers/mlp/wi/{kernel,bias}                 [L, D, F], [L, F]
    layers/mlp/wo/{kernel,bias}                 [L, F, D], [L, D]
    final_norm/{scale,bias}                     [D]
    lm_head/kernel                              [D, W]      (untied)

Queries, keys and values are one product; their axis of 3 lies apart, so that a mesh
axis can cut each of the three by heads.
Source: Radford et al. 2019; behaviour as transformers' GPT2LMHeadModel.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
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
from ntl_jax.models.gpt2_config import GPT2Config
from ntl_jax.models.layers import (
    Affine,
    Dropout,
    Embedding,
    LayerNorm,
    Linear,
    einsum_float32,
    run_layers,
    stack_layers,
)
from ntl_jax.models.relative_bias import MASKED

_ACTIVATIONS: dict[str, Callable] = {
    "gelu_new": partial(jax.nn.gelu, approximate=True),
    "gelu_pytorch_tanh": partial(jax.nn.gelu, approximate=True),
    "gelu": partial(jax.nn.gelu, approximate=False),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
}
_EMBEDDED, _PROBABILITIES, _ATTENDED, _OUTER = range(4)  # dropout sites
_NO_DROPOUT = Dropout(0.0, None)

RowOffset = int | Int[Array, ""] | Int[Array, "B"]
HeadTriple = tuple[Array, Array, Array]  # q, k, v, [B, T, N, H] each


class Attention(nnx.Module):
    """Causal multi-head attention behind a norm."""

    def __init__(self, config: GPT2Config, rngs: nnx.Rngs):
        width, std = config.n_embd, config.initializer_range
        self.heads = config.n_head
        self.norm = LayerNorm(width, eps=config.layer_norm_epsilon)
        self.qkv = Affine(width, 3, width, std=std, rngs=rngs)
        self.o = Affine(width, width, std=_residual_std(config), rngs=rngs)

    def project(self, normed: Float[Array, "B T D"]) -> HeadTriple:
        """Queries, keys and values of normed states."""
        batch, length, width = normed.shape
        fused = self.qkv(normed)  # [B, T, 3, N*H]
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = (fused[:, :, part].reshape(shape) for part in range(3))
        return q, k, v

    def mix(self, q, k, v, mask, rates, drop: Dropout) -> Float[Array, "B T D"]:
        """What attention adds to the residual stream."""
        at_probabilities = drop._replace(rate=rates.attn_pdrop)
        mixed = attend(
            q,
            k,
            v,
            scale=q.shape[-1] ** -0.5,
            mask=mask,
            drop=lambda weights: at_probabilities(weights, _PROBABILITIES),
        )
        y = self.o(mixed.reshape(*mixed.shape[:2], -1))
        return drop._replace(rate=rates.resid_pdrop)(y, _ATTENDED)


class FeedForward(nnx.Module):
    """`wo(act(wi x))` behind a norm."""

    def __init__(self, config: GPT2Config, rngs: nnx.Rngs):
        width, inner = config.n_embd, config.inner
        self.norm = LayerNorm(width, eps=config.layer_norm_epsilon)
        self.wi = Affine(width, inner, std=config.initializer_range, rngs=rngs)
        self.wo = Affine(inner, width, std=_residual_std(config), rngs=rngs)

    def __call__(self, x, config: GPT2Config, drop: Dropout) -> Float[Array, "B T D"]:
        h = _ACTIVATIONS[config.activation_function](self.wi(self.norm(x)))
        return drop._replace(rate=config.resid_pdrop)(self.wo(h), _OUTER)


class Block(nnx.Module):
    """One layer: attention, then the feed-forward layer, each added to its input."""

    def __init__(self, config: GPT2Config, rngs: nnx.Rngs):
        self.config = config
        self.attention = Attention(config, rngs)
        self.mlp = FeedForward(config, rngs)

    def project(self, x: Float[Array, "B T D"]) -> HeadTriple:
        """Queries, keys and values, [B, T, N, H] each."""
        return self.attention.project(self.attention.norm(x))

    def finish(self, x, q, k, v, mask, drop: Dropout) -> Float[Array, "B T D"]:
        """The layer after its projections; keys and values may be a cache's."""
        x = x + self.attention.mix(q, k, v, mask, self.config, drop)
        return x + self.mlp(x, self.config, drop)


class GPT2(nnx.Module):
    """The decoder-only model with its language-model head."""

    def __init__(self, config: GPT2Config, rngs: nnx.Rngs):
        self.config = config
        std, width = config.initializer_range, config.n_embd
        padding = config.rows - config.vocab_size
        self.wte = Embedding(config.vocab_size, width, std=std, rngs=rngs)
        self.wpe = Embedding(config.n_positions, width, std=std, rngs=rngs)
        self.layers = stack_layers(partial(Block, config), config.n_layer, rngs)
        self.final_norm = LayerNorm(width, eps=config.layer_norm_epsilon)
        if not config.tie_word_embeddings:
            self.lm_head = Linear(width, config.vocab_size, std=std, rngs=rngs)
        if padding:
            table = self.wte.embedding[...]
            self.wte.embedding = nnx.Param(jnp.pad(table, ((0, padding), (0, 0))))
        if padding and not config.tie_word_embeddings:
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
        """The last hidden states, ready for the head.

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
            ValueError: shapes disagree, or a row is longer than `n_positions`.
        """
        self._check(input_ids, 0, attention_mask, segment_ids)
        length = input_ids.shape[1]
        mask = causal_mask(length, attention_mask, segment_ids)
        positions = _positions(length, attention_mask, segment_ids)
        drop = Dropout(self.config.embd_pdrop, dropout_key, row_offset)
        x = drop(self._embed(input_ids, positions), _EMBEDDED)

        def step(layer, index, x):
            return layer.finish(x, *layer.project(x), mask, drop._replace(layer=index))

        return self.final_norm(self._run(step, x))

    @jax.named_scope("head")
    def logits(self, hidden: Float[Array, "B T D"]) -> Float32[Array, "B T W"]:
        """Float32 logits of hidden states; -1e30 in columns of padding."""
        if self.config.tie_word_embeddings:
            table = self.wte.embedding[...].astype(hidden.dtype)
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
            return self.wte.embedding[...].T
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
            ValueError: shapes disagree, or P + length is beyond `n_positions`.
        """
        self._check(input_ids, length, attention_mask, None)
        config, (batch, prompt) = self.config, input_ids.shape
        mask = causal_mask(prompt, attention_mask)
        positions = _positions(prompt, attention_mask, None)
        shape = (batch, prompt, config.n_head, config.n_embd // config.n_head)
        empty = jnp.zeros((config.n_layer, *shape), config.dtype)

        def step(layer, index, carry):
            x, keys, values = carry
            q, k, v = layer.project(x)
            keys = jax.lax.dynamic_update_index_in_dim(keys, k, index, 0)
            values = jax.lax.dynamic_update_index_in_dim(values, v, index, 0)
            return layer.finish(x, q, k, v, mask, _NO_DROPOUT), keys, values

        carry = (self._embed(input_ids, positions), empty, empty)
        x, keys, values = self._run(step, carry)
        cache = start_cache(keys, values, attention_mask, length)
        return self.final_norm(x[:, -1:]), cache

    def decode_step(
        self, tokens: Int[Array, "B"], cache: Cache
    ) -> tuple[Float[Array, "B 1 D"], Cache]:
        """Hidden states after one more token a row, and the cache with that token.

        The cache must have room: a step beyond its `length` overwrites the last slot.
        """
        x = self._embed(tokens[:, None], cache.positions[:, None])
        mask = cache.seen_by_next()[:, None, None]  # [B, 1, 1, S]

        def step(layer, index, carry):
            x, keys, values = carry
            q, k, v = layer.project(x)
            start = (index, 0, cache.filled, 0, 0)
            # The cache is carried, not scanned over: it is then written in place.
            keys = jax.lax.dynamic_update_slice(keys, k[None], start)
            values = jax.lax.dynamic_update_slice(values, v[None], start)
            x = layer.finish(x, q, keys[index], values[index], mask, _NO_DROPOUT)
            return x, keys, values

        x, keys, values = self._run(step, (x, cache.keys, cache.values))
        return self.final_norm(x), cache.advanced(keys, values)

    def _embed(self, input_ids, positions) -> Float[Array, "B T D"]:
        table = self.wpe.embedding[...]
        if positions is None:  # a slice's gradient costs less than a gather's
            places = table[None, : input_ids.shape[1]]
        else:
            places = table[positions]
        tokens = self.wte.embedding[...][input_ids]
        return (tokens + places).astype(self.config.dtype)

    def _run(self, step, carry):
        config = self.config
        unroll, remat = config.unroll_layers, config.remat
        return run_layers(
            self.layers, config.n_layer, step, carry, unroll=unroll, remat=remat
        )

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
        total = input_ids.shape[1] + more
        if total > self.config.n_positions:
            raise ValueError(
                f"{input_ids.shape[1]} tokens and {more} to come are {total}, but the "
                f"model has n_positions = {self.config.n_positions}; shorten them"
            )


def _positions(length: int, attention_mask, segment_ids) -> Array | None:
    if attention_mask is None and segment_ids is None:
        return None  # 0, 1, 2, ... in every row
    return token_positions(length, attention_mask, segment_ids)


def _residual_std(config: GPT2Config) -> float:
    # Every layer adds twice to the residual stream.
    return config.initializer_range * (2 * config.n_layer) ** -0.5

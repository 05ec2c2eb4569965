"""T5: the encoder-decoder that every text experiment of the paper fine-tunes.

One parameter layout, stacked over layers (Lₑ encoder layers, L_d decoder layers):

    shared/embedding                                          [V, D]
    {encoder,decoder}/relative_bias/embedding                 [buckets, N]
    {encoder,decoder}/layers/attention/norm/scale             [L, D]
    {encoder,decoder}/layers/attention/{q,k,v}/kernel         [L, D, N*H]
    {encoder,decoder}/layers/attention/o/kernel               [L, N*H, D]
    decoder/layers/cross_attention/...                        as attention
    {encoder,decoder}/layers/mlp/norm/scale                   [L, D]
    {encoder,decoder}/layers/mlp/wi/kernel                    [L, D, F]   (v1.0)
    {encoder,decoder}/layers/mlp/{wi_0,wi_1}/kernel           [L, D, F]   (v1.1, gated)
    {encoder,decoder}/layers/mlp/wo/kernel                    [L, F, D]
    {encoder,decoder}/final_norm/scale                        [D]
    lm_head/kernel                                            [D, V]      (untied)

Attention scores are not divided by sqrt(H); positions enter only through the
relative bias of self-attention, one table a stack, shared by all its layers.
Source: Raffel et al. 2020; behaviour as transformers' T5ForConditionalGeneration.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Float32, Int, Key

from ntl_jax.models.layers import (
    Dropout,
    Embedding,
    Linear,
    RMSNorm,
    einsum_float32,
    run_layers,
    stack_layers,
)

_MASKED = -1e30  # finite, so that a row with nothing to attend to stays finite
_ACTIVATIONS: dict[str, Callable] = {
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "gelu_new": partial(jax.nn.gelu, approximate=True),
}
# Dropout sites. The decoder's are the encoder's plus 16.
_EMBEDDED, _PROBABILITIES, _ATTENDED, _INNER, _OUTER, _FINAL, _CROSS = range(7)
_DECODER_SITES = 16
_NO_DROPOUT = Dropout(0.0, None)

Mask = Bool[Array, "B S"] | Int[Array, "B S"]
RowOffset = int | Int[Array, ""] | Int[Array, "B"]


@dataclasses.dataclass(frozen=True)
class T5Config:
    """Sizes and options of a T5; field names as in Hugging Face's config.json."""

    vocab_size: int = 32128  # the checkpoints' rows, more than the tokenizer's 32100
    d_model: int = 512
    d_kv: int = 64  # head dim; not d_model / num_heads (3B: 128)
    d_ff: int = 2048
    num_layers: int = 6
    num_decoder_layers: int = 6
    num_heads: int = 8
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    dropout_rate: float = 0.1
    layer_norm_epsilon: float = 1e-6
    initializer_factor: float = 1.0
    feed_forward_proj: str = "relu"
    tie_word_embeddings: bool = True
    scale_decoder_outputs: bool = True  # by d_model**-0.5, before the head
    pad_token_id: int = 0
    eos_token_id: int = 1
    decoder_start_token_id: int = 0
    dtype: str = "float32"  # of activations; parameters are always float32
    unroll_layers: bool = False  # slower to compile, at times faster to run
    remat: bool = False  # recompute each layer in the backward pass

    def __post_init__(self):
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(
                f"dtype is {self.dtype!r}; choose 'float32' or 'bfloat16' "
                "(T5's activations exceed float16's range)"
            )
        if self.activation not in _ACTIVATIONS:
            raise ValueError(
                f"feed_forward_proj is {self.feed_forward_proj!r}; choose one of "
                f"{sorted(_ACTIVATIONS)}, or one of them after 'gated-'"
            )
        if not 0.0 <= self.dropout_rate < 1.0:
            raise ValueError(f"dropout_rate is {self.dropout_rate}, outside [0, 1)")

    @property
    def gated(self) -> bool:
        """Whether the feed-forward layer multiplies two projections."""
        return self.feed_forward_proj.startswith("gated-")

    @property
    def activation(self) -> str:
        """Name of the feed-forward layer's activation."""
        name = self.feed_forward_proj.removeprefix("gated-")
        # In T5's configs "gated-gelu" has always meant the tanh approximation.
        return "gelu_new" if self.gated and name == "gelu" else name

    @property
    def module(self) -> type["T5"]:
        """The module that this config describes."""
        return T5

    @classmethod
    def small(cls, **changes) -> "T5Config":
        """t5-small: 60,506,624 parameters."""
        return cls(**changes)

    @classmethod
    def base(cls, **changes) -> "T5Config":
        """t5-base: 222,903,552 parameters."""
        return cls(**_sizes(768, 64, 3072, 12, 12) | changes)

    @classmethod
    def large(cls, **changes) -> "T5Config":
        """t5-large: 737,668,096 parameters."""
        return cls(**_sizes(1024, 64, 4096, 24, 16) | changes)

    @classmethod
    def t5_3b(cls, **changes) -> "T5Config":
        """t5-3b: 2,851,598,336 parameters."""
        return cls(**_sizes(1024, 128, 16384, 24, 32) | changes)

    @classmethod
    def v1_1_small(cls, **changes) -> "T5Config":
        """t5-v1_1-small and flan-t5-small: 76,961,152 parameters."""
        return cls(**_sizes(512, 64, 1024, 8, 6) | _V1_1 | changes)

    @classmethod
    def v1_1_base(cls, **changes) -> "T5Config":
        """t5-v1_1-base and flan-t5-base: 247,577,856 parameters."""
        return cls(**_sizes(768, 64, 2048, 12, 12) | _V1_1 | changes)

    @classmethod
    def v1_1_large(cls, **changes) -> "T5Config":
        """t5-v1_1-large and flan-t5-large: 783,150,080 parameters."""
        return cls(**_sizes(1024, 64, 2816, 24, 16) | _V1_1 | changes)

    @classmethod
    def v1_1_xl(cls, **changes) -> "T5Config":
        """t5-v1_1-xl and flan-t5-xl: 2,849,757,184 parameters."""
        return cls(**_sizes(2048, 64, 5120, 24, 32) | _V1_1 | changes)


_V1_1 = {
    "feed_forward_proj": "gated-gelu",
    "tie_word_embeddings": False,
    "scale_decoder_outputs": False,
}


def _sizes(d_model, d_kv, d_ff, layers, heads) -> dict:
    return {
        "d_model": d_model,
        "d_kv": d_kv,
        "d_ff": d_ff,
        "num_layers": layers,
        "num_decoder_layers": layers,
        "num_heads": heads,
    }


def _distance_buckets(buckets: int, max_distance: int) -> np.ndarray:
    """Bucket of each distance 0..max_distance: exact up to half, then logarithmic.

    Made on the host: a device whose logarithm is an ulp off would move an edge.
    """
    exact = buckets // 2
    distance = np.arange(max_distance + 1, dtype=np.float32)
    ratio = np.log(np.maximum(distance, 1) / np.float32(exact))
    ratio = ratio / np.float32(np.log(max_distance / exact))
    coarse = exact + (ratio * np.float32(buckets - exact)).astype(np.int32)
    coarse = np.minimum(coarse, buckets - 1)
    return np.where(distance < exact, distance.astype(np.int32), coarse)


class RelativeBias(nnx.Module):
    """A learned score per head and bucket of (key position - query position)."""

    def __init__(self, config: T5Config, *, bidirectional: bool, rngs: nnx.Rngs):
        self.bidirectional = bidirectional
        self.buckets = config.relative_attention_num_buckets
        self.max_distance = config.relative_attention_max_distance
        std = config.initializer_factor * config.d_model**-0.5
        embedding = Embedding(self.buckets, config.num_heads, std=std, rngs=rngs)
        self.embedding = embedding.embedding

    def __call__(
        self, queries: Int[Array, "T"], keys: Int[Array, "S"]
    ) -> Float32[Array, "1 N T S"]:
        offset = keys[None, :] - queries[:, None]  # [T, S]
        sided = self.buckets // 2 if self.bidirectional else self.buckets
        table = jnp.asarray(_distance_buckets(sided, self.max_distance), jnp.int32)
        distance = jnp.abs(offset) if self.bidirectional else jnp.maximum(-offset, 0)
        bucket = table[jnp.minimum(distance, self.max_distance)]
        if self.bidirectional:
            bucket = bucket + sided * (offset > 0).astype(jnp.int32)
        # A product with one-hot rows: its gradient is a product too, where a gather
        # would add T*S rows into a handful of places, one after another.
        rows = jax.nn.one_hot(bucket, self.buckets, dtype=jnp.float32)  # [T, S, K]
        bias = jnp.einsum(
            "TSK,KN->NTS",
            rows,
            self.embedding[...],
            precision=jax.lax.Precision.HIGHEST,
        )
        if not self.bidirectional:
            bias = jnp.where((offset > 0)[None], _MASKED, bias)
        return bias[None]


class Attention(nnx.Module):
    """Pre-norm multi-head attention with a residual; one class for self and cross."""

    def __init__(self, config: T5Config, rngs: nnx.Rngs):
        width, heads = config.d_model, config.num_heads
        inner, factor = heads * config.d_kv, config.initializer_factor
        self.heads = heads
        self.norm = RMSNorm(width, eps=config.layer_norm_epsilon, scale=factor)
        q_std = factor * (width * config.d_kv) ** -0.5
        self.q = Linear(width, inner, std=q_std, rngs=rngs)
        self.k = Linear(width, inner, std=factor * width**-0.5, rngs=rngs)
        self.v = Linear(width, inner, std=factor * width**-0.5, rngs=rngs)
        self.o = Linear(inner, width, std=factor * inner**-0.5, rngs=rngs)

    def project(self, x: Float[Array, "B S D"]) -> tuple[Array, Array]:
        """Keys and values of `x`, [B, S, N, H] each."""
        shape = (*x.shape[:2], self.heads, -1)
        return self.k(x).reshape(shape), self.v(x).reshape(shape)

    def attend(self, normed, keys, values, bias, drop) -> Float[Array, "B T D"]:
        """Attention of normed queries [B, T, D] over keys and values [B, S, N, H]."""
        batch, length, _ = normed.shape
        q = self.q(normed).reshape(batch, length, self.heads, -1)  # [B, T, N, H]
        scores = einsum_float32("BTNH,BSNH->BNTS", q, keys)  # no 1/sqrt(H)
        for part in bias:
            scores = scores + jnp.broadcast_to(part, scores.shape)
        weights = jax.nn.softmax(scores, axis=-1).astype(normed.dtype)
        weights = drop(weights, _PROBABILITIES)
        mixed = jnp.einsum("BNTS,BSNH->BTNH", weights, values)
        return drop(self.o(mixed.reshape(batch, length, -1)), _ATTENDED)


class FeedForward(nnx.Module):
    """Pre-norm feed-forward layer, `wo(act(wi x))` or `wo(act(wi_0 x) * wi_1 x)`."""

    def __init__(self, config: T5Config, rngs: nnx.Rngs):
        width, inner, factor = config.d_model, config.d_ff, config.initializer_factor
        self.gated = config.gated
        self.activation = config.activation
        self.norm = RMSNorm(width, eps=config.layer_norm_epsilon, scale=factor)
        project = partial(Linear, width, inner, std=factor * width**-0.5, rngs=rngs)
        if self.gated:
            self.wi_0, self.wi_1 = project(), project()
        else:
            self.wi = project()
        self.wo = Linear(inner, width, std=factor * inner**-0.5, rngs=rngs)

    def __call__(self, x: Float[Array, "B T D"], drop) -> Float[Array, "B T D"]:
        activate, y = _ACTIVATIONS[self.activation], self.norm(x)
        h = (
            activate(self.wi_0(y)) * self.wi_1(y)
            if self.gated
            else activate(self.wi(y))
        )
        return x + drop(self.wo(drop(h, _INNER)), _OUTER)  # h: [B, T, F]


class EncoderLayer(nnx.Module):
    """Self-attention over the whole source, then the feed-forward layer."""

    def __init__(self, config: T5Config, rngs: nnx.Rngs):
        self.attention = Attention(config, rngs)
        self.mlp = FeedForward(config, rngs)

    def __call__(self, x, biases, drop: Dropout) -> Float[Array, "B S D"]:
        normed = self.attention.norm(x)
        keys, values = self.attention.project(normed)
        x = x + self.attention.attend(normed, keys, values, biases, drop)
        return self.mlp(x, drop)


class DecoderLayer(nnx.Module):
    """Causal self-attention, attention over the source, then the feed-forward layer."""

    def __init__(self, config: T5Config, rngs: nnx.Rngs):
        self.attention = Attention(config, rngs)
        self.cross_attention = Attention(config, rngs)
        self.mlp = FeedForward(config, rngs)

    def __call__(self, x, biases, source, source_biases, drop: Dropout):
        normed = self.attention.norm(x)
        own = self.attention.project(normed)
        return self.finish(x, normed, own, biases, source, source_biases, drop)

    def finish(self, x, normed, own, biases, source, source_biases, drop: Dropout):
        """The layer after its keys and values: `own` and `source` are such pairs."""
        x = x + self.attention.attend(normed, *own, biases, drop)
        normed = self.cross_attention.norm(x)
        cross = drop.after(_CROSS)
        x = x + self.cross_attention.attend(normed, *source, source_biases, cross)
        return self.mlp(x, drop)


class Stack(nnx.Module):
    """A stack's layers [L, ...], the relative bias that they share, its last norm."""

    def __init__(self, config: T5Config, layer: type, count: int, rngs: nnx.Rngs):
        bidirectional = layer is EncoderLayer
        self.relative_bias = RelativeBias(
            config, bidirectional=bidirectional, rngs=rngs
        )
        self.layers = stack_layers(partial(layer, config), count, rngs)
        self.final_norm = RMSNorm(
            config.d_model,
            eps=config.layer_norm_epsilon,
            scale=config.initializer_factor,
        )


class Cache(NamedTuple):
    """What decoding remembers: all layers' keys and values, and the source's mask."""

    keys: Float[Array, "L B T N H"]
    values: Float[Array, "L B T N H"]
    source_keys: Float[Array, "L B S N H"]
    source_values: Float[Array, "L B S N H"]
    source_biases: tuple[Float32[Array, "B 1 1 S"], ...]


class T5(nnx.Module):
    """The encoder-decoder with its language-model head."""

    def __init__(self, config: T5Config, rngs: nnx.Rngs):
        self.config = config
        factor, shape = config.initializer_factor, (config.vocab_size, config.d_model)
        self.shared = Embedding(*shape, std=factor, rngs=rngs)
        self.encoder = Stack(config, EncoderLayer, config.num_layers, rngs)
        self.decoder = Stack(config, DecoderLayer, config.num_decoder_layers, rngs)
        if not config.tie_word_embeddings:
            self.lm_head = Linear(*reversed(shape), std=factor, rngs=rngs)

    def __call__(
        self,
        input_ids: Int[Array, "B S"],
        decoder_input_ids: Int[Array, "B T"],
        *,
        attention_mask: Mask | None = None,
        dropout_key: Key[Array, ""] | None = None,
        row_offset: RowOffset = 0,
    ) -> Float32[Array, "B T V"]:
        """Logits of every target position; arguments as `hidden`."""
        hidden = self.hidden(
            input_ids,
            decoder_input_ids,
            attention_mask=attention_mask,
            dropout_key=dropout_key,
            row_offset=row_offset,
        )
        return self.logits(hidden)

    def hidden(
        self,
        input_ids: Int[Array, "B S"],
        decoder_input_ids: Int[Array, "B T"],
        *,
        attention_mask: Mask | None = None,
        dropout_key: Key[Array, ""] | None = None,
        row_offset: RowOffset = 0,
    ) -> Float[Array, "B T D"]:
        """The decoder's last hidden states, scaled and ready for the head.

        Args:
            input_ids: source tokens.
            decoder_input_ids: target tokens moved one to the right (`shift_right`).
            attention_mask: true or non-zero where a source token is to be seen; None
                sees them all. The target needs none: later tokens are never seen.
            dropout_key: a threefry key of this step; None means no dropout.
            row_offset: see `dropout`; for batches that come in parts.

        Returns:
            [B, T, D] in the config's dtype: `hidden @ head` are the logits.
        """
        _check_inputs(input_ids, decoder_input_ids, attention_mask)
        drop = Dropout(self.config.dropout_rate, dropout_key, row_offset)
        encoded = self.encode(input_ids, attention_mask, drop)
        drop = drop.after(_DECODER_SITES)
        return self._decode(decoder_input_ids, encoded, attention_mask, drop)

    @jax.named_scope("head")
    def logits(self, hidden: Float[Array, "B T D"]) -> Float32[Array, "B T V"]:
        """Float32 logits [B, T, V] of hidden states [B, T, D]."""
        if self.config.tie_word_embeddings:
            table = self.shared.embedding[...].astype(hidden.dtype)
            return einsum_float32("BTD,VD->BTV", hidden, table)
        kernel = self.lm_head.kernel[...].astype(hidden.dtype)
        return einsum_float32("BTD,DV->BTV", hidden, kernel)

    @property
    def head(self) -> Float32[Array, "D V"]:
        """The head's kernel: the table's transpose where the two are tied."""
        if self.config.tie_word_embeddings:
            return self.shared.embedding[...].T
        return self.lm_head.kernel[...]

    @jax.named_scope("encoder")
    def encode(
        self,
        input_ids: Int[Array, "B S"],
        attention_mask: Mask | None = None,
        drop: Dropout = _NO_DROPOUT,
    ) -> Float[Array, "B S D"]:
        """The encoder's output for source tokens."""
        places = jnp.arange(input_ids.shape[1], dtype=jnp.int32)
        biases = (self.encoder.relative_bias(places, places), *_hide(attention_mask))
        x = drop(self.shared(input_ids, self.config.dtype), _EMBEDDED)

        def step(layer, index, x):
            return layer(x, biases, drop._replace(layer=index))

        x = self._run(self.encoder.layers, self.config.num_layers, step, x)
        return drop(self.encoder.final_norm(x), _FINAL)

    @jax.named_scope("decoder")
    def _decode(self, decoder_input_ids, encoded, attention_mask, drop):
        places = jnp.arange(decoder_input_ids.shape[1], dtype=jnp.int32)
        biases = (self.decoder.relative_bias(places, places),)
        x = drop(self.shared(decoder_input_ids, self.config.dtype), _EMBEDDED)

        def step(layer, index, x):
            source = layer.cross_attention.project(encoded)
            at_layer = drop._replace(layer=index)
            return layer(x, biases, source, _hide(attention_mask), at_layer)

        x = self._run(self.decoder.layers, self.config.num_decoder_layers, step, x)
        return self._finish(x, drop)

    def start_cache(
        self,
        encoded: Float[Array, "B S D"],
        attention_mask: Mask | None,
        length: int,
    ) -> Cache:
        """A cache for `length` target tokens, with the source's keys and values."""
        config, (batch, _, _) = self.config, encoded.shape

        def project(layer):
            return layer.cross_attention.project(encoded)

        source = nnx.vmap(project, in_axes=(0,), out_axes=0)(self.decoder.layers)
        shape = (
            config.num_decoder_layers,
            batch,
            length,
            config.num_heads,
            config.d_kv,
        )
        empty = jnp.zeros(shape, encoded.dtype)
        return Cache(empty, empty, *source, _hide(attention_mask))

    def decode_step(
        self, tokens: Int[Array, "B"], position: Int[Array, ""], cache: Cache
    ) -> tuple[Float[Array, "B 1 D"], Cache]:
        """Hidden states after one more target token, and the cache with that token."""
        places = jnp.arange(cache.keys.shape[2], dtype=jnp.int32)
        biases = (self.decoder.relative_bias(position[None], places),)
        x = self.shared(tokens[:, None], self.config.dtype)  # [B, 1, D]
        drop = _NO_DROPOUT

        def step(layer, index, carry):
            x, keys, values = carry
            normed = layer.attention.norm(x)
            new = layer.attention.project(normed)
            start = (index, 0, position, 0, 0)
            # The cache is carried, not scanned over: it is then written in place.
            keys = jax.lax.dynamic_update_slice(keys, new[0][None], start)
            values = jax.lax.dynamic_update_slice(values, new[1][None], start)
            own = keys[index], values[index]
            source = cache.source_keys[index], cache.source_values[index]
            x = layer.finish(x, normed, own, biases, source, cache.source_biases, drop)
            return x, keys, values

        carry = (x, cache.keys, cache.values)
        count = self.config.num_decoder_layers
        x, keys, values = self._run(self.decoder.layers, count, step, carry)
        return self._finish(x, drop), cache._replace(keys=keys, values=values)

    def _finish(self, x, drop: Dropout) -> Float[Array, "B T D"]:
        x = drop(self.decoder.final_norm(x), _FINAL)
        if self.config.scale_decoder_outputs:
            x = x * jnp.asarray(self.config.d_model**-0.5, x.dtype)
        return x

    def _run(self, layers, count, step, carry):
        unroll, remat = self.config.unroll_layers, self.config.remat
        return run_layers(layers, count, step, carry, unroll=unroll, remat=remat)


def _hide(attention_mask) -> tuple[Float32[Array, "B 1 1 S"], ...]:
    """What to add to scores so that masked source tokens are not seen."""
    if attention_mask is None:
        return ()
    seen = attention_mask.astype(bool)[:, None, None, :]  # [B, 1, 1, S]
    return (jnp.where(seen, jnp.float32(0), jnp.float32(_MASKED)),)


def _check_inputs(input_ids, decoder_input_ids, attention_mask) -> None:
    shapes = f"input_ids {input_ids.shape}, decoder_input_ids {decoder_input_ids.shape}"
    if input_ids.ndim != 2 or decoder_input_ids.ndim != 2:
        raise ValueError(f"ids must be [batch, length]; got {shapes}")
    if input_ids.shape[0] != decoder_input_ids.shape[0]:
        raise ValueError(f"source and target batches differ: {shapes}")
    if attention_mask is not None and attention_mask.shape != input_ids.shape:
        raise ValueError(
            f"attention_mask {attention_mask.shape} must have the shape of {shapes}"
        )

"""Numformer: xVal's encoder, with a head for tokens and one for numbers.

Parameters, stacked over L layers:

    embed/embedding                             [V, D]
    positions/embedding                         [P, D]
    layers/{attention,mlp}/norm/{scale,bias}    [L, D]
    layers/attention/qkv/{kernel,bias}          [L, D, 3, D], [L, 3, D]
    layers/attention/o/{kernel,bias}            [L, D, D], [L, D]
    layers/mlp/wi/{kernel,bias}                 [L, D, F], [L, F]
    layers/mlp/wo/{kernel,bias}                 [L, F, D], [L, D]
    lm_head/{wi,wo}/kernel                      [D, F], [F, V]
    number_head/{wi,wo}/{kernel,bias}           [D, F], [F]; [F, 1], [1]

Layers are pre-norm, without a norm after the last. Unlike the released models, padding
is not attended to, and every layer is drawn on its own instead of copied.
Source: Golkar et al. (2023), whose package xVal has the class; the sizes are those of
the baseline in *Regress, Don't Guess* (ICML 2025).
"""

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Float32, Int, Key

from ntl_jax.kernels.attention.dispatch import Implementation, attend
from ntl_jax.kernels.dropout import Dropout, RowOffset
from ntl_jax.kernels.einsum import einsum_float32
from ntl_jax.models.attention import Mask, make_attention_mask
from ntl_jax.models.config import ModelConfig
from ntl_jax.models.config_checks import (
    check_computation,
    check_factors,
    check_rates,
    check_sizes,
)
from ntl_jax.models.layers import (
    Affine,
    Embedding,
    LayerNorm,
    Linear,
    Remat,
    Unroll,
    run_layers,
    stack_layers,
)
from ntl_jax.models.remat import gather_inwards

_SIZES = (
    "vocab_size",
    "d_model",
    "d_ff",
    "num_layers",
    "num_heads",
    "max_positions",
)
_PROBABILITIES, _ATTENDED, _INNER, _OUTER = range(4)  # dropout sites


@dataclasses.dataclass(frozen=True)
class NumformerConfig(ModelConfig):
    """Sizes and options of a Numformer; the defaults are the paper's baseline.

    Raises:
        ValueError: a size is no whole number from 1, the rate is outside [0, 1),
            `num_heads` does not divide `d_model`, `num_id` is no row of the table, or
            there is no such option.
    """

    head = "numformer"
    heads = ("numformer",)
    partition_rules = "numformer"
    dropout_fields = ("dropout_rate",)
    positions_field = "max_positions"

    vocab_size: int = 32101
    num_id: int = 32100  # the token [NUM]
    d_model: int = 768
    d_ff: int = 3072
    num_layers: int = 12
    num_heads: int = 12
    max_positions: int = 512
    dropout_rate: float = 0.1
    layer_norm_epsilon: float = 1e-5
    pad_token_id: int = 0
    eos_token_id: int = 1
    dtype: str = "float32"  # of activations; parameters are always float32
    unroll_layers: Unroll = "auto"  # written out, or a loop over them
    remat: Remat = False
    attention: Implementation = "auto"  # which program computes it

    def __post_init__(self):
        check_sizes(self, *_SIZES)
        check_factors(self, "layer_norm_epsilon")
        if self.d_model % self.num_heads:
            raise ValueError(
                f"d_model {self.d_model} does not divide into {self.num_heads} heads"
            )
        if not 0 <= self.num_id < self.vocab_size:
            raise ValueError(
                f"num_id is {self.num_id}, outside the {self.vocab_size} rows of "
                "vocab_size"
            )
        check_computation(self)
        check_rates(self, *self.dropout_fields)

    @classmethod
    def from_sizes_of(cls, config: ModelConfig, **changes) -> "NumformerConfig":
        """A Numformer of a T5's sizes and options, or another of a Numformer's.

        Raises:
            TypeError: `config` is of another family.
            ValueError: as of this class.
        """
        if "numformer" not in config.heads:
            kind = type(config).__name__
            raise TypeError(f"a {kind} cannot be made a Numformer")
        names = {field.name for field in dataclasses.fields(cls)}
        if config.head != cls.head:
            names.remove("layer_norm_epsilon")  # of another norm
        shared = {
            name: getattr(config, name) for name in names if hasattr(config, name)
        }
        return cls(**shared | changes)

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.d_model // self.num_heads

    @property
    def attention_dropout(self) -> float:
        """Rate of dropout of attention's probabilities."""
        return self.dropout_rate


class Attention(nnx.Module):
    """Multi-head attention of every token to every token, behind a norm."""

    def __init__(self, config: NumformerConfig, rngs: nnx.Rngs):
        width = config.d_model
        self.heads = config.num_heads
        self.implementation: Implementation = config.attention
        self.norm = LayerNorm(width, eps=config.layer_norm_epsilon)
        # PyTorch's spreads: uniform up to sqrt(6 / 4D), and up to 1 / sqrt(D).
        std = (2 * width) ** -0.5
        self.qkv = Affine(
            width, 3, width, std=std, rngs=rngs, gather=gather_inwards(config.remat)
        )
        std = (3 * width) ** -0.5
        self.o = Affine(width, width, std=std, rngs=rngs, gather="inputs")

    def __call__(self, x: Float[Array, "B T D"], mask, dropout: Dropout):
        batch, length, width = x.shape
        fused = self.qkv(self.norm(x))  # [B, T, 3, D]
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = (fused[:, :, part].reshape(shape) for part in range(3))
        mixed = attend(
            q,
            k,
            v,
            scale=shape[-1] ** -0.5,
            mask=mask,
            dropout=dropout.at(_PROBABILITIES),
            implementation=self.implementation,
        )
        return x + dropout(self.o(mixed.reshape(x.shape)), _ATTENDED)


class FeedForward(nnx.Module):
    """`x + wo(gelu(wi(norm(x))))`, with PyTorch's spread: up to 1 / sqrt(in)."""

    def __init__(self, config: NumformerConfig, rngs: nnx.Rngs):
        width, inner = config.d_model, config.d_ff
        self.norm = LayerNorm(width, eps=config.layer_norm_epsilon)
        std = (3 * width) ** -0.5
        self.wi = Affine(
            width, inner, std=std, rngs=rngs, gather=gather_inwards(config.remat)
        )
        std = (3 * inner) ** -0.5
        self.wo = Affine(inner, width, std=std, rngs=rngs, gather="inputs")

    def __call__(self, x: Float[Array, "B T D"], dropout: Dropout):
        h = dropout(jax.nn.gelu(self.wi(self.norm(x)), approximate=False), _INNER)
        return x + dropout(self.wo(h), _OUTER)


class Layer(nnx.Module):
    """Attention, then the feed-forward layer."""

    def __init__(self, config: NumformerConfig, rngs: nnx.Rngs):
        self.attention = Attention(config, rngs)
        self.mlp = FeedForward(config, rngs)

    def __call__(self, x, mask, dropout: Dropout) -> Float[Array, "B T D"]:
        return self.mlp(self.attention(x, mask, dropout), dropout)


class TokenHead(nnx.Module):
    """`wo(gelu(wi(x)))` without biases, float32 logits."""

    def __init__(self, config: NumformerConfig, rngs: nnx.Rngs):
        width, inner = config.d_model, config.d_ff
        self.wi = Linear(width, inner, std=(3 * width) ** -0.5, rngs=rngs)
        self.wo = Linear(inner, config.vocab_size, std=(3 * inner) ** -0.5, rngs=rngs)

    def __call__(self, x: Float[Array, "B T D"]) -> Float32[Array, "B T V"]:
        h = jax.nn.gelu(self.wi(x), approximate=False)
        kernel = self.wo.kernel[...].astype(h.dtype)
        return einsum_float32("BTF,FV->BTV", h, kernel)


class ValueHead(nnx.Module):
    """`wo(gelu(wi(x)))` with biases, in float32; [B, T, D] gives [B, T]."""

    def __init__(self, config: NumformerConfig, rngs: nnx.Rngs):
        width, inner = config.d_model, config.d_ff
        self.wi = Affine(width, inner, std=(3 * width) ** -0.5, rngs=rngs)
        self.wo = Affine(inner, 1, std=(3 * inner) ** -0.5, rngs=rngs)

    def __call__(self, x: Float[Array, "B T D"]) -> Float32[Array, "B T"]:
        h = jax.nn.gelu(self.wi(x.astype(jnp.float32)), approximate=False)
        return self.wo(h)[..., 0]


class TokensAndNumbers(NamedTuple):
    """What a model with two heads predicts at each position.

    Attributes:
        logits: f32[B, T, V], over tokens.
        numbers: f32[B, T], the value, should the token be [NUM].
    """

    logits: Float32[Array, "B T V"]
    numbers: Float32[Array, "B T"]


class Numformer(nnx.Module):
    """An encoder that fills in masked tokens and numbers.

    Args:
        config: sizes and options.
        rngs: its `params` stream draws the parameters, float32, laid out as this module
            says.

    Source: Golkar et al. (2023), xVal.
    """

    def __init__(self, config: NumformerConfig, rngs: nnx.Rngs):
        self.config = config
        width = config.d_model
        self.embed = Embedding(config.vocab_size, width, std=1.0, rngs=rngs)
        self.positions = Embedding(config.max_positions, width, std=1.0, rngs=rngs)
        self.layers = stack_layers(partial(Layer, config), config.num_layers, rngs)
        self.lm_head = TokenHead(config, rngs)
        self.number_head = ValueHead(config, rngs)

    def __call__(
        self,
        input_ids: Int[Array, "B T"],
        input_values: Float[Array, "B T"],
        *,
        attention_mask: Mask | None = None,
        dropout_key: Key[Array, ""] | None = None,
        row_offset: RowOffset = 0,
    ) -> TokensAndNumbers:
        """Logits and numbers of every position.

        Args:
            input_ids: tokens, some of them masked.
            input_values: the number where the token is [NUM]; not read elsewhere.
            attention_mask: true or non-zero where a token is to be seen.
            dropout_key: a threefry key of this step; None means no dropout.
            row_offset: a row's place in a batch that comes in parts.

        Returns:
            Logits [B, T, V] and numbers [B, T], these in the unit of the values.

        Raises:
            ValueError: a row is longer than `max_positions`, or shapes differ.
        """
        config = self.config
        dropout = Dropout(config.dropout_rate, dropout_key, row_offset)
        factor = number_factors(input_ids, input_values, config.num_id)
        learned = self.embed(input_ids, "float32") * factor[..., None]
        x = learned + first_positions(self.positions, input_ids.shape)
        mask = make_attention_mask(attention_mask)  # [B, 1, 1, T]

        def step(layer, index, x):
            return layer(x, mask, dropout._replace(layer=index))

        x = run_layers(
            self.layers,
            config.num_layers,
            step,
            x.astype(config.dtype),
            unroll=config.unroll_layers,
            remat=config.remat,
        )
        return TokensAndNumbers(self.lm_head(x), self.number_head(x))


def number_factors(
    ids: Int[Array, "B T"], values: Float[Array, "B T"], num_id: int
) -> Float32[Array, "B T"]:
    """The values at [NUM], 1 elsewhere.

    >>> number_factors(jnp.array([[3, 9]]), jnp.array([[0.5, 0.5]]), 9)
    Array([[1. , 0.5]], dtype=float32)
    """
    if ids.shape != values.shape:
        raise ValueError(
            f"token ids {ids.shape} and values {values.shape} must have one shape"
        )
    return jnp.where(ids == num_id, values.astype(jnp.float32), 1.0)


def first_positions(
    table: Embedding, shape: tuple[int, ...]
) -> Float32[Array, "1 T D"]:
    """The table's first T rows, for ids of this shape [B, T]."""
    rows, length = table.embedding.shape[0], shape[1]
    if length > rows:
        raise ValueError(
            f"a row of {length} tokens exceeds max_positions={rows}; raise it, or "
            "truncate the texts"
        )
    return table.embedding[...][None, :length]

"""xVal on T5: one token for all numbers, its embedding multiplied by the number.

Parameters are T5's, and

    positions/embedding                 [P, D]     read by both stacks
    number_head/wi/{kernel,bias}        [D, H], [H]
    number_head/wo/{kernel,bias}        [H, 1], [1]

T5 normalises what its layers read, so a factor alone would be lost: the learned
positions, added after it, are what it is seen against.
Source: Golkar et al. (2023), on T5 as in the code of *Regress, Don't Guess* (ICML
2025), whose appendix says why it was given up.
"""

import dataclasses
import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Float32, Int, Key

from ntl_jax.kernels.dropout import Dropout, RowOffset
from ntl_jax.models.attention import make_attention_mask
from ntl_jax.models.baselines.number_encodings import LARGEST
from ntl_jax.models.config_checks import check_sizes
from ntl_jax.models.layers import Affine, Embedding
from ntl_jax.models.t5.config import T5Config
from ntl_jax.models.t5.model import Mask, T5WithHead


@dataclasses.dataclass(frozen=True)
class XvalConfig(T5Config):
    """A `T5Config` whose tokens carry values.

    Raises:
        ValueError: as of `T5Config`; `num_id` is no row of the table, a size is no
            whole number from 1, or there is no such `embedding_scale`.
    """

    num_id: int = 32100  # the token [NUM]
    embedding_scale: Literal["value", "log", "plus_one"] = "value"
    max_positions: int = 512
    number_hidden: int = 1024  # H, units of the number head

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.num_id < self.vocab_size:
            raise ValueError(
                f"num_id is {self.num_id}, outside the {self.vocab_size} rows of "
                "vocab_size"
            )
        if self.embedding_scale not in ("value", "log", "plus_one"):
            raise ValueError(
                f"embedding_scale is {self.embedding_scale!r}; choose 'value', 'log' "
                "or 'plus_one'"
            )
        check_sizes(self, "max_positions", "number_hidden")


class TokensAndNumbers(NamedTuple):
    """What a model with two heads predicts at each position.

    Attributes:
        logits: f32[B, T, V], over tokens.
        numbers: f32[B, T], the value, should the token be [NUM].
    """

    logits: Float32[Array, "B T V"]
    numbers: Float32[Array, "B T"]


class NumberHead(nnx.Module):
    """`wo(gelu(wi(x)))` in float32; x [B, T, D] gives [B, T]."""

    def __init__(self, width: int, hidden: int, rngs: nnx.Rngs):
        # Xavier: variance 2 / (in + out).
        self.wi = Affine(width, hidden, std=math.sqrt(2 / (width + hidden)), rngs=rngs)
        self.wo = Affine(hidden, 1, std=math.sqrt(2 / (hidden + 1)), rngs=rngs)

    def __call__(self, x: Float[Array, "B T D"]) -> Float32[Array, "B T"]:
        h = jax.nn.gelu(self.wi(x.astype(jnp.float32)), approximate=False)
        return self.wo(h)[..., 0]


class Xval(T5WithHead):
    """T5 that reads values beside tokens, and writes both.

    Args:
        config: sizes and options.
        rngs: its `params` stream draws the parameters, float32, laid out as this module
            says.

    Source: Golkar et al. (2023), xVal.
    """

    def __init__(self, config: XvalConfig, rngs: nnx.Rngs):
        super().__init__(config, rngs)
        self.config = config
        shape = (config.max_positions, config.d_model)
        self.positions = Embedding(*shape, std=0.02, rngs=rngs)
        self.number_head = NumberHead(config.d_model, config.number_hidden, rngs)

    def __call__(
        self,
        input_ids: Int[Array, "B S"],
        input_values: Float[Array, "B S"],
        decoder_input_ids: Int[Array, "B T"],
        decoder_values: Float[Array, "B T"],
        *,
        attention_mask: Mask | None = None,
        dropout_key: Key[Array, ""] | None = None,
        row_offset: RowOffset = 0,
    ) -> TokensAndNumbers:
        """Logits and numbers of every target position.

        Args:
            input_ids: source tokens.
            input_values: the number where the token is [NUM]; not read elsewhere.
            decoder_input_ids: target tokens moved one to the right.
            decoder_values: their values, moved along (`shift_values`).
            attention_mask: true or non-zero where a source token is to be seen.
            dropout_key: a threefry key of this step; None means no dropout.
            row_offset: a row's place in a batch that comes in parts.

        Returns:
            Logits [B, T, V] and numbers [B, T], these in the unit of the values.

        Raises:
            ValueError: a row is longer than `max_positions`, or shapes differ.
        """
        dropout = Dropout(self.config.dropout_rate, dropout_key, row_offset)
        seen = make_attention_mask(attention_mask)
        source = self.embed_numbers(input_ids, input_values)
        encoded = self.encode_embedded(source, seen, dropout)
        target = self.embed_numbers(decoder_input_ids, decoder_values)
        return self.heads(self.decode_embedded(target, encoded, seen, dropout))

    def heads(self, states: Float[Array, "B T D"]) -> TokensAndNumbers:
        """Logits and numbers of the decoder's output."""
        return TokensAndNumbers(
            self.logits(self.scaled(states)), self.number_head(states)
        )

    def embed_numbers(
        self, ids: Int[Array, "B T"], values: Float[Array, "B T"]
    ) -> Float[Array, "B T D"]:
        """Embedding times factor plus position; the factor is 1 but at [NUM]."""
        factor = number_factors(ids, values, self.config.num_id)
        positions = first_positions(self.positions, ids.shape)
        learned = self.shared(ids, "float32")
        scaled = scale_numbers(factor, self.config.embedding_scale)
        factor = jnp.where(ids == self.config.num_id, scaled, 1.0)
        return (learned * factor[..., None] + positions).astype(self.config.dtype)


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


def scale_numbers(values: Float32[Array, "B T"], scale: str) -> Float32[Array, "B T"]:
    """What the embedding of [NUM] is multiplied by.

    "value": the value, as in xVal; "log": 10 sign(x) log10(|x| + 1) / log10(3e9) and
    "plus_one": x + 1, as in the released code of *Regress, Don't Guess*.
    """
    if scale == "log":
        logarithm = jnp.log1p(jnp.abs(values)) / math.log(10)
        return jnp.sign(values) * logarithm * (10 / math.log10(LARGEST))
    return values + 1 if scale == "plus_one" else values


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


def shift_values(values: Float[Array, "B T"]) -> Float[Array, "B T"]:
    """Values that go with `shift_right`'s decoder inputs: 1, then all but the last.

    Args:
        values: those of the labels.

    Returns:
        Values of the same shape and dtype.

    >>> shift_values(jnp.array([[0.5, 3.0, 1.0]]))
    Array([[1. , 0.5, 3. ]], dtype=float32)
    """
    return jnp.concatenate([jnp.ones_like(values[:, :1]), values[:, :-1]], axis=1)

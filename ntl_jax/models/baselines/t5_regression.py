"""T5 with a regression head: one number a question, and no text.

The question is read by the encoder and, moved one to the right, by the decoder. The
decoder's state at the question's end-of-sequence token goes through
dense(D, D) -> tanh -> dense(D, 1). Parameters are T5's, without `lm_head`, and

    head/dense/{kernel,bias}      [D, D], [D]
    head/out/{kernel,bias}        [D, 1], [1]

Source: behaviour as transformers' T5ForSequenceClassification with one label, which
*Regress, Don't Guess* (ICML 2025) compares with on rJokes.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Float32, Int, Int32, Key

from ntl_jax.kernels.dropout import Dropout, RowOffset
from ntl_jax.models.attention import make_attention_mask
from ntl_jax.models.config_checks import check_rates
from ntl_jax.models.layers import Affine
from ntl_jax.models.t5.config import T5Config
from ntl_jax.models.t5.model import Mask, T5Body

# Dropout sites beyond those of the encoder and the decoder.
_HEAD_SITES = 32
_POOLED, _INNER = range(2)

Params = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class T5RegressionConfig(T5Config):
    """A `T5Config` whose model ends in a regression head.

    Raises:
        ValueError: as of `T5Config`, or `classifier_dropout` is outside [0, 1).
    """

    head = "regression"
    partition_rules = "t5_regression"

    classifier_dropout: float = 0.0  # around the head's first layer

    def __post_init__(self):
        super().__post_init__()
        check_rates(self, "classifier_dropout")


class RegressionHead(nnx.Module):
    """`out(drop(tanh(dense(drop(x)))))`, in float32; x [B, D] gives [B]."""

    def __init__(self, config: T5RegressionConfig, rngs: nnx.Rngs):
        width = config.d_model
        std = config.initializer_factor * width**-0.5
        self.dense = Affine(width, width, std=std, rngs=rngs)
        self.out = Affine(width, 1, std=std, rngs=rngs)

    def __call__(self, x: Float[Array, "B D"], dropout: Dropout) -> Float32[Array, "B"]:
        x = dropout(x.astype(jnp.float32), _POOLED)
        x = dropout(jnp.tanh(self.dense(x)), _INNER)
        return self.out(x)[:, 0]


class T5Regression(T5Body):
    """Encoder, decoder and a head that gives a number.

    Args:
        config: sizes and options.
        rngs: its `params` stream draws the parameters, float32, laid out as this module
            says.

    Source: transformers' T5ForSequenceClassification with one label.
    """

    def __init__(self, config: T5RegressionConfig, rngs: nnx.Rngs):
        super().__init__(config, rngs)
        self.config = config
        self.head = RegressionHead(config, rngs)

    def __call__(
        self,
        input_ids: Int[Array, "B S"],
        *,
        attention_mask: Mask | None = None,
        dropout_key: Key[Array, ""] | None = None,
        row_offset: RowOffset = 0,
    ) -> Float32[Array, "B"]:
        """The number that answers each question.

        Args:
            input_ids: question tokens, each row with an end-of-sequence token.
            attention_mask: true or non-zero where a token is to be seen; None sees
                them all. As in transformers, the decoder sees padding on its left.
            dropout_key: a threefry key of this step; None means no dropout.
            row_offset: a row's place in a batch that comes in parts.

        Returns:
            [B] in the unit of the targets; NaN for a row that holds no end-of-sequence
            token to read the answer at.

        Raises:
            ValueError: input_ids are not [B, S], or the mask has another shape.
        """
        config = self.config
        dropout = Dropout(config.dropout_rate, dropout_key, row_offset)
        encoded = self.encode(input_ids, attention_mask, dropout)
        start = jnp.full_like(input_ids[:, :1], config.decoder_start_token_id)
        target = self.embed(jnp.concatenate([start, input_ids[:, :-1]], axis=1))
        seen = make_attention_mask(attention_mask)
        states = self.decode_embedded(target, encoded, seen, dropout)
        last = last_token(input_ids, config.eos_token_id, attention_mask)  # [B]
        place = jnp.maximum(last, 0)[:, None, None]
        pooled = jnp.take_along_axis(states, place, axis=1)[:, 0]  # [B, D]
        at_head = dropout._replace(rate=config.classifier_dropout).after(_HEAD_SITES)
        return jnp.where(last >= 0, self.head(pooled, at_head), jnp.nan)


def last_token(
    input_ids: Int[Array, "B S"], token_id: int, attention_mask: Mask | None = None
) -> Int32[Array, "B"]:
    """The last place of a token that is seen in each row, -1 where there is none.

    >>> last_token(jnp.array([[5, 1, 1, 0], [5, 6, 7, 8]]), 1)
    Array([ 2, -1], dtype=int32)
    """
    found = input_ids == token_id
    if attention_mask is not None:
        found = found & attention_mask.astype(bool)
    places = jnp.arange(input_ids.shape[1], dtype=jnp.int32)[None]
    return jnp.max(jnp.where(found, places, -1), axis=1)


def regression_from_t5(
    config: T5Config, params: Params, key: Key[Array, ""], **changes
) -> tuple[T5RegressionConfig, Params]:
    """A pretrained T5 under a fresh regression head.

    Args:
        config: the T5's config.
        params: its parameters; `lm_head` is left out.
        key: a threefry key that the head is drawn from.
        **changes: config fields to set otherwise.

    Returns:
        The config and the parameters of a `T5Regression`; the T5's own arrays, and
        `head`, float32.

    Raises:
        ValueError: as of `T5RegressionConfig`.

    Source: transformers' T5ForSequenceClassification, read from a T5's checkpoint.
    """
    regression = T5RegressionConfig.from_t5(config, **changes)
    fresh = RegressionHead(regression, nnx.Rngs(params=key))
    head = nnx.to_pure_dict(nnx.state(fresh, nnx.Param))
    body = {name: leaf for name, leaf in params.items() if name != "lm_head"}
    return regression, body | {"head": head}

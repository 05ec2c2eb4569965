"""T5's sizes and options, with one classmethod a released size."""

import dataclasses
from typing import Self

from ntl_jax.kernels.attention.dispatch import Implementation
from ntl_jax.models.config import ModelConfig
from ntl_jax.models.config_checks import (
    check_computation,
    check_factors,
    check_rates,
    check_sizes,
)
from ntl_jax.models.layers import Remat, Unroll

ACTIVATIONS = ("relu", "gelu_new", "silu")

_SIZES = (
    "vocab_size",
    "d_model",
    "d_kv",
    "d_ff",
    "num_layers",
    "num_decoder_layers",
    "num_heads",
    "relative_attention_num_buckets",
    "relative_attention_max_distance",
)


@dataclasses.dataclass(frozen=True)
class T5Config(ModelConfig):
    """Sizes and options of a T5; field names as in Hugging Face's config.json.

    Raises:
        ValueError: a size is no whole number from 1, the rate is outside [0, 1), the
            buckets do not suit the distance, or there is no such option.
    """

    heads = ("lm", "regression", "numformer")
    number_encodings = True
    embedded_ids = ("pad_token_id", "decoder_start_token_id")
    partition_rules = "t5"
    dropout_fields = ("dropout_rate",)

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
    unroll_layers: Unroll = "auto"  # written out, or a loop over them
    remat: Remat = False  # what of each layer the backward pass computes again
    attention: Implementation = "auto"  # which program computes it

    def __post_init__(self):
        check_sizes(self, *_SIZES)
        check_factors(self, "layer_norm_epsilon")
        buckets = self.relative_attention_num_buckets
        distance = self.relative_attention_max_distance
        if buckets < 4 or distance <= buckets // 2:
            raise ValueError(
                f"relative_attention_num_buckets is {buckets} and "
                f"relative_attention_max_distance {distance}; take at least 4 buckets, "
                "and a distance beyond half their number"
            )
        check_computation(self)
        check_rates(self, "dropout_rate")
        if self.activation not in ACTIVATIONS:
            raise ValueError(
                f"feed_forward_proj is {self.feed_forward_proj!r}; choose one of "
                f"{list(ACTIVATIONS)}, or one of them after 'gated-'"
            )

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.d_kv

    @property
    def biased_heads(self) -> int:
        """All of them: each has a column of the table of relative biases."""
        return self.num_heads

    @property
    def attention_dropout(self) -> float:
        """Rate of dropout of attention's probabilities."""
        return self.dropout_rate

    @property
    def table_dtype(self) -> str:
        """What the rows of the table of tokens are read in."""
        return self.dtype

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

    @classmethod
    def from_t5(cls, config: ModelConfig, **changes) -> Self:
        """The config of another kind of T5, with `config`'s sizes and options.

        Raises:
            TypeError: `config` is no T5's.
        """
        if not isinstance(config, T5Config):
            kind = type(config).__name__
            raise TypeError(f"a {cls.__name__} is made of a T5Config, not of a {kind}")
        shared = {f.name: getattr(config, f.name) for f in dataclasses.fields(T5Config)}
        return cls(**shared | changes)

    @classmethod
    def small(cls, **changes) -> Self:
        """t5-small: 60,506,624 parameters."""
        return cls(**changes)

    @classmethod
    def base(cls, **changes) -> Self:
        """t5-base: 222,903,552 parameters."""
        return cls(**_sizes(768, 64, 3072, 12, 12) | changes)

    @classmethod
    def large(cls, **changes) -> Self:
        """t5-large: 737,668,096 parameters."""
        return cls(**_sizes(1024, 64, 4096, 24, 16) | changes)

    @classmethod
    def t5_3b(cls, **changes) -> Self:
        """t5-3b: 2,851,598,336 parameters."""
        return cls(**_sizes(1024, 128, 16384, 24, 32) | changes)

    @classmethod
    def v1_1_small(cls, **changes) -> Self:
        """t5-v1_1-small and flan-t5-small: 76,961,152 parameters."""
        return cls(**_sizes(512, 64, 1024, 8, 6) | _V1_1 | changes)

    @classmethod
    def v1_1_base(cls, **changes) -> Self:
        """t5-v1_1-base and flan-t5-base: 247,577,856 parameters."""
        return cls(**_sizes(768, 64, 2048, 12, 12) | _V1_1 | changes)

    @classmethod
    def v1_1_large(cls, **changes) -> Self:
        """t5-v1_1-large and flan-t5-large: 783,150,080 parameters."""
        return cls(**_sizes(1024, 64, 2816, 24, 16) | _V1_1 | changes)

    @classmethod
    def v1_1_xl(cls, **changes) -> Self:
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

"""Granite's sizes and options, dense and mixture of experts."""

import dataclasses

from ntl_jax.kernels.attention.dispatch import Implementation
from ntl_jax.models.config import DecoderOnlyConfig
from ntl_jax.models.config_checks import (
    check_computation,
    check_factors,
    check_rates,
    check_sizes,
)
from ntl_jax.models.layers import Remat, Unroll

_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
)
_FACTORS = (
    "attention_multiplier",
    "embedding_multiplier",
    "residual_multiplier",
    "logits_scaling",
    "rms_norm_eps",
    "rope_theta",
    "initializer_range",
)


@dataclasses.dataclass(frozen=True)
class GraniteConfig(DecoderOnlyConfig):
    """Sizes and options of a Granite; field names as in Hugging Face's config.json.

    With `num_local_experts` every feed-forward layer is a mixture of so many experts,
    each `intermediate_size` wide, of which a token visits `num_experts_per_tok`.

    Raises:
        ValueError: a size is no whole number from 1, a factor is not above 0, heads or
            experts do not add up, or there is no such option.
    """

    partition_rules = "granite"
    dropout_fields = ("attention_dropout",)
    positions_field = "max_position_embeddings"

    vocab_size: int = 49155
    hidden_size: int = 2048
    intermediate_size: int = 8192
    num_hidden_layers: int = 40
    num_attention_heads: int = 32
    num_key_value_heads: int = 8
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1e-5
    rope_theta: float = 5e6
    attention_multiplier: float = 0.015625  # of the scores, in place of 1/sqrt(H)
    embedding_multiplier: float = 12.0
    residual_multiplier: float = 0.22  # of what attention and feed-forward add
    logits_scaling: float = 8.0  # the logits are divided by it
    attention_bias: bool = False
    mlp_bias: bool = False
    attention_dropout: float = 0.1  # of attention's probabilities, the only dropout
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    num_local_experts: int = 0  # 0: dense
    num_experts_per_tok: int = 0
    router_aux_loss_coef: float = 0.0  # for whoever adds up the loss
    output_router_logits: bool = False  # whether training adds the routers' loss
    pad_token_id: int | None = 0
    bos_token_id: int | None = 0
    eos_token_id: int | None = 0
    vocab_rows: int | None = None  # of the table, see `pad_vocab`; None: vocab_size
    dtype: str = "float32"  # of activations; parameters are always float32
    unroll_layers: Unroll = "auto"  # written out, or a loop over them
    remat: Remat = False  # what of each layer the backward pass computes again
    attention: Implementation = "auto"  # which program computes it

    def __post_init__(self):
        check_sizes(self, *_SIZES)
        check_factors(self, *_FACTORS)
        self._check_heads()
        self._check_experts()
        self.check_rows()
        check_computation(self)
        check_rates(self, *self.dropout_fields)

    def _check_heads(self):
        width, heads = self.hidden_size, self.num_attention_heads
        if width % heads or (width // heads) % 2:
            raise ValueError(
                f"hidden_size {width} over num_attention_heads {heads} must give each "
                "head an even whole number of places"
            )
        if heads % self.num_key_value_heads:
            raise ValueError(
                f"num_key_value_heads {self.num_key_value_heads} does not divide "
                f"num_attention_heads {heads}"
            )

    def _check_experts(self):
        experts, chosen = self.num_local_experts, self.num_experts_per_tok
        if (experts == 0) != (chosen == 0) or not 0 <= chosen <= experts:
            raise ValueError(
                f"num_experts_per_tok is {chosen} of num_local_experts {experts}; "
                "choose 1 to all of them, or set both to 0 for a dense model"
            )
        if experts and self.mlp_bias:
            raise ValueError("experts have no bias; set mlp_bias=False")

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def width(self) -> int:
        """Width of the hidden states."""
        return self.hidden_size

    @classmethod
    def granite_3_2_2b(cls, **changes) -> "GraniteConfig":
        """granite-3.2-2b-instruct: 2,533,531,648 parameters."""
        return cls(**changes)

    @classmethod
    def granite_3_1_1b_a400m(cls, **changes) -> "GraniteConfig":
        """granite-3.1-1b-a400m-base: 1,334,625,280 parameters, 8 of 32 experts."""
        sizes = {
            "vocab_size": 49152,
            "hidden_size": 1024,
            "intermediate_size": 512,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1.5e6,
            "logits_scaling": 6.0,
            "num_local_experts": 32,
            "num_experts_per_tok": 8,
            "router_aux_loss_coef": 0.001,
        }
        return cls(**sizes | changes)

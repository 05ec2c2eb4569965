"""GPT-2's sizes and options, with one classmethod a released size."""

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

ACTIVATIONS = ("gelu_new", "gelu_pytorch_tanh", "gelu", "relu", "silu")
_SIZES = ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head")


@dataclasses.dataclass(frozen=True)
class GPT2Config(DecoderOnlyConfig):
    """Sizes and options of a GPT-2; field names as in Hugging Face's config.json.

    Raises:
        ValueError: a size is no whole number from 1, a rate is outside [0, 1), `n_head`
            does not divide `n_embd`, or there is no such option.
    """

    partition_rules = "gpt2"
    dropout_fields = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
    positions_field = "n_positions"

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    n_inner: int | None = None  # of the feed-forward layer; None: 4 * n_embd
    activation_function: str = "gelu_new"
    resid_pdrop: float = 0.1
    embd_pdrop: float = 0.1
    attn_pdrop: float = 0.1
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    bos_token_id: int = 50256
    eos_token_id: int = 50256
    pad_token_id: int = 50256  # GPT-2 has none of its own: its end token fills up
    vocab_rows: int | None = None  # of the table, see `pad_vocab`; None: vocab_size
    dtype: str = "float32"  # of activations; parameters are always float32
    unroll_layers: Unroll = "auto"  # written out, or a loop over them
    remat: Remat = False  # what of each layer the backward pass computes again
    attention: Implementation = "auto"  # which program computes it

    def __post_init__(self):
        check_sizes(self, *_SIZES)
        check_factors(self, "layer_norm_epsilon")
        if self.n_embd % self.n_head:
            raise ValueError(
                f"n_embd {self.n_embd} does not divide into n_head {self.n_head} heads"
            )
        if self.n_inner is not None and self.n_inner < 1:
            raise ValueError(f"n_inner is {self.n_inner}; give None for 4 * n_embd")
        self.check_rows()
        check_computation(self)
        check_rates(self, *self.dropout_fields)
        if self.activation_function not in ACTIVATIONS:
            raise ValueError(
                f"activation_function is {self.activation_function!r}; choose one of "
                f"{list(ACTIVATIONS)}"
            )

    @property
    def inner(self) -> int:
        """Width of the feed-forward layer."""
        return 4 * self.n_embd if self.n_inner is None else self.n_inner

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.n_embd // self.n_head

    @property
    def attention_dropout(self) -> float:
        """Rate of dropout of attention's probabilities."""
        return self.attn_pdrop

    @property
    def width(self) -> int:
        """Width of the hidden states."""
        return self.n_embd

    @classmethod
    def small(cls, **changes) -> "GPT2Config":
        """gpt2: 124,439,808 parameters."""
        return cls(**changes)

    @classmethod
    def medium(cls, **changes) -> "GPT2Config":
        """gpt2-medium: 354,823,168 parameters."""
        return cls(**_sizes(1024, 24, 16) | changes)

    @classmethod
    def large(cls, **changes) -> "GPT2Config":
        """gpt2-large: 774,030,080 parameters."""
        return cls(**_sizes(1280, 36, 20) | changes)

    @classmethod
    def xl(cls, **changes) -> "GPT2Config":
        """gpt2-xl: 1,557,611,200 parameters."""
        return cls(**_sizes(1600, 48, 25) | changes)


def _sizes(n_embd, n_layer, n_head) -> dict:
    return {"n_embd": n_embd, "n_layer": n_layer, "n_head": n_head}

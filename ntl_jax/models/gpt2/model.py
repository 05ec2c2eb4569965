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
from flax import nnx
from jaxtyping import Array, Float

from ntl_jax.kernels.attention.dispatch import Implementation, attend
from ntl_jax.kernels.dropout import Dropout, RowOffset
from ntl_jax.models.attention import Visible
from ntl_jax.models.decoder_only import DecoderOnly, HeadTriple, Sizes
from ntl_jax.models.gpt2.config import GPT2Config
from ntl_jax.models.layers import Affine, Embedding, LayerNorm, Linear, stack_layers
from ntl_jax.models.remat import gather_inwards

_ACTIVATIONS: dict[str, Callable] = {
    "gelu_new": partial(jax.nn.gelu, approximate=True),
    "gelu_pytorch_tanh": partial(jax.nn.gelu, approximate=True),
    "gelu": partial(jax.nn.gelu, approximate=False),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
}
_EMBEDDED, _PROBABILITIES, _ATTENDED, _OUTER = range(4)  # dropout sites


class Attention(nnx.Module):
    """Causal multi-head attention behind a norm."""

    def __init__(self, config: GPT2Config, rngs: nnx.Rngs):
        width, std = config.n_embd, config.initializer_range
        self.heads = config.n_head
        self.implementation: Implementation = config.attention
        self.norm = LayerNorm(width, eps=config.layer_norm_epsilon)
        self.qkv = Affine(
            width, 3, width, std=std, rngs=rngs, gather=gather_inwards(config.remat)
        )
        std = _residual_std(config)
        self.o = Affine(width, width, std=std, rngs=rngs, gather="inputs")

    def project(self, normed: Float[Array, "B T D"]) -> HeadTriple:
        """Queries, keys and values of normed states."""
        batch, length, width = normed.shape
        fused = self.qkv(normed)  # [B, T, 3, N*H]
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = (fused[:, :, part].reshape(shape) for part in range(3))
        return q, k, v

    def mix(
        self, q, k, v, visible: Visible, rates, dropout: Dropout
    ) -> Float[Array, "B T D"]:
        """What attention adds to the residual stream."""
        at_probabilities = dropout._replace(rate=rates.attn_pdrop)
        mixed = attend(
            q,
            k,
            v,
            scale=q.shape[-1] ** -0.5,
            **visible._asdict(),
            dropout=at_probabilities.at(_PROBABILITIES),
            implementation=self.implementation,
        )
        y = self.o(mixed.reshape(*mixed.shape[:2], -1))
        return dropout._replace(rate=rates.resid_pdrop)(y, _ATTENDED)


class FeedForward(nnx.Module):
    """`wo(act(wi x))` behind a norm."""

    def __init__(self, config: GPT2Config, rngs: nnx.Rngs):
        width, inner = config.n_embd, config.inner
        self.norm = LayerNorm(width, eps=config.layer_norm_epsilon)
        std = config.initializer_range
        self.wi = Affine(
            width, inner, std=std, rngs=rngs, gather=gather_inwards(config.remat)
        )
        std = _residual_std(config)
        self.wo = Affine(inner, width, std=std, rngs=rngs, gather="inputs")

    def __call__(
        self, x, config: GPT2Config, dropout: Dropout
    ) -> Float[Array, "B T D"]:
        h = _ACTIVATIONS[config.activation_function](self.wi(self.norm(x)))
        return dropout._replace(rate=config.resid_pdrop)(self.wo(h), _OUTER)


class Block(nnx.Module):
    """One layer: attention, then the feed-forward layer, each added to its input."""

    def __init__(self, config: GPT2Config, rngs: nnx.Rngs):
        self.config = config
        self.attention = Attention(config, rngs)
        self.mlp = FeedForward(config, rngs)

    def project(self, x: Float[Array, "B T D"]) -> HeadTriple:
        """Queries, keys and values, [B, T, N, H] each."""
        return self.attention.project(self.attention.norm(x))

    def finish(
        self, x, q, k, v, visible: Visible, dropout: Dropout
    ) -> Float[Array, "B T D"]:
        """The layer after its projections; keys and values may be a cache's."""
        x = x + self.attention.mix(q, k, v, visible, self.config, dropout)
        return x + self.mlp(x, self.config, dropout)


class GPT2(DecoderOnly):
    """The decoder-only model with its language-model head.

    Args:
        config: sizes and options.
        rngs: its `params` stream draws the parameters, float32, laid out as this module
            says.

    Source: Radford et al. (2019); transformers' GPT2LMHeadModel.
    """

    def __init__(self, config: GPT2Config, rngs: nnx.Rngs):
        self.config = config
        std, width = config.initializer_range, config.n_embd
        self.wte = Embedding(config.vocab_size, width, std=std, rngs=rngs)
        self.wpe = Embedding(config.n_positions, width, std=std, rngs=rngs)
        self.layers = stack_layers(partial(Block, config), config.n_layer, rngs)
        self.final_norm = LayerNorm(width, eps=config.layer_norm_epsilon)
        if not config.tie_word_embeddings:
            self.lm_head = Linear(width, config.vocab_size, std=std, rngs=rngs)
        self.pad_vocabulary()

    @property
    def sizes(self) -> Sizes:
        """What the cache and the layers' runner need to know."""
        config = self.config
        return Sizes(
            layers=config.n_layer,
            key_value_heads=config.n_head,
            head_dim=config.head_dim,
            longest=config.n_positions,
            longest_field="n_positions",
        )

    @property
    def table(self) -> Embedding:
        """The embeddings of tokens, W rows."""
        return self.wte

    def embed_tokens(self, input_ids, positions) -> tuple[Float[Array, "B T D"], None]:
        """Tokens and their positions, embedded; layers need no more."""
        table = self.wpe.embedding[...]
        if positions is None:  # a slice's gradient costs less than a gather's
            places = table[None, : input_ids.shape[1]]
        else:
            places = self.wpe(positions, "float32")
        tokens = self.wte(input_ids, "float32")
        return (tokens + places).astype(self.config.dtype), None

    def dropout(self, key, row_offset: RowOffset) -> Dropout:
        """The dropout of a forward pass; each site has a rate of its own."""
        return Dropout(self.config.embd_pdrop, key, row_offset)

    def drop_embedded(self, x, dropout: Dropout) -> Float[Array, "B T D"]:
        """What the first layer reads while training."""
        return dropout(x, _EMBEDDED)

    def project(self, layer: Block, x, context: None) -> HeadTriple:
        """A layer's queries, keys and values."""
        return layer.project(x)

    def finish_layer(
        self, layer: Block, x, q, k, v, visible: Visible, dropout: Dropout
    ):
        """A layer after its projections."""
        return layer.finish(x, q, k, v, visible, dropout)

    def finish(self, x) -> Float[Array, "B T D"]:
        """The last layer's states, ready for the head."""
        return self.final_norm(x)


def _residual_std(config: GPT2Config) -> float:
    # Every layer adds twice to the residual stream.
    return config.initializer_range * (2 * config.n_layer) ** -0.5

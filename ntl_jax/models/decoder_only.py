"""What decoder-only models share: the way through their layers, the cache, the head."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Float32, Int, Key

from ntl_jax.kernels.attention.reference import MASKED
from ntl_jax.kernels.dropout import NO_DROPOUT, Dropout, RowOffset
from ntl_jax.models.attention import (
    Cache,
    Mask,
    Visible,
    make_attention_mask,
    start_cache,
    token_positions,
)
from ntl_jax.models.layers import Embedding, Linear, head_logits, run_layers
from ntl_jax.sharding.constrain import constrain

HeadTriple = tuple[Array, Array, Array]  # q, k, v, [B, T, heads, H] each


class Sizes(NamedTuple):
    """What a family's config says of its layers, under names of its own."""

    layers: int
    key_value_heads: int
    head_dim: int
    longest: int  # row of tokens
    longest_field: str  # of the config


class DecoderOnly(nnx.Module):
    """A decoder-only model with its language-model head.

    A family has a `config`, stacked `layers`, its table of tokens, a `final_norm`, an
    `lm_head` where the head is not the table, and says what the methods below leave
    open.
    """

    config: Any
    layers: nnx.Module
    lm_head: Linear

    # ------------------------------------------------------------ of the family

    @property
    def sizes(self) -> Sizes:
        """What the cache and the layers' runner need to know."""
        raise NotImplementedError

    @property
    def table(self) -> Embedding:
        """The embeddings of tokens, W rows."""
        raise NotImplementedError

    def embed_tokens(
        self, input_ids: Int[Array, "B T"], positions: Int[Array, "#B T"] | None
    ) -> tuple[Float[Array, "B T D"], Any]:
        """What the first layer reads, and what every layer's projections need.

        Positions are 0, 1, 2, ... in every row where they are None.
        """
        raise NotImplementedError

    def dropout(self, key: Key[Array, ""] | None, row_offset: RowOffset) -> Dropout:
        """The dropout of a forward pass."""
        raise NotImplementedError

    def drop_embedded(self, x: Float[Array, "B T D"], dropout: Dropout):
        """What the first layer reads while training."""
        return x

    def project(self, layer, x: Float[Array, "B T D"], context) -> HeadTriple:
        """A layer's queries, keys and values."""
        raise NotImplementedError

    def finish_layer(self, layer, x, q, k, v, visible: Visible, dropout: Dropout):
        """A layer after its projections; keys and values may be a cache's."""
        raise NotImplementedError

    def finish(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """The last layer's states, ready for the head."""
        raise NotImplementedError

    # ------------------------------------------------------------ whole rows

    def __call__(
        self,
        input_ids: Int[Array, "B T"],
        *,
        attention_mask: Mask | None = None,
        segment_ids: Int[Array, "B T"] | None = None,
        dropout_key: Key[Array, ""] | None = None,
        row_offset: RowOffset = 0,
    ) -> Float32[Array, "B T W"]:
        """Logits of the token after each position; arguments, errors as of `hidden`.

        Returns:
            Float32 logits [B, T, W]; -1e30 in columns of padding.
        """
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
            ValueError: shapes disagree, or a row is longer than the model has
                positions.
        """
        dropout = self.dropout(dropout_key, row_offset)
        x, context, visible = self.embed_rows(
            input_ids, attention_mask, segment_ids, dropout
        )

        def step(layer, index, x):
            projected = self.project(layer, x, context)
            at_layer = dropout._replace(layer=index)
            x = self.finish_layer(layer, x, *projected, visible, at_layer)
            return constrain(x, "batch")

        return self.finish(self.run(step, x))

    def hidden_for_training(
        self, input_ids: Int[Array, "B T"], **options: Any
    ) -> tuple[Float[Array, "B T D"], Float32[Array, ""] | None]:
        """Hidden states, and the loss that balances experts; None without experts.

        Args:
            input_ids: as of `hidden`, and so are the options.
        """
        return self.hidden(input_ids, **options), None

    def embed_rows(
        self, input_ids, attention_mask, segment_ids, dropout: Dropout, more: int = 0
    ):
        """What `embed_tokens` gives for whole rows, dropped, and who sees whom."""
        self.check(input_ids, more, attention_mask, segment_ids)
        length = input_ids.shape[1]
        positions = None  # 0, 1, 2, ... in every row
        if attention_mask is not None or segment_ids is not None:
            positions = token_positions(length, attention_mask, segment_ids)
        x, context = self.embed_tokens(input_ids, positions)
        seen = make_attention_mask(attention_mask, segment_ids, segment_ids)
        visible = Visible(seen, causal=True)
        return constrain(self.drop_embedded(x, dropout), "batch"), context, visible

    # ------------------------------------------------------------ head

    @jax.named_scope("head")
    def logits(
        self, hidden: Float[Array, "B T D"], *, aligned: bool = False
    ) -> Float32[Array, "B T W"]:
        """Float32 logits of hidden states; -1e30 in columns of padding.

        Args:
            hidden: states [B, T, D], from `hidden`.
            aligned: whether columns of 0 may follow, up to the next multiple of 128,
                where the product is faster so. The losses leave them out.
        """
        tied = self.config.tie_word_embeddings
        weight = self.table.embedding[...] if tied else self.lm_head.kernel[...]
        logits = head_logits(hidden, weight, tied=tied, aligned=aligned)
        if self.config.rows == self.config.vocab_size:
            return logits
        columns = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
        return jnp.where(columns < self.config.vocab_size, logits, jnp.float32(MASKED))

    @property
    def head(self) -> Float32[Array, "D W"]:
        """The head's kernel: the table's transpose where the two are tied."""
        if self.config.tie_word_embeddings:
            return self.table.embedding[...].T
        return self.lm_head.kernel[...]

    def pad_vocabulary(self) -> None:
        """Adds the rows and columns of zeros that the config asks for."""
        padding = self.config.rows - self.config.vocab_size
        if not padding:
            return
        rows = jnp.pad(self.table.embedding[...], ((0, padding), (0, 0)))
        self.table.embedding = nnx.Param(rows)
        if not self.config.tie_word_embeddings:
            columns = jnp.pad(self.lm_head.kernel[...], ((0, 0), (0, padding)))
            self.lm_head.kernel = nnx.Param(columns)

    # ------------------------------------------------------------ token by token

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
            ValueError: shapes disagree, or P + length is beyond the model's positions.
        """
        x, context, visible = self.embed_rows(
            input_ids, attention_mask, None, NO_DROPOUT, length
        )
        sizes = self.sizes
        shape = (sizes.layers, *input_ids.shape, sizes.key_value_heads, sizes.head_dim)
        zeros = jnp.zeros(shape, self.config.dtype)
        empty = constrain(zeros, None, "batch", None, "heads")

        def step(layer, index, carry):
            x, keys, values = carry
            q, k, v = self.project(layer, x, context)
            keys = jax.lax.dynamic_update_index_in_dim(keys, k, index, 0)
            values = jax.lax.dynamic_update_index_in_dim(values, v, index, 0)
            x = self.finish_layer(layer, x, q, k, v, visible, NO_DROPOUT)
            return constrain(x, "batch"), keys, values

        x, keys, values = self.run(step, (x, empty, empty))
        cache = start_cache(keys, values, attention_mask, length)
        return self.finish(x[:, -1:]), cache

    @jax.named_scope("decoder_step")
    def decode_step(
        self, tokens: Int[Array, "B"], cache: Cache
    ) -> tuple[Float[Array, "B 1 D"], Cache]:
        """Hidden states after one more token a row, and the cache with that token.

        The cache must have room: a step beyond its `length` overwrites the last slot.
        """
        x, context = self.embed_tokens(tokens[:, None], cache.positions[:, None])
        visible = Visible(cache.seen_by_next()[:, None, None])  # [B, 1, 1, S]

        def step(layer, index, carry):
            x, keys, values = carry
            projected = self.project(layer, x, context)
            q, k, v = (constrain(half, "batch", None, "heads") for half in projected)
            place = (index, 0, cache.filled, 0, 0)
            # The cache is carried, not scanned over: it is then written in place.
            keys = jax.lax.dynamic_update_slice(keys, k[None], place)
            values = jax.lax.dynamic_update_slice(values, v[None], place)
            own = keys[index], values[index]
            x = self.finish_layer(layer, x, q, *own, visible, NO_DROPOUT)
            return constrain(x, "batch", None, "hidden"), keys, values

        x = constrain(x, "batch", None, "hidden")
        x, keys, values = self.run(step, (x, cache.keys, cache.values))
        return self.finish(x), cache.advanced(keys, values)

    # ------------------------------------------------------------ layers, checks

    def run(self, step, carry):
        """`step(layer, index, carry)` through all layers."""
        unroll, remat = self.config.unroll_layers, self.config.remat
        count = self.sizes.layers
        return run_layers(self.layers, count, step, carry, unroll=unroll, remat=remat)

    def check(self, input_ids, more: int, *rows: Array | None) -> None:
        """Raises ValueError where shapes disagree or rows are too long."""
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
        length, sizes = input_ids.shape[1], self.sizes
        if length + more > sizes.longest:
            raise ValueError(
                f"{length} tokens and {more} to come are {length + more}, but the "
                f"model has {sizes.longest_field} = {sizes.longest}; shorten them"
            )

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

The layers are in `ntl_jax.models.t5.layers`. Positions enter only through the relative
bias of self-attention, one table a stack, shared by all its layers.
Source: Raffel et al. 2020; behaviour as transformers' T5ForConditionalGeneration.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Float32, Int, Key

from ntl_jax.kernels.dropout import NO_DROPOUT, Dropout, RowOffset
from ntl_jax.models.attention import make_attention_mask
from ntl_jax.models.layers import (
    Embedding,
    Linear,
    RMSNorm,
    head_logits,
    run_layers,
    stack_layers,
)
from ntl_jax.models.t5.config import T5Config
from ntl_jax.models.t5.layers import EMBEDDED, FINAL, DecoderLayer, EncoderLayer, Seen
from ntl_jax.models.t5.relative_bias import RelativeBias
from ntl_jax.sharding.constrain import constrain
from ntl_jax.sharding.mesh import data_size

_DECODER_SITES = 16  # the decoder's dropout sites are the encoder's plus so many

Mask = Bool[Array, "B S"] | Int[Array, "B S"]


class Stack(nnx.Module):
    """A stack's layers [L, ...], the relative bias that they share, its last norm."""

    def __init__(self, config: T5Config, layer: type, count: int, rngs: nnx.Rngs):
        self.relative_bias = RelativeBias(
            config.relative_attention_num_buckets,
            config.relative_attention_max_distance,
            config.num_heads,
            std=config.initializer_factor * config.d_model**-0.5,
            bidirectional=layer is EncoderLayer,
            rngs=rngs,
        )
        self.layers = stack_layers(partial(layer, config), count, rngs)
        self.final_norm = RMSNorm(
            config.d_model,
            eps=config.layer_norm_epsilon,
            scale=config.initializer_factor,
        )


class T5Body(nnx.Module):
    """Table, encoder and decoder: all of a T5 but what stands on its decoder."""

    def __init__(self, config: T5Config, rngs: nnx.Rngs):
        self.config = config
        factor, shape = config.initializer_factor, (config.vocab_size, config.d_model)
        self.shared = Embedding(*shape, std=factor, rngs=rngs)
        self.encoder = Stack(config, EncoderLayer, config.num_layers, rngs)
        self.decoder = Stack(config, DecoderLayer, config.num_decoder_layers, rngs)

    def embed(self, ids: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """What both stacks read in the place of tokens."""
        return self.shared(ids, self.config.dtype)

    def encode(
        self,
        input_ids: Int[Array, "B S"],
        attention_mask: Mask | None = None,
        dropout: Dropout = NO_DROPOUT,
        segment_ids: Int[Array, "B S"] | None = None,
    ) -> Float[Array, "B S D"]:
        """The encoder's output for source tokens.

        Args:
            input_ids: source tokens.
            attention_mask: true or non-zero where a token is to be seen.
            drop: its masks; the decoder's, made with the same, are others.
            segment_ids: equal, side by side, where tokens belong together.

        Returns:
            [B, S, D] in the config's dtype.

        Raises:
            ValueError: input_ids are not [B, S], or the mask has another shape.
        """
        if input_ids.ndim != 2:
            raise ValueError(
                f"input_ids must be [B, S]; their shape is {input_ids.shape}"
            )
        if attention_mask is not None and attention_mask.shape != input_ids.shape:
            raise ValueError(
                f"attention_mask {attention_mask.shape} must have the shape of "
                f"input_ids {input_ids.shape}"
            )
        seen = make_attention_mask(attention_mask, segment_ids, segment_ids)
        return self.encode_embedded(self.embed(input_ids), seen, dropout)

    @jax.named_scope("encoder")
    def encode_embedded(
        self,
        embedded: Float[Array, "B S D"],
        seen: Seen = None,
        dropout: Dropout = NO_DROPOUT,
    ) -> Float[Array, "B S D"]:
        """The encoder's output; `seen` is what `make_attention_mask` gives."""
        places = jnp.arange(embedded.shape[1], dtype=jnp.int32)
        bias = self.encoder.relative_bias(places, places)
        x = constrain(dropout(embedded, EMBEDDED), "batch")

        def step(layer, index, x):
            x = layer(x, bias, seen, dropout._replace(layer=index))
            return constrain(x, "batch")

        x = self._run(self.encoder.layers, self.config.num_layers, step, x)
        return dropout(self.encoder.final_norm(x), FINAL)

    @jax.named_scope("decoder")
    def decode_embedded(
        self,
        embedded: Float[Array, "B T D"],
        encoded: Float[Array, "B S D"],
        seen_source: Seen = None,
        dropout: Dropout = NO_DROPOUT,
        segment_ids: Int[Array, "B T"] | None = None,
    ) -> Float[Array, "B T D"]:
        """The decoder's output for embedded target tokens; later ones are not seen.

        Args:
            embedded: target tokens moved one to the right, embedded.
            encoded: the encoder's output.
            seen_source: what `make_attention_mask` makes of the source's mask.
            drop: the same dropout as the encoder's; its masks here are others.
            segment_ids: of the target, where several texts share a row.

        Returns:
            [B, T, D] in the config's dtype, as `finish` leaves it.
        """
        dropout = dropout.after(_DECODER_SITES)
        places = jnp.arange(embedded.shape[1], dtype=jnp.int32)
        bias = self.decoder.relative_bias(places, places)
        seen = make_attention_mask(None, segment_ids, segment_ids)
        x = constrain(dropout(embedded, EMBEDDED), "batch")

        def step(layer, index, x):
            source = layer.cross_attention.project(encoded)
            at_layer = dropout._replace(layer=index)
            x = layer(x, bias, seen, source, seen_source, at_layer)
            return constrain(x, "batch")

        x = self._run(self.decoder.layers, self.config.num_decoder_layers, step, x)
        return self.finish(x, dropout)

    def finish(self, x, dropout: Dropout = NO_DROPOUT) -> Float[Array, "B T D"]:
        """What the last decoder layer gave, ready for what stands on it."""
        return dropout(self.decoder.final_norm(x), FINAL)

    def _run(self, layers, count, step, carry):
        unroll, remat = self.config.unroll_layers, self.config.remat
        return run_layers(layers, count, step, carry, unroll=unroll, remat=remat)


class T5WithHead(T5Body):
    """Table, encoder, decoder, and the language-model head."""

    def __init__(self, config: T5Config, rngs: nnx.Rngs):
        super().__init__(config, rngs)
        if not config.tie_word_embeddings:
            shape = (config.d_model, config.vocab_size)
            self.lm_head = Linear(*shape, std=config.initializer_factor, rngs=rngs)

    @jax.named_scope("head")
    def logits(
        self, hidden: Float[Array, "B T D"], *, aligned: bool = False
    ) -> Float32[Array, "B T V"]:
        """Float32 logits [B, T, V] of hidden states [B, T, D].

        Args:
            hidden: states, from `hidden`.
            aligned: whether columns of 0 may follow, up to the next multiple of 128,
                where the product is faster so. The losses leave them out.
        """
        tied = self.config.tie_word_embeddings
        weight = self.shared.embedding[...] if tied else self.lm_head.kernel[...]
        return head_logits(hidden, weight, tied=tied, aligned=aligned)

    @property
    def head(self) -> Float32[Array, "D V"]:
        """The head's kernel: the table's transpose where the two are tied."""
        if self.config.tie_word_embeddings:
            return self.shared.embedding[...].T
        return self.lm_head.kernel[...]

    def scaled(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """The decoder's output as the head takes it."""
        if self.config.scale_decoder_outputs:
            # In float32: a factor rounded to bfloat16 would be off by up to 0.2%.
            x = (x.astype(jnp.float32) * self.config.d_model**-0.5).astype(x.dtype)
        return x


class T5(T5WithHead):
    """The encoder-decoder as a language model.

    Args:
        config: sizes and options.
        rngs: its `params` stream draws the parameters, float32, laid out as this module
            says.

    Source: Raffel et al. (2020); transformers' T5ForConditionalGeneration.
    """

    def finish(self, x, dropout: Dropout = NO_DROPOUT) -> Float[Array, "B T D"]:
        """What the last decoder layer gave, ready for the head."""
        return self.scaled(super().finish(x, dropout))

    def __call__(
        self,
        input_ids: Int[Array, "B S"],
        decoder_input_ids: Int[Array, "B T"],
        *,
        attention_mask: Mask | None = None,
        segment_ids: Int[Array, "B S"] | None = None,
        target_segment_ids: Int[Array, "B T"] | None = None,
        dropout_key: Key[Array, ""] | None = None,
        row_offset: RowOffset = 0,
    ) -> Float32[Array, "B T V"]:
        """Logits of every target position; arguments and errors as of `hidden`.

        Returns:
            Float32 logits [B, T, V].
        """
        hidden = self.hidden(
            input_ids,
            decoder_input_ids,
            attention_mask=attention_mask,
            segment_ids=segment_ids,
            target_segment_ids=target_segment_ids,
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
        segment_ids: Int[Array, "B S"] | None = None,
        target_segment_ids: Int[Array, "B T"] | None = None,
        dropout_key: Key[Array, ""] | None = None,
        row_offset: RowOffset = 0,
    ) -> Float[Array, "B T D"]:
        """The decoder's last hidden states, scaled and ready for the head.

        Args:
            input_ids: source tokens.
            decoder_input_ids: target tokens moved one to the right (`shift_right`).
            attention_mask: true or non-zero where a source token is to be seen; None
                sees them all. The target needs none: later tokens are never seen.
            segment_ids: equal, side by side, where source tokens belong together, in
                rows that hold several texts: each sees itself alone.
            target_segment_ids: the same of the target, which sees the source of its
                own segment. Both or neither.
            dropout_key: a threefry key of this step; None means no dropout.
            row_offset: see `dropout`; for batches that come in parts.

        Returns:
            [B, T, D] in the config's dtype: `hidden @ head` are the logits.

        Raises:
            ValueError: shapes disagree, or only one side has segments.
        """
        if decoder_input_ids.ndim != 2 or len(decoder_input_ids) != len(input_ids):
            raise ValueError(
                f"input_ids {input_ids.shape} and decoder_input_ids "
                f"{decoder_input_ids.shape} must be [B, S] and [B, T] with one B"
            )
        check_segments(segment_ids, input_ids, target_segment_ids, decoder_input_ids)
        dropout = Dropout(self.config.dropout_rate, dropout_key, row_offset)
        encoded = self.encode(input_ids, attention_mask, dropout, segment_ids)
        target = self.embed(decoder_input_ids)
        seen_source = make_attention_mask(
            attention_mask, target_segment_ids, segment_ids
        )
        return self.decode_embedded(
            target, encoded, seen_source, dropout, target_segment_ids
        )


def share_table(config: T5Config, params: dict[str, Any]) -> dict[str, Any]:
    """Parameters whose tied table is cast once for all its uses.

    Where `data` shards the batch, the gradients of all uses are then summed in the
    table's dtype and over devices at once; each cast by itself, they would be sent in
    float32 and apart.

    Args:
        config: the T5's.
        params: its parameters.

    Returns:
        `params` with another `shared/embedding`; as they are where the table is not
        tied or nothing shards the batch over `data`.
    """
    if not config.tie_word_embeddings or data_size() == 1:
        return params
    table = params["shared"]["embedding"].astype(config.table_dtype)
    return params | {"shared": {"embedding": table}}


def check_segments(segment_ids, input_ids, target_segment_ids, target_ids) -> None:
    """Raises ValueError where segments are given of one side, or of another shape."""
    if segment_ids is None and target_segment_ids is None:
        return
    shapes = [getattr(ids, "shape", None) for ids in (segment_ids, target_segment_ids)]
    if shapes != [input_ids.shape, target_ids.shape]:
        raise ValueError(
            f"segment_ids {shapes[0]} and target_segment_ids {shapes[1]} must both be "
            f"given, with the shapes of input_ids {input_ids.shape} and "
            f"decoder_input_ids {target_ids.shape}"
        )

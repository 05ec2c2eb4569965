"""One face for both kinds of model: a source or a prompt is read, then steps follow."""

import re
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int, Int32, PyTree

from ntl_jax.kernels.einsum import einsum_float32
from ntl_jax.models import Params, bind
from ntl_jax.models.attention import Cache
from ntl_jax.models.t5.decoding import T5Steps
from ntl_jax.models.t5.model import Mask
from ntl_jax.sharding.constrain import constrain
from ntl_jax.sharding.rules import decoding_layout

# Leaves that every model casts to its dtype before it uses them; not the tables, which
# some read in float32, nor the routers.
_CAST = re.compile(r".*/mlp/(gate_up|down)|.*(?<!router)/kernel")


class Decoder:
    """A bound model that has read its input, W answers a row.

    Args:
        config: the model's config.
        params: the model's parameters.
        input_ids: the source of an encoder-decoder, the prompt of any other model.
        attention_mask: true or non-zero where a token is to be seen.
        length: how many tokens are to be generated at most.
        beams: W.

    Attributes:
        batch: B.
        beams: W.
        tokens: what goes in first: the start token in every row; None after a prompt.
        hidden: after the prompt's last token; None where there is a start token.
        cache: what `step` takes at first.
    """

    tokens: Int32[Array, "B W"] | None = None
    hidden: Float[Array, "B W D"] | None = None
    cache: PyTree

    def __init__(
        self,
        config: Any,
        params: Params,
        input_ids: Int[Array, "B S"],
        attention_mask: Mask | None,
        length: int,
        beams: int = 1,
    ):
        if config.head != "lm":
            raise TypeError(
                f"a {type(config).__name__} predicts numbers and writes no text; call "
                "the model itself, bind(config, params)(...)"
            )
        input_ids = jnp.asarray(input_ids)
        if attention_mask is not None:
            attention_mask = jnp.asarray(attention_mask)
        self.config, self.beams = config, beams
        params = decoding_layout(config, compute_params(params, config.dtype))
        self.model = bind(config, params, gather=False)
        self._head = self.model.head.astype(config.dtype)
        if not config.decoder_only:
            encoded = self.model.encode(input_ids, attention_mask)
            self.batch = len(encoded)
            self._steps = T5Steps(self.model, encoded, attention_mask, length, beams)
            shape = (self.batch, beams)
            self.tokens = jnp.full(shape, config.decoder_start_token_id, jnp.int32)
            self.cache = self._steps.empty()
        else:
            self._steps = None
            hidden, cache = self.model.prefill(input_ids, attention_mask, length)
            self.batch = len(hidden)
            first = jnp.zeros((self.batch, beams), jnp.int32)
            self.hidden = jnp.repeat(hidden, beams, axis=1)
            self.cache = cache if beams == 1 else _take_beams(cache, first)

    def step(
        self,
        tokens: Int[Array, "B W"],
        position: Int[Array, ""],
        cache: PyTree,
        ancestry: Int32[Array, "B W T"] | None = None,
    ) -> tuple[Float[Array, "B W D"], PyTree]:
        """Hidden states after one more token a beam, and the cache with that token."""
        if self._steps is not None:
            return self._steps(tokens, position, cache, ancestry)
        hidden, cache = self.model.decode_step(tokens.reshape(-1), cache)
        return hidden.reshape(*tokens.shape, -1), cache

    def move(self, cache: PyTree, parents: Int[Array, "B W"]) -> PyTree:
        """The cache after beam w of a row has become the heir of beam parents[w]."""
        if self._steps is not None:  # steps follow the ancestry instead
            return cache
        return _take_beams(cache, parents)

    def logits(
        self, hidden: Float[Array, "B W D"], vocab_size: int
    ) -> Float32[Array, "B W V"]:
        """Logits; -inf in columns from `vocab_size` on, which are padding."""
        logits = einsum_float32("BWD,DV->BWV", hidden, self._head)
        logits = constrain(logits, "batch", ..., "vocab")
        if vocab_size > logits.shape[-1]:
            raise ValueError(
                f"vocab_size is {vocab_size}, but the model has {logits.shape[-1]} "
                "logits; give the number of its columns that are real"
            )
        if vocab_size == logits.shape[-1]:
            return logits
        column = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
        return jnp.where(column < vocab_size, logits, -jnp.inf)


def compute_params(params: Params, dtype: str) -> Params:
    """Matrices in the dtype that the model computes in.

    Cast once, and not in every step: a step reads them all.
    """

    def cast(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return leaf.astype(dtype) if _CAST.fullmatch(name) else leaf

    return jax.tree_util.tree_map_with_path(cast, params)


def _take_beams(cache: Cache, parents: Int[Array, "B W"]) -> Cache:
    """A cache whose beam w of a row is what was beam parents[w] of this row."""

    def taken(half):  # [B * V, ...] -> [B * W, ...], within each row
        beams = half.reshape(len(parents), -1, *half.shape[1:])
        index = parents.reshape(*parents.shape, *[1] * (half.ndim - 1))
        chosen = jnp.take_along_axis(beams, index, axis=1)
        return chosen.reshape(-1, *half.shape[1:])

    def of_layers(half):
        return constrain(jax.vmap(taken)(half), None, "batch", None, "heads")

    return cache._replace(
        keys=of_layers(cache.keys),
        values=of_layers(cache.values),
        seen=taken(cache.seen),
        positions=taken(cache.positions),
    )

"""T5's decoder one token at a time, laid out for speed.

What training computes over again is made once here, before the loop over tokens: the
layers' own matrices instead of slices of a stack, q, k and v as one matrix, the keys
and values of the source, the relative bias of every distance.
"""

from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Int32

from ntl_jax.kernels.attention.dispatch import choose_implementation, decoding_kernels
from ntl_jax.kernels.attention.reference import MASKED
from ntl_jax.kernels.dropout import NO_DROPOUT
from ntl_jax.kernels.einsum import einsum_float32
from ntl_jax.models.attention import make_attention_mask
from ntl_jax.models.t5.layers import Attention, DecoderLayer
from ntl_jax.models.t5.model import T5, Mask
from ntl_jax.sharding.constrain import constrain


class Slots(NamedTuple):
    """Keys and values of W beams' tokens, an array a layer.

    Heads stand before positions: so a head's keys lie together in memory, and a step
    multiplies with them where they are. A position's W beams lie side by side: so what
    is filled lies at the front.
    """

    keys: tuple[Float[Array, "B N TW H"], ...]
    values: tuple[Float[Array, "B N TW H"], ...]


class T5Steps:
    """A T5 that has read its source and waits for target tokens.

    Args:
        model: the model, its parameters in the dtype that they are used in.
        encoded: the encoder's output, [B, S, D].
        attention_mask: true or non-zero where a source token is to be seen.
        length: T, how many target tokens there is room for.
        beams: W, how many answers a source is given at once. They share its keys.
    """

    def __init__(
        self,
        model: T5,
        encoded: Float[Array, "B S D"],
        attention_mask: Mask | None,
        length: int,
        beams: int = 1,
    ):
        config = model.config
        self.model, self.length, self.beams = model, length, beams
        self.batch, self.dtype = encoded.shape[0], encoded.dtype
        self._layers = _unstacked(model.decoder.layers, config.num_decoder_layers)
        self._inputs = [_joined(layer.attention) for layer in self._layers]
        self._source = [
            _heads_first(*layer.cross_attention.project(encoded))
            for layer in self._layers
        ]
        self._seen_source = make_attention_mask(attention_mask)
        # The bias of the last position to twice as many: every other position's is a
        # window of it.
        last = jnp.array([length - 1], jnp.int32)
        places = jnp.arange(2 * length - 1, dtype=jnp.int32)
        self._bias = model.decoder.relative_bias(last, places)  # [1, N, 1, 2T-1]
        self._by_kernel = self._chooses_kernel()

    def empty(self) -> Slots:
        """A cache without tokens."""
        config = self.model.config
        places = self.length * self.beams
        shape = (self.batch, config.num_heads, places, config.d_kv)
        zeros = constrain(jnp.zeros(shape, self.dtype), "batch", "heads")
        zeros = (zeros,) * len(self._layers)
        return Slots(zeros, zeros)

    @jax.named_scope("decoder_step")
    def __call__(
        self,
        tokens: Int[Array, "B W"],
        position: Int[Array, ""],
        slots: Slots,
        ancestry: Int32[Array, "B W T"] | None = None,
    ) -> tuple[Float[Array, "B W D"], Slots]:
        """Hidden states after one more token a beam, and the cache with that token.

        Args:
            tokens: of each beam.
            position: of these tokens, the same in all rows.
            slots: the cache; the tokens' keys are written to `position`.
            ancestry: which beam's slot holds each earlier token of a beam. So the
                cache stays where it is when beams change places. None for one beam.
        """
        visible = self._visible(position, ancestry)
        x = self.model.embed(tokens)  # [B, W, D]
        kept = []
        for layer, joined, source, keys, values in zip(
            self._layers, self._inputs, self._source, *slots, strict=True
        ):
            new = self._project(layer.attention.norm(x), joined)
            own, *written = self._attend_to_own(new, keys, values, position, visible)
            kept.append(written)
            x = constrain(x + layer.attention.o(own), "batch", None, "hidden")
            attention = layer.cross_attention
            q = attention.q(attention.norm(x)).reshape(new[:, :, 0].shape)
            q = constrain(q, "batch", None, "heads")
            cross = self._attend_to_source(q, source)
            x = x + attention.o(cross)
            x = layer.mlp(constrain(x, "batch", None, "hidden"), NO_DROPOUT)
            x = constrain(x, "batch", None, "hidden")
        keys, values = zip(*kept, strict=True)
        return self.model.finish(x), Slots(keys, values)

    def _chooses_kernel(self) -> bool:
        """Whether kernels attend: to several beams, on GPUs, as the config asks."""
        config = self.model.config
        if config.attention == "cudnn":
            return False
        shape = (self.batch, self.beams, config.num_heads, config.d_kv)
        q = jax.ShapeDtypeStruct(shape, self.dtype)
        return choose_implementation(config.attention, q, q, scale=1.0) == "triton"

    def _project(self, normed, joined) -> Float[Array, "B W 3 N H"]:
        config = self.model.config
        both = jnp.einsum("BWD,DCE->BWCE", normed, joined.astype(normed.dtype))
        split = both.reshape(*both.shape[:3], config.num_heads, config.d_kv)
        return constrain(split, "batch", None, None, "heads")

    def _visible(self, position, ancestry) -> dict[str, Array]:
        """The bias [1, N, 1, TW] of slots and, of several beams, who sees them."""
        start = self.length - 1 - position
        row = jax.lax.dynamic_slice_in_dim(self._bias, start, self.length, axis=3)
        if ancestry is None:
            return {"bias": row}
        slot = jnp.arange(self.beams, dtype=jnp.int32)[None, None, None, None]
        mine = ancestry[:, None, :, :, None] == slot  # [B, 1, W, T, W]
        seen = mine.reshape(*mine.shape[:3], -1)
        return {"bias": jnp.repeat(row, self.beams, axis=3), "seen": seen}

    def _attend_to_own(self, new, keys, values, position, visible):
        """What the new tokens take of a cache, and the cache with them."""
        if self._by_kernel:
            mixed, keys, values = decoding_kernels().attend_to_cache(
                new, keys, values, position=position, **visible
            )
        else:
            q, k, v = (new[:, :, i] for i in range(3))  # [B, W, N, H] each
            keys, values = _write(keys, k, position), _write(values, v, position)
            mixed = _attend(q, keys, values, **visible)
        return _joined_heads(mixed), keys, values

    def _attend_to_source(self, q, source) -> Float[Array, "B W E"]:
        attend = decoding_kernels().attend_to_source if self._by_kernel else _attend
        return _joined_heads(attend(q, *source, seen=self._seen_source))


def _unstacked(layers: nnx.Module, count: int) -> list[DecoderLayer]:
    graph, state = nnx.split(layers)
    each = [jax.tree.map(lambda leaf, i=i: leaf[i], state) for i in range(count)]
    return [cast(DecoderLayer, nnx.merge(graph, one)) for one in each]


def _joined(attention: Attention) -> Float[Array, "D 3 E"]:
    # On an axis of its own: the split of heads over devices stays as it is.
    kernels = [linear.kernel[...] for linear in (attention.q, attention.k, attention.v)]
    return jnp.stack(kernels, axis=1)


def _heads_first(keys, values):
    """[B, S, N, H] -> [B, N, S, H]."""
    first = (jnp.swapaxes(half, 1, 2) for half in (keys, values))
    keys, values = (constrain(half, "batch", "heads") for half in first)
    return keys, values


def _write(half, new, position):
    """One token's keys or values [B, W, N, H] at their position of [B, N, TW, H]."""
    new = jnp.swapaxes(new, 1, 2)
    start = position * new.shape[2]
    return jax.lax.dynamic_update_slice_in_dim(half, new, start, axis=2)


def _joined_heads(mixed) -> Float[Array, "B W E"]:
    return mixed.reshape(*mixed.shape[:2], -1)


def _attend(q, keys, values, *, bias=None, seen=None) -> Float[Array, "B W N H"]:
    scores = einsum_float32("BWNH,BNSH->BNWS", q, keys)
    if bias is not None:
        scores = scores + jnp.broadcast_to(bias, scores.shape)
    if seen is not None:
        scores = jnp.where(seen, scores, jnp.float32(MASKED))
    weights = jax.nn.softmax(scores, axis=-1).astype(q.dtype)
    return jnp.einsum("BNWS,BNSH->BWNH", weights, values)

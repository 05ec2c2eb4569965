"""What attention's kernels read, and how one tile of queries and keys is computed.

Used inside Pallas kernels, where operands are references to a GPU's memory.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Bool, Float, Float32, Int8, Int32, UInt32

from ntl_jax.kernels.attention.reference import MASKED
from ntl_jax.kernels.dropout import keep_places

_LOG2_E = math.log2(math.e)


class Tile(NamedTuple):
    """What one program of a kernel works on at a time.

    Attributes:
        queries: how many, a power of two from 16.
        keys: likewise.
        warps: how many warps of 32 threads share the work.
        stages: how many tiles are loaded ahead.
    """

    queries: int
    keys: int
    warps: int = 4
    stages: int = 2


class Tiles(NamedTuple):
    """The tiles of the forward kernel, and of those of dq, of dk and dv, of dbias."""

    forward: Tile
    queries: Tile
    keys: Tile
    bias: Tile


class Operands(NamedTuple):
    """What the kernels read.

    Attributes:
        q: queries.
        k: keys, K heads; query head n reads key head n // (N / K).
        v: values.
        bias: added to the scores; each of its C rows serves B / C rows of queries.
        mask: not zero where a query sees a key; without T where queries are alike. Its
            rows are as the bias's.
        hashes: of dropout: every row's two words, and the number of its first place,
            which is 0 where all heads are here.
    """

    q: Float[Array, "B T N H"]
    k: Float[Array, "B S K H"]
    v: Float[Array, "B S K H"]
    bias: Float32[Array, "C N T S"] | None = None
    mask: Int8[Array, "M T S"] | Int8[Array, "M S"] | None = None
    hashes: tuple[UInt32[Array, "B"], ...] | None = None


class Options(NamedTuple):
    """What the kernels are compiled for."""

    scale: float
    causal: bool
    rate: float
    tiles: Tiles
    interpret: bool = False


def default_tiles(width: int, itemsize: int) -> Tiles:
    """Tiles that fit into a GPU's shared memory: on an H100 the fastest of those tried.

    Args:
        width: H.
        itemsize: bytes of one number of q, k and v.
    """
    square = Tile(64, 64)
    if width * itemsize <= 128:
        back = Tile(64, 64, stages=3)
        return Tiles(square, square, back, back)
    if width * itemsize <= 256:  # with more queries, registers spill into memory
        return Tiles(square, square, Tile(32, 64, stages=3), Tile(32, 64))
    small = Tile(32, 32)
    return Tiles(Tile(64, 32), small, small, small)


class Span(NamedTuple):
    """A tile's stretch of queries or keys, of which some may lie beyond the last."""

    start: Any
    size: int
    length: int

    @property
    def slice(self):
        """The stretch, as an index."""
        return pl.ds(self.start, self.size)

    @property
    def places(self) -> Int32[Array, "size"]:
        """The numbers of its queries or keys."""
        return self.start + jnp.arange(self.size, dtype=jnp.int32)

    @property
    def inside(self) -> Bool[Array, "size"] | None:
        """Which of them there are; None: all."""
        return None if self.length % self.size == 0 else self.places < self.length


class Place(NamedTuple):
    """Where a tile lies: its row of the batch, its query head, its queries and keys."""

    row: Any
    head: Any
    queries: Span
    keys: Span

    @property
    def slices(self):
        """Its queries and keys, as an index."""
        return self.queries.slice, self.keys.slice

    @property
    def inside(self) -> Bool[Array, "#Q #K"] | None:
        """Which pairs of a query and a key there are; None: all."""
        queries, keys = self.queries.inside, self.keys.inside
        if queries is None:
            return None if keys is None else keys[None, :]
        return queries[:, None] if keys is None else queries[:, None] & keys[None, :]


class AtQueries(NamedTuple):
    """What the backward pass reads of a tile's queries."""

    q: Float[Array, "Q H"]
    cotangent: Float[Array, "Q H"]
    log_sums: Float32[Array, "Q"]
    means: Float32[Array, "Q"]


def scores_of(x: Operands, q, k, place: Place, options: Options):
    """Scores [Q, K] as powers of 2; -1e30 where hidden, -inf beyond the last key."""
    scores = dot(q, k, 1, 1) * (options.scale * _LOG2_E)
    if x.bias is not None:
        bias = x.bias.at[_shared(x, x.bias, place.row), place.head, *place.slices]
        scores = scores + load(bias, place.inside) * _LOG2_E
    if x.mask is not None:
        scores = jnp.where(_mask(x, x.mask, place) != 0, scores, MASKED)
    if options.causal:
        earlier = place.queries.places[:, None] >= place.keys.places[None, :]
        scores = jnp.where(earlier, scores, MASKED)
    inside = place.keys.inside
    return scores if inside is None else jnp.where(inside[None, :], scores, -jnp.inf)


def slopes_of(
    x: Operands, at_queries: AtQueries, k, v, place: Place, options: Options
) -> tuple[Float32[Array, "Q K"], Float32[Array, "Q K"]]:
    """Probabilities after dropout, and the derivative of the loss in the scores."""
    scores = scores_of(x, at_queries.q, k, place, options)
    p = jnp.exp2(scores - at_queries.log_sums[:, None])
    kept = kept_of(x, place, options)
    slopes = dropped(dot(at_queries.cotangent, v, 1, 1), kept, options)
    return dropped(p, kept, options), p * (slopes - at_queries.means[:, None])


def kept_of(x: Operands, place: Place, options: Options) -> Bool[Array, "Q K"] | None:
    """Which probabilities dropout keeps: those that `layers.dropout` does."""
    if x.hashes is None:
        return None
    queries, keys = place.queries, place.keys
    first, second, begin = (ref[place.row] for ref in x.hashes)
    per_head = np.uint32(queries.length * keys.length % 2**32)
    begin = begin + place.head.astype(jnp.uint32) * per_head
    number = queries.places.astype(jnp.uint32)[:, None] * np.uint32(keys.length)
    number = begin + number + keys.places.astype(jnp.uint32)[None, :]
    return keep_places(number, first, second, options.rate)


def dropped(p, kept, options: Options):
    """What is kept, scaled up, and 0 for the rest."""
    return p if kept is None else jnp.where(kept, p * (1 / (1 - options.rate)), 0.0)


def rows_of(ref, row, span: Span, head) -> Float[Array, "size H"]:
    """A head's stretch of [B, L, N, H]; 0 beyond the last."""
    inside = None if span.inside is None else span.inside[:, None]
    return load(ref.at[row, span.slice, head, :], inside)


def at_queries_of(x: Operands, given, place: Place) -> AtQueries:
    """Of the queries and their cotangents, log_sums and means, one tile's."""
    cotangent, *per_query = given
    row, head, queries, _ = place
    return AtQueries(
        rows_of(x.q, row, queries, head),
        rows_of(cotangent, row, queries, head),
        *(load(ref.at[row, head, queries.slice], queries.inside) for ref in per_query),
    )


def group_of(x: Operands, head):
    """The key head that a query head reads."""
    members = x.q.shape[2] // x.k.shape[2]
    return head if members == 1 else jax.lax.div(head, members)


def dot(a, b, along_a: int, along_b: int) -> Float32[Array, "P Q"]:
    """The product of two tiles over one axis of each, added up in float32."""
    dims = (((along_a,), (along_b,)), ((), ()))
    return jax.lax.dot_general(a, b, dims, preferred_element_type=jnp.float32)


def load(ref, inside):
    """What `ref` points to; 0 where it is not inside."""
    if inside is None:
        return plgpu.load(ref)
    inside = jnp.broadcast_to(inside, ref.shape)
    return plgpu.load(ref, mask=inside, other=0)


def store(ref, value, inside) -> None:
    """Writes where it is inside, whose axes are the first ones of the value."""
    if inside is not None:
        inside = inside.reshape(inside.shape + (1,) * (value.ndim - inside.ndim))
        inside = jnp.broadcast_to(inside, value.shape)
    plgpu.store(ref, value.astype(ref.dtype), mask=inside)


def _mask(x: Operands, ref, place: Place) -> Array:
    """The mask's tile, [Q, K], or [1, K] where queries are alike."""
    row = _shared(x, ref, place.row)
    if ref.ndim == 2:
        return load(ref.at[row, place.keys.slice], place.keys.inside)[None, :]
    return load(ref.at[row, *place.slices], place.inside)


def _shared(x: Operands, ref, row):
    """Which row of a bias or a mask serves a row of queries."""
    return jax.lax.div(row, x.q.shape[0] // ref.shape[0])

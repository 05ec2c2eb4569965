"""T5's relative position bias: a learned score per head and bucket of distances."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float32, Int

from ntl_jax.kernels.attention.reference import MASKED


def distance_buckets(buckets: int, max_distance: int) -> np.ndarray:
    """Bucket of each distance 0..max_distance: exact up to half, then logarithmic.

    Made on the host: a device whose logarithm is an ulp off would move an edge.

    Args:
        buckets: how many buckets one direction has.
        max_distance: from here on, distances share the last bucket.

    Returns:
        Int32 [max_distance + 1], in [0, buckets).

    >>> distance_buckets(16, 128)[[0, 1, 7, 8, 11, 12, 16, 64, 90, 91, 128]]
    array([ 0,  1,  7,  8,  8,  9, 10, 14, 14, 15, 15], dtype=int32)

    Source: transformers' T5Attention._relative_position_bucket.
    """
    exact = buckets // 2
    distance = np.arange(max_distance + 1, dtype=np.float32)
    ratio = np.log(np.maximum(distance, 1) / np.float32(exact))
    ratio = ratio / np.float32(np.log(max_distance / exact))
    coarse = exact + (ratio * np.float32(buckets - exact)).astype(np.int32)
    coarse = np.minimum(coarse, buckets - 1)
    return np.where(distance < exact, distance.astype(np.int32), coarse)


class RelativeBias(nnx.Module):
    """One table [buckets, N] for a stack; in a causal stack it also hides the future.

    Args:
        buckets: rows of the table; half of them for each side if bidirectional.
        max_distance: distances beyond it share a bucket.
        heads: N.
        std: of the fresh table's normal distribution.
        bidirectional: whether later positions are seen.
        rngs: where the fresh table is drawn from.
    """

    def __init__(
        self,
        buckets: int,
        max_distance: int,
        heads: int,
        *,
        std: float,
        bidirectional: bool,
        rngs: nnx.Rngs,
    ):
        self.buckets = buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        draw = jax.random.normal(rngs.params(), (buckets, heads), jnp.float32)
        self.embedding = nnx.Param(std * draw)

    def __call__(
        self, queries: Int[Array, "T"], keys: Int[Array, "S"]
    ) -> Float32[Array, "1 N T S"]:
        """What to add to the scores of queries and keys at these positions."""
        offset = keys[None, :] - queries[:, None]  # [T, S]
        sided = self.buckets // 2 if self.bidirectional else self.buckets
        table = jnp.asarray(distance_buckets(sided, self.max_distance), jnp.int32)
        distance = jnp.abs(offset) if self.bidirectional else jnp.maximum(-offset, 0)
        bucket = table[jnp.minimum(distance, self.max_distance)]
        if self.bidirectional:
            bucket = bucket + sided * (offset > 0).astype(jnp.int32)
        # A product with one-hot rows: its gradient is a product too, where a gather's
        # would add T*S rows into a handful of places, one after another.
        rows = jax.nn.one_hot(bucket, self.buckets, dtype=jnp.float32)  # [T, S, K]
        highest = jax.lax.Precision.HIGHEST
        bias = jnp.einsum("TSK,KN->NTS", rows, self.embedding[...], precision=highest)
        if not self.bidirectional:
            bias = jnp.where((offset > 0)[None], MASKED, bias)
        return bias[None]

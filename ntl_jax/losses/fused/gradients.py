"""The gradients of a fused head's kernel and bias, summed up over tiles."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32

from ntl_jax.kernels.logit_stats.reference import MASKED_LOGIT
from ntl_jax.losses.fused import tiles
from ntl_jax.losses.fused.tiles import Head


class HeadGradients(NamedTuple):
    """The gradients of a head's kernel and bias."""

    kernel: Float[Array, "D V"]
    bias: Float[Array, "V"] | None


class GroupedGradients(NamedTuple):
    """Float32 sums of the gradients of a head, G groups of rows on their own.

    Where G devices share the rows, each adds up its own tiles, and `summed` is the only
    time that they meet.
    """

    kernel: Float32[Array, "G D V"]
    bias: Float32[Array, "G V"] | None

    @classmethod
    def zeros(cls, head: Head, kernel: Array, bias: Array | None, like: Array):
        """Zeros that vary over the `shard_map` axes of ``like``."""
        groups = head.row_groups
        of_kernel = tiles.zeros_like((groups, *kernel.shape), jnp.float32, like)
        if bias is None:
            return cls(of_kernel, None)
        return cls(
            of_kernel, tiles.zeros_like((groups, *bias.shape), jnp.float32, like)
        )

    def add(
        self, hidden: Float[Array, "*B D"], grad: Float[Array, "*B V"]
    ) -> "GroupedGradients":
        """Adds those of a tile of tokens, from the gradient of its matrix product."""
        groups = len(self.kernel)
        hidden = hidden.reshape(groups, -1, hidden.shape[-1])  # [G, N, D]
        grad = grad.reshape(groups, -1, grad.shape[-1])  # [G, N, V]
        # An outer `vmap` and not a loop: one product with a batch axis.
        kernel = self.kernel + jax.vmap(tiles.over_tokens)(
            hidden, grad.astype(hidden.dtype)
        )
        if self.bias is None:
            return GroupedGradients(kernel, None)
        return GroupedGradients(kernel, self.bias + tiles.float32_sum(grad, 1))

    def summed(self, columns: int) -> HeadGradients:
        """The gradients, still float32, of the first columns."""
        kernel = jnp.sum(self.kernel, axis=0)[:, :columns]
        if self.bias is None:
            return HeadGradients(kernel, None)
        return HeadGradients(kernel, jnp.sum(self.bias, axis=0)[:columns])


def add_number_gradients(
    head: Head,
    d_hidden: Float[Array, "*B D"],
    gradients: HeadGradients,
    hidden: Float[Array, "*B D"],
    kernel: Float[Array, "D V"],
    number_logits: Float32[Array, "*B K"],
    cotangent: Float32[Array, "*B K"],
) -> tuple[Float[Array, "*B D"], HeadGradients]:
    """Adds what the gradient of the number logits sends to the head's inputs.

    Two matrix products with K columns. The gradient of hidden is then that of the whole
    head, where devices share out its columns.
    """
    places, here = head.places(kernel.shape[1])
    fixed = number_logits <= MASKED_LOGIT
    grad = tiles.through_head(head, number_logits, jnp.where(fixed, 0.0, cotangent))
    grad = grad if here is None else tiles.where_last(here, grad)
    any_live = jnp.any(cotangent != 0, axis=-1, keepdims=True)
    hidden = jnp.where(any_live, hidden, jnp.zeros((), hidden.dtype))
    columns = jnp.take(kernel, places, axis=1, mode="clip").astype(hidden.dtype)
    d_hidden += tiles.hidden_gradient(grad, columns).astype(d_hidden.dtype)
    of_columns = tiles.over_tokens(hidden, grad.astype(hidden.dtype))  # [D, K]
    d_kernel, d_bias = gradients
    of_columns = of_columns.astype(d_kernel.dtype)
    # One place more, which is dropped: of a single one XLA makes an update of a slice,
    # and where devices share out columns, jax 0.10 partitions it wrongly.
    places = jnp.pad(places, (0, 1), constant_values=kernel.shape[1])
    of_columns = jnp.pad(of_columns, ((0, 0), (0, 1)))
    d_kernel = d_kernel.at[:, places].add(of_columns, mode="drop")
    if d_bias is not None:
        of_bias = tiles.float32_sum(grad, range(grad.ndim - 1)).astype(d_bias.dtype)
        d_bias = d_bias.at[places].add(jnp.pad(of_bias, (0, 1)), mode="drop")
    return head.sum_shards(d_hidden), HeadGradients(d_kernel, d_bias)

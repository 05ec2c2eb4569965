"""Operands of attention, and how its kernels and the plain program compute them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from ntl_jax.kernels.attention.dispatch import attend
from ntl_jax.kernels.attention.flash import flash_attention
from ntl_jax.kernels.attention.tiles import Tile, Tiles
from ntl_jax.kernels.dropout import DropoutSite

KEY = jax.random.key(5)


def tiles_of(queries: int, keys: int) -> Tiles:
    """Tiles so small that short rows have several."""
    return Tiles(*[Tile(queries, keys)] * 4)


@dataclasses.dataclass(frozen=True)
class Case:
    """Shapes and options; every row of the mask hides something else."""

    rows: int = 3
    queries: int = 37
    sources: int = 37
    heads: int = 4
    groups: int = 2
    width: int = 16
    bias_rows: int = 1  # 0: no bias
    mask_dims: int = 2  # 0: no mask, 2: alike for all queries, 3: not
    causal: bool = True
    rate: float = 0.3
    tiles: tuple[int, int] = (16, 16)
    dtype: str = "float32"

    def draw(self):
        """q, k, v, the bias, the mask and a cotangent."""
        draw = np.random.default_rng(3).standard_normal
        query = (self.rows, self.queries, self.heads, self.width)
        key = (self.rows, self.sources, self.groups, self.width)
        q, k, v, cotangent = (
            jnp.asarray(draw(shape), self.dtype) for shape in (query, key, key, query)
        )
        bias = mask = None
        if self.bias_rows:
            shape = (self.bias_rows, self.heads, self.queries, self.sources)
            bias = jnp.asarray(draw(shape), jnp.float32)
        if self.mask_dims:
            queries = self.queries if self.mask_dims == 3 else 1
            mask = np.ones((self.rows, 1, queries, self.sources), bool)
            mask[0, ..., -5:] = False  # padding on the right
            mask[1, ..., :18] = False  # on the left
            mask[2:] = draw(mask[2:].shape) > -0.5
            mask[2:, ..., :1] = True
            mask = jnp.asarray(mask)
        return q, k, v, bias, mask, cotangent

    def sees(self, mask) -> np.ndarray:
        """Which queries see a key, [B, T]."""
        shape = (self.rows, 1, self.queries, self.sources)
        seen = np.ones(shape, bool) if mask is None else np.broadcast_to(mask, shape)
        if self.causal:
            seen = np.tril(seen)
        return seen.any(axis=(1, 3))

    def run(self, attention, q, k, v, bias, mask, cotangent, key):
        """The output, and the gradients of q, k, v and the bias."""
        dropout = DropoutSite(self.rate, key, row_offset=7, layer=2, site=3)

        def of(q, k, v, bias):
            return attention(
                q,
                k,
                v,
                scale=0.3,
                bias=bias,
                mask=mask,
                causal=self.causal,
                dropout=dropout if self.rate else None,
            )

        out, pull = jax.vjp(of, q, k, v, bias)
        return out, pull(cotangent)

    def plain(self, *operands):
        """By XLA's program."""
        return jax.jit(lambda *x: self.run(attend, *x))(*operands)

    def flash(self, *operands):
        """By the kernels, interpreted; traced anew, for tests that change them."""
        return jax.jit(lambda *x: self.flashed(*x))(*operands)

    def flashed(self, *operands):
        """`flash`, not compiled."""

        def attention(*args, **options):
            tiles = tiles_of(*self.tiles)
            return flash_attention(*args, tiles=tiles, interpret=True, **options)

        return self.run(attention, *operands)

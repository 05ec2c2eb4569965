"""Dropout whose masks are a hash of where an element is: no state, no communication."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, UInt32

from ntl_jax.kernels.residuals import name_residual

_HASH_MULTIPLIERS = (np.uint32(0x7FEB352D), np.uint32(0x846CA68B))
_GOLDEN_RATIO = np.uint32(0x9E3779B9)

RowOffset = int | Int[Array, ""] | Int[Array, "B"]


def _mix(word: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """A bijective scrambling of 32-bit words (Wellons' "lowbias32" constants)."""
    word = (word ^ (word >> np.uint32(16))) * _HASH_MULTIPLIERS[0]
    word = (word ^ (word >> np.uint32(15))) * _HASH_MULTIPLIERS[1]
    return word ^ (word >> np.uint32(16))


def _row_hashes(words, tag, rows) -> tuple[Array, Array]:
    """Two words per row: with one, rows whose words are close would share masks."""
    row = _mix(rows ^ _mix(tag + _GOLDEN_RATIO))
    return _mix(row ^ words[0]), _mix(row + words[1])


def keep_places(
    place: UInt32[Array, "..."],
    first: UInt32[Array, "..."],
    second: UInt32[Array, "..."],
    rate: float,
) -> Bool[Array, "..."]:
    """Which places of a row dropout keeps: a hash of the row's two words and a place.

    Args:
        place: an element's number within its row.
        first: the row's first word, see `DropoutSite.row_hashes`.
        second: its second word.
        rate: probability of a zero, in [0, 1).
    """
    bits = _mix(_mix(place + first) ^ second)
    return bits >= np.uint32(min(round(rate * 2**32), 2**32 - 1))


def _keep_mask(shape, rate, words, tag, rows) -> Array:
    """Bool `shape`: a hash of (words, tag, rows[i], place within the row) a place."""
    first, second = (
        word.reshape(-1, *[1] * (len(shape) - 1))
        for word in _row_hashes(words, tag, rows)
    )
    place = jnp.zeros((1,) * len(shape), jnp.uint32)
    stride = 1
    for axis in range(len(shape) - 1, 0, -1):
        step = jax.lax.broadcasted_iota(jnp.uint32, (1, *shape[1:]), axis)
        place = place + step * np.uint32(stride)
        stride *= shape[axis]
    return keep_places(place, first, second, rate)  # [B, ...]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _drop(rate, x, words, tag, rows):
    keep = _keep_mask(x.shape, rate, words, tag, rows)
    return jnp.where(keep, _scaled(rate, x), jnp.zeros_like(x))


def _drop_forward(rate, x, words, tag, rows):
    return _drop(rate, x, words, tag, rows), (words, tag, rows)


def _drop_backward(rate, seeds, cotangent):
    # The mask is recomputed, not saved: it costs a few integer operations.
    return _drop(rate, cotangent, *seeds), None, None, None


_drop.defvjp(_drop_forward, _drop_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _drop_relu(rate, x, words, tag, rows):
    return _drop(rate, jax.nn.relu(x), words, tag, rows)


def _drop_relu_forward(rate, x, words, tag, rows):
    y = name_residual(_drop_relu(rate, x, words, tag, rows))
    return y, y


def _drop_relu_backward(rate, y, cotangent):
    # What is positive was positive before, and was not dropped.
    return jnp.where(y > 0, _scaled(rate, cotangent), 0), None, None, None


_drop_relu.defvjp(_drop_relu_forward, _drop_relu_backward)


def _scaled(rate, x):
    # Scaled in float32: 1/0.9 rounded to bfloat16 would shrink what is kept by 0.2%.
    return (x.astype(jnp.float32) * (1 / (1 - rate))).astype(x.dtype)


def dropout(
    x: Float[Array, "B *rest"],
    rate: float,
    key: Key[Array, ""] | None,
    *,
    layer: int | Int[Array, ""] = 0,
    site: int = 0,
    row_offset: RowOffset = 0,
) -> Float[Array, "B *rest"]:
    """Sets each element to 0 with probability `rate`, scales the others by 1/(1-rate).

    The mask is a hash of (key, layer, site, row, place within the row), element by
    element. So it fuses into its neighbours, each device of a sharded batch draws
    its own rows only, it is the same under `vmap`, and a row's mask depends on the
    row's number alone, not on the batch that the row came in.

    Args:
        x: activations; axis 0 is the batch.
        rate: probability of a zero, in [0, 1).
        key: a threefry key, already folded with the step; None switches dropout off.
        layer: the layer's number, which may be traced.
        site: which of a layer's dropouts this is.
        row_offset: added to a row's place in `x` to give its number in the whole
            batch; one number, or one per row.

    Returns:
        An array like `x`, with the expectation of `x`.

    Raises:
        ValueError: the rate is outside [0, 1), or the key is not a threefry key.
    """
    return DropoutSite(rate, key, row_offset, layer, site)(x)


class DropoutSite(NamedTuple):
    """`dropout` with all but the activations filled in."""

    rate: float
    key: Key[Array, ""] | None
    row_offset: RowOffset = 0
    layer: int | Int[Array, ""] = 0
    site: int = 0

    @property
    def active(self) -> bool:
        """Whether anything is dropped."""
        return self.key is not None and self.rate != 0.0

    def __call__(self, x: Float[Array, "B *rest"]) -> Float[Array, "B *rest"]:
        """`x` with elements dropped."""
        if not self.active:
            return x
        return _drop(self.rate, x, *self._seeds(x.shape[0]))

    def relu(self, x: Float[Array, "B *rest"]) -> Float[Array, "B *rest"]:
        """`x` rectified, and then with elements dropped.

        The backward pass needs the result alone: neither `x` nor the mask.
        """
        if not self.active:
            return jax.nn.relu(x)
        return _drop_relu(self.rate, x, *self._seeds(x.shape[0]))

    def row_hashes(self, rows: int) -> tuple[UInt32[Array, "B"], UInt32[Array, "B"]]:
        """The words of which `keep_places` computes the masks of a batch of B rows."""
        return _row_hashes(*self._seeds(rows))

    def _seeds(self, rows: int):
        if not 0.0 <= self.rate < 1.0:
            raise ValueError(f"dropout rate is {self.rate}; it must lie in [0, 1)")
        key = self.key
        if (
            key is None
            or not jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
            or str(jax.random.key_impl(key)) != "threefry2x32"
        ):
            raise ValueError(
                "dropout needs a threefry key, jax.random.key(seed); got "
                f"{key if key is None else key.dtype}"
            )
        tag = jnp.asarray(self.layer, jnp.uint32) * np.uint32(256)
        tag = tag + np.uint32(self.site)
        numbers = jax.lax.iota(jnp.uint32, rows) + jnp.asarray(
            self.row_offset, jnp.uint32
        )
        return jax.random.key_data(key), tag, numbers


class Dropout(NamedTuple):
    """`dropout` with all but the site filled in; a key of None switches it off."""

    rate: float
    key: Key[Array, ""] | None
    row_offset: RowOffset = 0
    layer: int | Int[Array, ""] = 0
    first_site: int = 0

    def __call__(self, x: Float[Array, "B *rest"], site: int):
        """`x` with elements dropped by the mask of this site."""
        return self.at(site)(x)

    def at(self, site: int) -> DropoutSite:
        """The dropout of one site."""
        site += self.first_site
        return DropoutSite(self.rate, self.key, self.row_offset, self.layer, site)

    def after(self, sites: int) -> "Dropout":
        """The same dropout, its sites numbered on from here."""
        return self._replace(first_site=self.first_site + sites)


NO_DROPOUT = Dropout(0.0, None)

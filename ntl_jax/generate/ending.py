"""When an answer ends, and what it is filled up with."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int


class Ending(NamedTuple):
    """How long answers get.

    Attributes:
        longest: T, the most tokens of an answer, its end token included.
        shortest: how many tokens stand before an end token at least.
        token: the end token; -1, which no token is, where the model has none.
        pad: what stands after it.
        vocab_size: the logits' real columns.
    """

    longest: int
    shortest: int
    token: int
    pad: int
    vocab_size: int

    @classmethod
    def of(
        cls, config: Any, longest: int, shortest: int = 0, vocab_size: int | None = None
    ) -> "Ending":
        """By a model's config; the end token fills up where it names no pad token."""
        if not isinstance(longest, int | np.integer) or longest < 1:
            raise ValueError(
                f"max_new_tokens is {longest}; it must be a whole number, at least 1"
            )
        if not 0 <= shortest <= longest:
            raise ValueError(
                f"min_new_tokens is {shortest}; it must lie between 0 and "
                f"max_new_tokens, {longest}"
            )
        token = -1 if config.eos_token_id is None else config.eos_token_id
        pad = config.pad_token_id
        if pad is None:
            pad = max(token, 0)
        columns = config.vocab_size if vocab_size is None else vocab_size
        if columns < 1:
            raise ValueError(f"vocab_size is {columns}; it must be at least 1")
        return cls(longest, shortest, token, pad, columns)

    def held_off(
        self, logits: Float32[Array, "*B V"], count: Int[Array, ""]
    ) -> Float32[Array, "*B V"]:
        """Logits with -inf for the end token while `count` tokens are too few."""
        if self.shortest == 0:
            return logits
        column = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
        hidden = (column == self.token) & (count < self.shortest)
        return jnp.where(hidden, -jnp.inf, logits)

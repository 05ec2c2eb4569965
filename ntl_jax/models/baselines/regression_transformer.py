"""T5 that reads how large its number tokens are: the Regression Transformer.

Both stacks read the learned embedding plus a fixed encoding of the token's number. The
parameters are a T5's, nothing else, so a pretrained T5 goes in as it is, with rows
added for the new tokens; the head shares the learned table only.
Source: Born and Manica (2023), on T5 as in *Regress, Don't Guess* (ICML 2025); there,
growing the vocabulary drew every embedding anew, the pretrained ones too.
"""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Float32, Int

from ntl_jax.models.baselines.number_encodings import Formula, Scale, number_encodings
from ntl_jax.models.t5.config import T5Config
from ntl_jax.models.t5.model import T5
from ntl_jax.numbers.place_tokens import NUMBER_TOKENS, place_values


@dataclasses.dataclass(frozen=True)
class RegressionTransformerConfig(T5Config):
    """A `T5Config` with 320 number tokens in a row, see `ntl_jax.numbers.place_tokens`.

    Raises:
        ValueError: as of `T5Config`; the number tokens do not fit `vocab_size`, or
            there is no such formula or scale.
    """

    first_number_id: int = 32100  # the first of them, _0_-12_
    number_formula: Formula = "reference"
    number_scale: Scale = "log"

    def __post_init__(self):
        super().__post_init__()
        end = self.first_number_id + NUMBER_TOKENS
        if not 0 <= self.first_number_id <= end <= self.vocab_size:
            raise ValueError(
                f"number tokens {self.first_number_id} to {end - 1} do not fit a "
                f"vocab_size of {self.vocab_size}; set vocab_size to {end} or more (a "
                "multiple of 64 is fast: for T5's own tokenizer 32448)"
            )
        if self.number_scale == "none":
            raise ValueError(
                "number_scale='none' gives encodings up to 9e19, whose squares "
                "overflow float32 in T5's norm; choose 'log' or 'linear'"
            )
        number_encodings(  # refuses other names
            np.zeros(1), 1, formula=self.number_formula, scale=self.number_scale
        )

    @property
    def table_dtype(self) -> str:
        """What the rows of the table are read in: encodings are added to them."""
        return "float32"


@functools.lru_cache(maxsize=8)
def _encodings(config: RegressionTransformerConfig) -> Float32[np.ndarray, "K1 D"]:
    """The tokens' encodings, and a last row of zeros for all others."""
    rows = number_encodings(
        place_values(),
        config.d_model,
        formula=config.number_formula,
        scale=config.number_scale,
    )
    return np.concatenate([rows, np.zeros_like(rows[:1])])


class RegressionTransformer(T5):
    """A `T5` whose embeddings carry number encodings; called and decoded as one.

    Args:
        config: sizes and options.
        rngs: its `params` stream draws the parameters, float32, laid out as a T5's.

    Source: Born and Manica (2023).
    """

    def __init__(self, config: RegressionTransformerConfig, rngs: nnx.Rngs):
        super().__init__(config, rngs)
        self.config = config

    def embed(self, ids: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Learned embedding plus number encoding, summed in float32."""
        place = ids - self.config.first_number_id
        is_number = (place >= 0) & (place < NUMBER_TOKENS)
        table = jnp.asarray(_encodings(self.config))
        encoded = table[jnp.where(is_number, place, NUMBER_TOKENS)]
        learned = self.shared(ids, self.config.table_dtype)
        return (learned + encoded).astype(self.config.dtype)

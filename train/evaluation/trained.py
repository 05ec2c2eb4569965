"""A finished run: its parameters, with what it takes to ask it."""

import dataclasses
from typing import Any

import jax

from ntl_jax import NumberVocab
from ntl_jax.models import AnyConfig, bind
from ntl_jax.numbers.value_scales import ValueScale
from ntl_jax.sharding.mesh import mesh_of, on_mesh
from ntl_jax.tokenization import Tokenizer
from train.state import Params


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    """A run's parameters with what is needed to use them."""

    model: AnyConfig
    params: Params
    tokenizer: Tokenizer
    vocab: NumberVocab
    max_source_length: int
    max_new_tokens: int
    separator: str
    scale: ValueScale

    def encode(self, question: str) -> list[int]:
        """The ids that the model answers."""
        if not self.model.decoder_only:
            return self.tokenizer.encode(question)
        return self.tokenizer.encode(question + self.separator)[:-1]

    def outputs(self, *inputs: jax.Array) -> Any:
        """What the model itself makes of its inputs, on the mesh that it lies on."""
        mesh = mesh_of(self.params)

        @jax.jit
        def run(params: Params, inputs: tuple[jax.Array, ...]) -> Any:
            with on_mesh(mesh):
                return bind(self.model, params)(*inputs)

        return run(self.params, inputs)

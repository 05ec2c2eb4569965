"""What heads share that answer with a number and not with text."""

import abc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int

from ntl_jax.numbers.value_scales import ValueScale
from ntl_jax.tokenization import Tokenizer
from train.config import ConfigError, TrainConfig
from train.heads.base import Batch, Counts, EvalOutputs, Head, Terms, Total
from train.state import Params, Task


class NumberHead(Head):
    """One number per question; its losses are means whose sum is trained."""

    writes_text = False
    loss_description: str

    @abc.abstractmethod
    def terms(
        self,
        model: Any,
        params: Params,
        batch: Batch,
        dropout_key: jax.Array | None = None,
        row_offset: Int[Array, "B"] | int = 0,
    ) -> tuple[Float32[Array, "B"], Terms]:
        """Predicted numbers, scaled, and the losses as sums and counts.

        Args:
            model: the model's config.
            params: its parameters.
            batch: see `Batch`; weights where rows only fill up.
            dropout_key: None for no dropout.
            row_offset: what to add to a row's place for its number in the whole batch.
        """

    def describe_numbers(self, scale: ValueScale) -> str:
        """What numbers go through, and what they are learned by."""
        how = f"numbers go through {scale.kind}"
        if scale.kind == "minmax5":
            how += f" ({scale.low:g} to -5, {scale.high:g} to 5)"
        return f"{how}; {self.loss_description}"

    def total_and_terms(
        self,
        task: Task,
        params: Params,
        batch: Batch,
        dropout_key: jax.Array | None,
        row_offset: Int[Array, "B"] | int,
        counts: Counts | None,
    ) -> tuple[Total, Terms]:
        """The sum of the terms' means, and the terms."""
        _, terms = self.terms(task.model, params, batch, dropout_key, row_offset)
        if counts is None:
            return total_loss(terms), terms
        shares = {n: term._replace(count=counts[n]) for n, term in terms.items()}
        return total_loss(shares), terms

    def evaluate(self, task: Task, params: Params, batch: Batch) -> EvalOutputs:
        """The losses and the predicted numbers; there are no number tokens."""
        predictions, terms = self.terms(task.model, params, batch)
        none = jnp.full((len(predictions), 1), -1, jnp.int32)
        empty = jnp.zeros((*none.shape, 0), jnp.float32)
        return EvalOutputs(terms, empty, none, predictions)

    def evaluation_loss(self, task: Task, terms: Any) -> float:
        """The sum of the terms' means."""
        return float(total_loss(terms))

    def predictions(
        self,
        task: Task,
        params: Params,
        batch: Batch,
        outputs: EvalOutputs,
        tokenizer: Tokenizer,
    ) -> list[list[int]]:
        """The ids of the predicted numbers, written out."""
        texts = written(np.asarray(outputs.predictions), task.scale)
        return tokenizer.encode_batch(texts)


def total_loss(terms: Terms) -> Total:
    """The loss that these terms make."""
    return jnp.sum(jnp.stack([term.mean for term in terms.values()]))


def fitted(config: TrainConfig, numbers: np.ndarray) -> ValueScale:
    """The scale that the run asks for, fitted to its training numbers."""
    try:
        return ValueScale.fit(config.value_scale, numbers)
    except ValueError as error:
        raise ConfigError(f"--value-scale {config.value_scale}: {error}.") from error


def written(predictions: np.ndarray, scale: ValueScale) -> list[str]:
    """Predicted numbers as text, in the fewest digits that tell them apart.

    One that is not finite is written as no number, so that it counts as no answer.

    >>> written(np.array([1.5, -2.25, np.nan], np.float32), ValueScale("none"))
    ['1.5', '-2.25', '']
    """
    with np.errstate(over="ignore"):
        numbers = scale.invert(np.asarray(predictions)).astype(np.float32)
    return [
        np.format_float_positional(number, trim="-") if np.isfinite(number) else ""
        for number in numbers
    ]

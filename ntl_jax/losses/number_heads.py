"""Losses of models that predict numbers as numbers: regression heads and xVal.

They know no number tokens, only values: so they are no terms of an `Objective`.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Int

from ntl_jax.losses.checks import check_floating
from ntl_jax.losses.cross_entropy import cross_entropy
from ntl_jax.losses.reduction import Term, weighted_sum_and_count
from ntl_jax.losses.targets import label_is, token_weights


class XvalTerms(NamedTuple):
    """The two losses of a batch, as sums and counts.

    Attributes:
        ce: cross entropy of the tokens, in nats.
        mse: squared error of the numbers, in the squared unit of the values.
    """

    ce: Term
    mse: Term

    def total(self, number_weight: float = 1.0) -> Float32[Array, ""]:
        """mean CE + number_weight * mean squared error."""
        return self.ce.mean + number_weight * self.mse.mean


def squared_error(
    predictions: Float[Array, "*B"],
    targets: Float[Array, "*B"],
    *,
    weights: Float[Array, "*B"] | Bool[Array, "*B"] | None = None,
) -> Term:
    """Squared error of numbers, sum_i w_i (p_i - y_i)^2 and sum_i w_i.

    Args:
        predictions: p, of any floating dtype.
        targets: y, of the same shape.
        weights: non-negative weights w; 1 where None.

    Returns:
        Term of float32 scalars in the squared unit of the targets. A prediction whose
        weight is 0 adds exactly 0 to value and gradient, even if it is NaN.

    Raises:
        TypeError: for what is no floating-point array.
        ValueError: for shapes that differ.

    >>> squared_error(jnp.array([1.0, 4.0]), jnp.array([1.0, 1.0])).mean
    Array(4.5, dtype=float32)

    Source: transformers' T5ForSequenceClassification with one label.
    """
    for name, array in (("predictions", predictions), ("targets", targets)):
        check_floating(name, array)
    if predictions.shape != targets.shape:
        raise ValueError(
            f"predictions of shape {predictions.shape} do not match targets of shape "
            f"{targets.shape}."
        )
    if weights is None:
        weight = jnp.ones(targets.shape, jnp.float32)
    elif weights.shape == targets.shape:
        weight = jnp.asarray(weights).astype(jnp.float32)
    else:
        raise ValueError(
            f"weights of shape {weights.shape} do not match targets of shape "
            f"{targets.shape}: give one weight a target."
        )
    counts = weight != 0
    # Masked before the arithmetic too: a NaN that nobody counts has no gradient.
    difference = jnp.where(counts, predictions.astype(jnp.float32), 0.0)
    difference -= jnp.where(counts, targets.astype(jnp.float32), 0.0)
    return weighted_sum_and_count(jnp.square(difference), weight)


def xval_loss(
    logits: Float[Array, "*B V"],
    numbers: Float[Array, "*B"],
    labels: Int[Array, "*B"],
    values: Float[Array, "*B"],
    *,
    num_id: int,
    vocab_size: int | None = None,
    weights: Float[Array, "*B"] | Bool[Array, "*B"] | None = None,
    ignore_index: int = -100,
) -> XvalTerms:
    """xVal's two losses: cross entropy everywhere, squared error at [NUM].

    Args:
        logits: [*B, V], over tokens.
        numbers: [*B], what the number head predicts.
        labels: token ids [*B].
        values: [*B], the numbers, in the unit of the predictions; read where the label
            is [NUM].
        num_id: the id of [NUM].
        vocab_size: the real columns, where the logits have padded ones after them.
        weights: non-negative weights [*B]; 1 where None.
        ignore_index: the label that counts nothing.

    Returns:
        Sums and counts. CE counts labels that are not ignored, the squared error those
        of them that are [NUM]. Scale the values first: squares beyond 3.4e38 overflow.

    Raises:
        TypeError, ValueError: as `cross_entropy` and `squared_error`.

    >>> labels = jnp.array([3, 7, -100])
    >>> terms = xval_loss(jnp.zeros((3, 8)), jnp.array([9.0, 1.0, 9.0]), labels,
    ...                   jnp.array([1.0, 3.0, 1.0]), num_id=7)
    >>> print(f"{terms.ce.mean:.3f} {terms.mse.mean} {terms.mse.count}")  # log 8
    2.079 4.0 1.0

    Source: Golkar et al. (2023). The variant on T5 in the code of *Regress, Don't
    Guess* standardises predictions and labels together first: with one number in a
    batch its loss is 2 and its gradient 0, whatever was predicted.
    """
    weight = token_weights(labels, weights, ignore_index=ignore_index)
    losses = cross_entropy(
        logits,
        labels,
        vocab_size=vocab_size,
        weights=weights,
        ignore_index=ignore_index,
    )
    is_number = label_is(labels, num_id) & (weight != 0)
    at_numbers = jnp.where(is_number, weight, 0.0)
    ce = Term(jnp.sum(losses), jnp.sum(weight))
    return XvalTerms(ce, squared_error(numbers, values, weights=at_numbers))

"""Our side of the parity tests: `ntl_jax.compat` and the cross-entropy."""

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from ntl_jax import (
    Objective,
    cross_entropy,
    cross_entropy_from_stats,
    ntl_was_from_stats,
    stats_from_logits,
)
from ntl_jax.compat import AbstractNTLoss, NTLoss, NTLossDotProduct, NumberLevelLoss
from ntl_jax.losses.dot_product import absolute, huber, squared
from tests.parity.loss_cases import LAMBDA, Case, cotangent

QUICK = {"xla_backend_optimization_level": 0}  # there is more to compile than to run
PENALTIES = {"mse": squared, "mae": absolute, "huber": huber}


def loss_of(case: Case) -> AbstractNTLoss:
    """The class of a case, as a script that used ntloss would make it."""
    vocabulary = case.vocabulary
    options = {"vocab_size": vocabulary.vocab_size, "reweigh": case.reweigh}
    if case.loss.startswith("number"):
        return NumberLevelLoss(vocabulary, float_level=case.float_level, **options)
    options["digit_level"] = case.digit_level
    if case.loss.startswith("was"):
        return NTLoss(vocabulary, squash_factor=case.squash, **options)
    return NTLossDotProduct(vocabulary, loss_function=PENALTIES[case.loss], **options)


def token_loss(case: Case, loss: AbstractNTLoss, logits, labels, weights):
    if case.loss == "ce":
        return cross_entropy(
            logits,
            labels,
            weights=weights,
            reduction=None if case.reduction == "none" else case.reduction,
            ignore_index=case.ignore_index,
            label_smoothing=case.label_smoothing,
        )
    if case.loss == "ce+was":
        return mixture(case, loss, logits, labels, weights)
    return loss(logits, labels, weights, case.reduction, case.ignore_index)


def mixture(case: Case, loss: AbstractNTLoss, logits, labels, weights):
    """CE + lambda WAS off one set of stats; as an Objective where it is a mean."""
    ignored, vocab = case.ignore_index, loss.numbers
    stats = stats_from_logits(logits, labels, vocab, ignore_index=ignored)
    if case.reduction == "mean":
        objective = Objective(ce=1.0, was=LAMBDA, ignore_index=ignored)
        return objective.total(objective(stats, labels, vocab, weights=weights))
    options = {"weights": weights, "ignore_index": ignored}
    ce = cross_entropy_from_stats(stats, labels, vocab, **options)
    was = ntl_was_from_stats(stats, labels, vocab, **options)
    tokens = ce[0] * ce[1] + LAMBDA * was[0] * was[1]
    return tokens if case.reduction == "none" else tokens.sum()


def ours(
    cases: Sequence[Case],
    *,
    change: Callable[[AbstractNTLoss], None] | None = None,
    warmth: float = 1.0,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """(value, gradient) of each case, the gradient in the dtype of the logits.

    ``change`` (of the loss) and ``warmth`` (of the logits) are where a test can go
    wrong on purpose.
    """
    losses = []
    for case in cases:
        was = Case("was", case.digit_level)  # what the mixture reads its numbers from
        losses.append(loss_of(was if case.loss.startswith("ce") else case))
        if change is not None:
            change(losses[-1])

    def value_and_gradient(case, loss, logits, labels, weights):
        value, pull = jax.vjp(
            lambda z: token_loss(case, loss, z, labels, weights), logits
        )
        return value, pull(jnp.asarray(cotangent(value.shape)))[0]

    @partial(jax.jit, compiler_options=QUICK)
    def run(batches):
        parts = zip(cases, losses, batches, strict=True)
        return [value_and_gradient(case, loss, *batch) for case, loss, batch in parts]

    batches = []
    for case in cases:
        logits, labels, weights = case.batch()
        batches.append((jnp.asarray(logits * warmth, case.dtype), labels, weights))
    return jax.device_get(run(batches))

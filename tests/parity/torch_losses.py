"""The PyTorch side of the parity tests: ntloss 0.3.2 and torch's own cross-entropy."""

import dataclasses
from functools import cache

import jax.numpy as jnp
import ntloss
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from tests.parity.loss_cases import LAMBDA, Case, cotangent

PENALTIES = {"mse": F.mse_loss, "mae": F.l1_loss, "huber": F.huber_loss}


@cache
def reference(name: str, digit_level: bool, reweigh: bool):
    """The loss of ntloss; it may be made once, as its options are all it holds."""
    case = Case(name, digit_level)
    vocabulary = case.vocabulary
    options = {"vocab_size": vocabulary.vocab_size, "reweigh": reweigh}
    if name.startswith("number"):
        return ntloss.NumberLevelLoss(
            vocabulary, float_level=case.float_level, **options
        )
    options["digit_level"] = digit_level
    if name.startswith("was"):
        return ntloss.NTLoss(vocabulary, squash_factor=case.squash, **options)
    return ntloss.NTLossDotProduct(vocabulary, loss_function=PENALTIES[name], **options)


def cross_entropy(case: Case, logits, labels, weights):
    loss = F.cross_entropy(
        logits.flatten(0, 1),
        labels.flatten(),
        reduction="none",
        ignore_index=case.ignore_index,
        label_smoothing=case.label_smoothing,
    ).view(labels.shape)
    counted = (labels != case.ignore_index).to(loss.dtype)
    weights = counted if weights is None else counted * weights
    if case.reduction == "none":
        return loss * weights
    total = (loss * weights).sum()
    return total if case.reduction == "sum" else total / weights.sum()


def token_loss(case: Case, logits, labels, weights):
    if case.loss == "ce":
        return cross_entropy(case, logits, labels, weights)
    if case.loss == "ce+was":
        parts = (dataclasses.replace(case, loss=loss) for loss in ("ce", "was"))
        ce, was = (token_loss(part, logits, labels, weights) for part in parts)
        return ce + LAMBDA * was
    loss = reference(case.loss, case.digit_level, case.reweigh)
    return loss(logits, labels, weights, case.reduction, case.ignore_index)


def theirs(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """(value, gradient) in float32; of bfloat16 logits, on their float32 copies."""
    logits, labels, weights = case.batch()
    rounded = np.asarray(jnp.asarray(logits, case.dtype).astype(jnp.float32))
    z = torch.tensor(rounded, requires_grad=True)
    y = torch.tensor(labels, dtype=torch.long)
    w = None if weights is None else torch.tensor(weights)
    loss = token_loss(case, z, y, w)
    loss.backward(torch.tensor(cotangent(tuple(loss.shape))))
    return loss.detach().numpy(), z.grad.numpy()

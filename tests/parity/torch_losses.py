"""The PyTorch side of the parity tests: ntloss 0.3.2 and torch's own cross-entropy."""

import dataclasses
from functools import cache

import ntloss
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from tests.parity.loss_cases import LAMBDA, REDUCTIONS, Case, Vocabulary, cotangent

PENALTIES = {"mse": F.mse_loss, "mae": F.l1_loss, "huber": F.huber_loss}


class StubTokenizer:
    """A tokenizer that ntloss can read, and that refuses to grow."""

    def __init__(self, mapping):
        self.mapping = dict(mapping)

    def __len__(self):
        return len(self.mapping)

    def get_vocab(self):
        return dict(self.mapping)

    def add_tokens(self, tokens):
        missing = [token for token in tokens if token not in self.mapping]
        if missing:
            raise ValueError(f"the test vocabulary lacks {missing}")
        return 0


@cache
def reference(name: str, vocabulary: Vocabulary, reweigh: bool):
    options = {
        "vocab_size": vocabulary.vocab_size,
        "digit_level": vocabulary.policy == "digits",
        "reweigh": reweigh,
    }
    tokenizer = StubTokenizer(vocabulary.tokens)
    if name == "was":
        return ntloss.NTLoss(tokenizer, **options)
    return ntloss.NTLossDotProduct(tokenizer, loss_function=PENALTIES[name], **options)


def cross_entropy(case: Case, logits, labels, weights, reduction):
    loss = F.cross_entropy(
        logits.flatten(0, 1),
        labels.flatten(),
        reduction="none",
        ignore_index=case.ignore_index,
        label_smoothing=case.label_smoothing,
    ).view(labels.shape)
    counted = (labels != case.ignore_index).to(loss.dtype)
    weights = counted if weights is None else counted * weights
    if reduction is None:
        return loss * weights
    total = (loss * weights).sum()
    return total if reduction == "sum" else total / weights.sum()


def token_loss(case: Case, logits, labels, weights, reduction):
    if case.loss == "ce":
        return cross_entropy(case, logits, labels, weights, reduction)
    if case.loss == "ce+was":
        parts = (dataclasses.replace(case, loss=loss) for loss in ("ce", "was"))
        ce, was = (token_loss(p, logits, labels, weights, reduction) for p in parts)
        return ce + LAMBDA * was
    return reference(case.loss, case.vocabulary, case.reweigh)(
        logits,
        labels,
        loss_weights=weights,
        reduction=reduction or "none",
        ignore_index=case.ignore_index,
    )


def theirs(
    case: Case, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """{reduction: (value, gradient)} in float32."""
    y = torch.tensor(labels, dtype=torch.long)
    w = None if weights is None else torch.tensor(weights)
    results = {}
    for reduction in REDUCTIONS:
        z = torch.tensor(logits, requires_grad=True)
        loss = token_loss(case, z, y, w, reduction)
        loss.backward(torch.tensor(cotangent(tuple(loss.shape))))
        results[str(reduction)] = (loss.detach().numpy(), z.grad.numpy())
    return results

"""Writes number_level.npz: what ntloss 0.3.2 gives for whole numbers.

Run as ``python -m tests.golden.make_number_level``.
"""

import pathlib

import ntloss
import numpy as np
import torch

from tests.losses.number_level_cases import CASES, VOCABULARY
from tests.parity.loss_cases import cotangent

PATH = pathlib.Path(__file__).with_name("number_level.npz")


def value_and_gradient(case) -> tuple[np.ndarray, np.ndarray]:
    """The weighted losses [4, T], and the gradient of their sum with cotangents."""
    loss = ntloss.NumberLevelLoss(
        VOCABULARY,
        vocab_size=VOCABULARY.vocab_size,
        float_level=case.float_level,
        reweigh=case.reweigh,
        max_number_length=case.max_number_length,
    )
    logits, labels, weights = case.batch()
    z = torch.tensor(logits, requires_grad=True)
    y = torch.tensor(labels, dtype=torch.long)
    w = None if weights is None else torch.tensor(weights)
    value = loss(z, y, w, reduction="none")
    value.backward(torch.tensor(cotangent(tuple(value.shape))))
    return value.detach().numpy(), z.grad.numpy()


def main() -> None:
    arrays = {}
    for case in CASES:
        value, gradient = value_and_gradient(case)
        arrays |= {f"{case}/value": value, f"{case}/gradient": gradient}
    np.savez_compressed(PATH, **arrays)
    print(f"{PATH}: {len(arrays)} arrays, {PATH.stat().st_size} bytes")


if __name__ == "__main__":
    main()

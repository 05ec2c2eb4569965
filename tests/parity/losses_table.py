"""Prints how far each loss is from PyTorch, as a markdown table.

The figures are largest absolute differences over the token losses and their mean.

Run as ``python -m tests.parity.losses_table``. bfloat16 logits are compared with torch
on the same logits upcast to float32; their gradient, which is itself bfloat16, with
torch's gradient rounded to bfloat16.
"""

import jax.numpy as jnp
import numpy as np

from tests.parity.loss_cases import LOSSES, Case, ours
from tests.parity.torch_losses import theirs

DTYPES = ("float32", "bfloat16")
COLUMNS = [f"{what}, {dtype}" for dtype in DTYPES for what in ("value", "gradient")]


def largest_differences(case: Case, dtype) -> tuple[float, float]:
    """Of value and of gradient, over the token losses and their mean."""
    logits, labels, weights = case.batch()
    logits = jnp.asarray(logits).astype(dtype)
    expected = theirs(case, np.asarray(logits.astype(jnp.float32)), labels, weights)
    worst = [0.0, 0.0]
    results = ours(case, logits, labels, weights)
    for reduction in ("None", "mean"):
        pairs = zip(results[reduction], expected[reduction], strict=True)
        for i, (actual, reference) in enumerate(pairs):
            rounded = jnp.asarray(reference).astype(actual.dtype).astype(jnp.float32)
            gap = float(jnp.max(jnp.abs(actual.astype(jnp.float32) - rounded)))
            worst[i] = max(worst[i], gap)
    return worst[0], worst[1]


def main() -> None:
    cases = [Case("ce")]
    cases += [Case(loss, reweigh=r) for loss in LOSSES for r in (False, True)]
    cases += [Case("ce+was")]
    print("|", " | ".join(["loss", *COLUMNS]), "|")
    print("| --- " * 5 + "|")
    for case in cases:
        cells = [
            f"{gap:.1e}" for dtype in DTYPES for gap in largest_differences(case, dtype)
        ]
        print("|", " | ".join([case.title, *cells]), "|")


if __name__ == "__main__":
    main()

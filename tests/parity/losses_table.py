"""Prints how far every public loss is from its formula, as a markdown table.

The figures are largest absolute differences from float64 PyTorch, over the losses of a
batch and over the gradient of their sum.

Run as ``python -m tests.parity.losses_table``. bfloat16 logits are compared with torch
on the same logits upcast; their gradient, which is itself bfloat16, with torch's
gradient rounded to bfloat16.
"""

import jax
import jax.numpy as jnp
import numpy as np

from tests.losses.public_losses import LOSSES, batch, losses_and_gradients
from tests.parity.torch_formulas import by_formula

DTYPES = ("float32", "bfloat16")
COLUMNS = [f"{what}, {dtype}" for dtype in DTYPES for what in ("value", "gradient")]


def largest_differences(dtype: str) -> dict[str, list[float]]:
    """{loss: [of the values, of the gradient]}."""
    logits, labels, weights = batch()
    logits = jnp.asarray(logits, dtype)
    ours = jax.jit(losses_and_gradients)(logits, labels, weights)
    upcast = np.asarray(logits.astype(jnp.float32))
    found = {}
    for name, arrays in jax.device_get(ours).items():
        exact = by_formula(name, upcast, labels, weights)
        found[name] = [gap(x, y) for x, y in zip(arrays, exact, strict=True)]
    return found


def gap(actual: np.ndarray, exact: np.ndarray) -> float:
    """The largest difference, once both have the same digits."""
    if actual.dtype == jnp.bfloat16:
        exact = exact.astype(actual.dtype).astype(np.float64)
    return float(np.abs(actual.astype(np.float64) - exact).max())


def main() -> None:
    gaps = [largest_differences(dtype) for dtype in DTYPES]
    print("|", " | ".join(["loss", *COLUMNS]), "|")
    print("| --- " * (1 + len(COLUMNS)) + "|")
    for name in LOSSES:
        cells = [f"{g:.1e}" for of_dtype in gaps for g in of_dtype[name]]
        print("|", " | ".join([name, *cells]), "|")


if __name__ == "__main__":
    main()

"""Writes losses.npz: what ntloss 0.3.2 and torch give on the quick cases.

Run as ``python -m tests.golden.make_losses``.
"""

import pathlib

import numpy as np

from tests.parity.loss_cases import quick_cases
from tests.parity.torch_losses import theirs

PATH = pathlib.Path(__file__).with_name("losses.npz")


def main() -> None:
    arrays = {}
    for case in quick_cases():
        value, gradient = theirs(case)
        arrays[f"{case}/value"] = value
        arrays[f"{case}/gradient"] = gradient
    np.savez_compressed(PATH, **arrays)
    print(f"{PATH}: {len(arrays)} arrays, {PATH.stat().st_size} bytes")


if __name__ == "__main__":
    main()

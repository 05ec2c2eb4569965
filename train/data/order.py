"""In which order rows are seen: a pure function of seed and step."""

import functools

import grain
import numpy as np

GROUPED_STEPS = 64
"""Steps whose rows are sorted by length together."""


# Grain shuffles 2**16 places or more, and walks through them until it meets a row: over
# n rows it takes a third of 2**16 / n microseconds for each (2 ms where n is 10).
_FEW = 4096


def shuffled_rows(places: np.ndarray, n: int, seed: int) -> np.ndarray:
    """Which of n rows stand at these places [B] of the endless shuffled stream.

    Of many rows, a keyed bijection of 0..n-1 gives each without storing the
    permutation.
    """
    epochs, within = np.divmod(places, n)
    rows = np.empty_like(places)
    for epoch in np.unique(epochs):
        here = np.flatnonzero(epochs == epoch)
        if n <= _FEW:
            rows[here] = _permutation(n, seed, int(epoch))[within[here]]
            continue
        key = int(np.random.SeedSequence([seed, int(epoch)]).generate_state(1)[0])
        rows[here] = [
            grain.experimental.index_shuffle(
                int(index), max_index=n - 1, seed=key, rounds=4
            )
            for index in within[here]
        ]
    return rows


@functools.lru_cache(maxsize=16)
def _permutation(n: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(n)


def grouped_rows(
    group: int, *, batch_size: int, ranks: np.ndarray, seed: int
) -> np.ndarray:
    """The rows of a group of steps, each step's of like length.

    The shuffled stream's rows of `GROUPED_STEPS` steps are sorted by rank, cut into
    batches, and the batches shuffled: each row is seen as often as without groups.

    Args:
        group: its number; it has the steps from `group * GROUPED_STEPS` on.
        batch_size: B, rows a step.
        ranks: what to sort by, [N].
        seed: of the stream.

    Returns:
        Rows [GROUPED_STEPS, B].
    """
    size = GROUPED_STEPS * batch_size
    rows = shuffled_rows(group * size + np.arange(size), len(ranks), seed)
    rows = rows[np.argsort(ranks[rows], kind="stable")]
    rng = np.random.Generator(np.random.PCG64([seed, group, size]))
    return rows.reshape(GROUPED_STEPS, batch_size)[rng.permutation(GROUPED_STEPS)]

"""What every loss of this project must withstand, and gradients by differences."""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
import numpy as np

from ntl_jax import NumberVocab

DIGITS = NumberVocab.from_mapping(
    {str(i): i for i in range(10)} | {".": 10, "a": 11}, vocab_size=12
)
POINT, TEXT = 10, 11
TOLERANCE = 1e-5


def peak(digit: int, columns: int = 12, low: float = 0.01) -> np.ndarray:
    """Logit 5 on one digit, ``low`` on the other digits and -1e4 on text."""
    logits = np.full(columns, -1e4, np.float32)
    logits[:10] = low
    logits[digit] = 5.0
    return logits


UNIFORM = np.where(np.arange(12) < 10, 0.0, -1e4).astype(np.float32)
# The standard cases: (logits, label).
CASES = {
    "A": (UNIFORM, 4),
    "A0": (UNIFORM, 0),
    "B": (peak(4), 4),
    "C3": (peak(3), 4),
    "C5": (peak(5), 4),
    "C9": (peak(9), 4),
}
# The number 347, read as 352.
S_LOGITS = np.stack([peak(3), peak(5), peak(2)])
S_LABELS = np.array([3, 4, 7], np.int32)


def stacked() -> tuple[jax.Array, jax.Array]:
    """The logits [6, 12] and labels [6] of the standard cases, in their order."""
    logits = np.stack([logits for logits, _ in CASES.values()])
    labels = np.array([label for _, label in CASES.values()], np.int32)
    return jnp.asarray(logits), jnp.asarray(labels)


def numeric_gradient(
    f: Callable[[np.ndarray], float], z: np.ndarray, step: float = 1e-5
) -> np.ndarray:
    """Central differences of a float64 function."""
    z = np.array(z, np.float64)
    gradient = np.empty_like(z)
    for index in np.ndindex(z.shape):
        ends = []
        for sign in (1, -1):
            moved = z.copy()
            moved[index] += sign * step
            ends.append(f(moved))
        gradient[index] = (ends[0] - ends[1]) / (2 * step)
    return gradient


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def logsumexp(z: np.ndarray) -> np.ndarray:
    top = z.max(axis=-1)
    return top + np.log(np.exp(z - top[..., None]).sum(axis=-1))


def per_position(f, logits, labels, weights) -> np.ndarray:
    """Weighted losses of f(logits of one position, label id), ignored ones at 0."""
    total = np.zeros(labels.shape)
    for index in np.ndindex(labels.shape):
        if labels[index] != -100 and weights[index] != 0:
            total[index] = weights[index] * f(logits[index], int(labels[index]))
    return total


def assert_equals_twin(loss, twin, batch, vocab) -> None:
    """Token losses and the gradient of their sum, against a float64 twin.

    Args:
        loss: ``loss(logits, labels, vocab, weights=..., reduction=...)``.
        twin: ``twin(logits, labels, weights)``, the weighted losses in float64.
        batch: logits, labels, weights.
        vocab: the number tokens.
    """
    logits, labels, weights = batch

    @jax.jit
    def ours(z):
        return jax.value_and_grad(
            lambda z: (
                (value := loss(z, labels, vocab, weights=weights)).sum(),
                value,
            ),
            has_aux=True,
        )(z)

    (_, value), gradient = ours(logits)
    z, y = np.asarray(logits, np.float64), np.asarray(labels)
    w = np.asarray(weights, np.float64)
    expected = twin(z, y, w), numeric_gradient(lambda z: twin(z, y, w).sum(), z)
    chex.assert_trees_all_close(
        (np.asarray(value, np.float64), np.asarray(gradient, np.float64)),
        expected,
        rtol=TOLERANCE,
        atol=TOLERANCE,
    )


def check_edges(loss, vocab, batch, counted, *, largest=1e30) -> None:
    """Zeros where nothing counts, finite everywhere, one trace for all of it.

    Args:
        loss: ``loss(logits, labels, vocab, weights=..., reduction=...)``.
        vocab: the number tokens.
        batch: logits, labels, weights.
        counted: bool, the positions that the loss is about.
        largest: the largest logit to try.
    """
    logits, labels, weights = batch
    chex.clear_trace_counter()

    @jax.jit
    @chex.assert_max_traces(n=1)
    def run(z, y, w):
        def total(z):
            return jnp.sum(loss(z, y, vocab, weights=w, reduction="sum"))

        return jax.value_and_grad(total)(z)

    value, gradient = run(logits, labels, weights)
    assert value != 0 and gradient[counted].any() and not gradient[~counted].any()
    for poison in (np.nan, np.inf):
        dirty = run(jnp.where(counted[..., None], logits, poison), labels, weights)
        chex.assert_trees_all_equal(dirty, (value, gradient))
    nothing = [(jnp.full_like(labels, -100), weights), (labels, 0 * weights)]
    for y, w in nothing:
        value, gradient = run(jnp.full_like(logits, jnp.nan), y, w)
        assert value == 0 and not gradient.any()
    for z in (
        jnp.where(logits > 1, largest, logits),
        jnp.where(logits > 1, -largest, logits),
        jnp.where(logits > 0, -jnp.inf, logits).at[0, 0].set(-jnp.inf),
    ):
        chex.assert_tree_all_finite(run(z, labels, weights))


def check_bfloat16(loss, vocab, batch) -> None:
    """bfloat16 logits are worth their float32 copies."""
    logits, labels, weights = batch

    @jax.jit
    def run(z):
        def total(z):
            return jnp.sum(loss(z, labels, vocab, weights=weights, reduction="sum"))

        return jax.value_and_grad(total)(z)

    half = logits.astype(jnp.bfloat16)
    value, gradient = run(half)
    assert value.dtype == jnp.float32 and gradient.dtype == jnp.bfloat16
    expected = run(half.astype(jnp.float32))
    got = value, gradient.astype(jnp.float32)
    chex.assert_trees_all_close(got, expected, rtol=2**-8, atol=1e-6)

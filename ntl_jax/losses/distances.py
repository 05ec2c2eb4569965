"""What it costs to say one number in the place of another: [K, K] matrices.

Row y, column k holds the cost of predicting number token k where token y is true, both
in the order of ``vocab.token_ids``. Give one to `ntl_was` as ``distance`` or to
`ntl_optimal_transport` as ``cost``; so may be any matrix of your own, symmetric or not.
"""

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Float32

from ntl_jax.losses.checks import Scalar, check_floating, scalar
from ntl_jax.numbers.vocab import NumberVocab


def euclidean(vocab: NumberVocab) -> Float32[Array, "K K"]:
    """How far apart two numbers are.

    |v_k - v_y|

    Args:
        vocab: the number tokens, worth v.

    Returns:
        f32[K, K], in the units of ``vocab.values``.

    >>> vocab = NumberVocab.from_mapping({"a": 0, "7": 1, "3": 2}, vocab_size=4)
    >>> euclidean(vocab).tolist()
    [[0.0, 4.0], [4.0, 0.0]]

    Source: ntloss 0.3.2, ``NTLoss`` without a squash factor.
    """
    return jnp.asarray(_differences(vocab).astype(np.float32))


def squashed(vocab: NumberVocab, factor: Scalar) -> Float32[Array, "K K"]:
    """Distances pressed together until the largest is ``factor`` times the smallest.

    0 where v_k = v_y, else 1 + (|v_k - v_y| - d_min) (s - 1) / (d_max - d_min)

    d_min and d_max are the smallest difference above 0 and the largest, over the whole
    vocabulary. With s = 1 every wrong number costs the same: `ntl_was` is then
    1 - q_y, the probability of a wrong number. That is not cross-entropy, -log q_y: it
    is bounded, and its gradient fades where the model is confident and wrong.

    Args:
        vocab: the number tokens, worth v.
        factor: s, at least 1; may be a traced scalar, so that a sweep can vary it.

    Returns:
        f32[K, K], without unit, in {0} and [1, s]. Where all differences above 0 are
        the same they cost 1, and where there are none all costs are 0.

    Raises:
        ValueError: for a factor that is a Python number below 1, or no scalar.

    >>> digits = {str(i): i for i in range(10)}
    >>> vocab = NumberVocab.from_mapping(digits, vocab_size=11)
    >>> print(squashed(vocab, 3.0)[0])
    [0.   1.   1.25 1.5  1.75 2.   2.25 2.5  2.75 3.  ]

    Source: ntloss 0.3.2, ``NTLoss(squash_factor=s)``, which asks for s > 1.
    """
    if isinstance(factor, int | float) and not 1 <= factor < np.inf:
        raise ValueError(f"the squash factor must be at least 1, not {factor}.")
    difference = _differences(vocab)
    apart = difference > 0
    smallest = np.min(difference, where=apart, initial=np.inf)
    span = difference.max(initial=0.0) - smallest
    steps = np.where(apart, difference - smallest, 0.0) / (span if span > 0 else 1.0)
    ramp = scalar("factor", factor) - 1
    matrix = 1 + steps.astype(np.float32) * ramp
    return jnp.where(apart, matrix, 0.0)


def circular(vocab: NumberVocab, period: Scalar) -> Float32[Array, "K K"]:
    """Distances around a circle, for arithmetic modulo ``period``, hours or angles.

    min(d mod p, p - d mod p), where d = |v_k - v_y|

    Args:
        vocab: the number tokens, worth v.
        period: p, above 0, in the units of ``vocab.values``; may be a traced scalar.

    Returns:
        f32[K, K], in the units of ``vocab.values``, in [0, p / 2].

    Raises:
        ValueError: for a period that is a Python number not above 0, or no scalar.

    >>> digits = {str(i): i for i in range(10)}
    >>> vocab = NumberVocab.from_mapping(digits, vocab_size=11)
    >>> print(circular(vocab, 10)[0])  # 9 is next to 0
    [0. 1. 2. 3. 4. 5. 4. 3. 2. 1.]

    Source: Regress, Don't Guess (ICML 2025), which names modular arithmetic as a case
    for other distances; the formula is the usual geodesic distance on a circle.
    """
    if isinstance(period, int | float) and not 0 < period < np.inf:
        raise ValueError(f"the period must be positive and finite, not {period}.")
    length = scalar("period", period)
    around = jnp.mod(_differences(vocab).astype(np.float32), length)
    return jnp.minimum(around, length - around)


def log_scale(vocab: NumberVocab, unit: Scalar = 1.0) -> Float32[Array, "K K"]:
    """Differences in order of magnitude, for numbers of many sizes.

    |s(v_k) - s(v_y)|, where s(v) = sign(v) log(1 + |v| / u)

    Near 0, within the unit u, the scale is straight; far beyond it a factor of ten
    costs log 10, wherever it stands.

    Args:
        vocab: the number tokens, worth v.
        unit: u, above 0, in the units of ``vocab.values``; may be a traced scalar.

    Returns:
        f32[K, K], in nats.

    Raises:
        ValueError: for a unit that is a Python number not above 0, or no scalar.

    >>> tokens = {"a": 0, "0": 1, "9": 2, "99": 3}
    >>> vocab = NumberVocab.from_mapping(tokens, vocab_size=4, policy="numbers")
    >>> print(log_scale(vocab)[0].round(2))  # log 10, log 100
    [0.   2.3  4.61]

    Source: symlog, Mastering Diverse Domains through World Models (2023), equation 9.
    """
    if isinstance(unit, int | float) and not 0 < unit < np.inf:
        raise ValueError(f"the unit must be positive and finite, not {unit}.")
    scaled = jnp.asarray(vocab.values) / scalar("unit", unit)
    place = jnp.sign(scaled) * jnp.log1p(jnp.abs(scaled))  # [K]
    return jnp.abs(place[:, None] - place[None, :])


def check_costs(
    costs: Float[Array, "K K"], vocab: NumberVocab
) -> Float32[Array, "K K"]:
    """Makes sure that a matrix is one of costs between the numbers of a vocabulary.

    Args:
        costs: [K, K], in the order of ``vocab.token_ids``.
        vocab: the number tokens.

    Returns:
        The costs in float32.

    Raises:
        TypeError: for a list, or a matrix that is not floating point.
        ValueError: for another shape; and for negative costs, NaN and infinity, where
            the matrix is known while tracing.
    """
    check_floating("costs", costs)
    numbers = len(vocab)
    if jnp.shape(costs) != (numbers, numbers):
        raise ValueError(
            f"costs of shape {jnp.shape(costs)} do not fit {numbers} number tokens: "
            f"give a matrix of shape {(numbers, numbers)}, in the order of "
            "vocab.token_ids."
        )
    if not isinstance(costs, Tracer):
        known = np.asarray(costs).astype(np.float32)
        bad = np.argwhere(~(np.isfinite(known) & (known >= 0)))
        if len(bad):
            row, column = bad[0]
            raise ValueError(
                f"{len(bad)} of the costs are negative or not finite, the first "
                f"{known[row, column]} at [{row}, {column}] (the number "
                f"{vocab.values[row]:g} read as {vocab.values[column]:g}). Give finite "
                "costs of at least 0."
            )
    return jnp.asarray(costs).astype(jnp.float32)


def _differences(vocab: NumberVocab) -> np.ndarray:
    """|v_k - v_y| in float64, [K, K]."""
    values = vocab.values.astype(np.float64)
    return np.abs(values[:, None] - values[None, :])

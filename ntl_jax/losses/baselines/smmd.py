"""SMMD: a kernel distance between predicted and true number, and its smoothness."""

import contextlib
import math
from typing import Literal

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Float32, Int

from ntl_jax.losses.checks import check_is_array, scalar
from ntl_jax.losses.distances import euclidean, squashed
from ntl_jax.losses.on_logits import on_logits
from ntl_jax.losses.reduction import Reduction
from ntl_jax.losses.softmax import Support, number_probabilities
from ntl_jax.losses.stats import NumberStats
from ntl_jax.losses.targets import number_targets
from ntl_jax.numbers.vocab import NumberVocab
from ntl_jax.sharding.auto_axes import on_auto_axes

Sigmas = float | tuple[float, ...] | Float[Array, ""] | Float[Array, "S"]


def smmd_matrix(
    vocab: NumberVocab,
    *,
    sigma: Sigmas = 2.0,
    squash: float | Float[Array, ""] | None = 9.0,
    alpha: Literal["auto"] | float | Float[Array, ""] = "auto",
    kernel: Literal["gaussian", "laplace"] = "gaussian",
    mode: Literal["smmd", "mmd", "smooth"] = "smmd",
) -> Float32[Array, "K K"]:
    """The quadratic form of SMMD.

    M = K + alpha (D - K), where D is the diagonal of the row sums of K and
    K_ij = mean_sigma exp(-s(|v_i - v_j|)^2 / (2 sigma^2))

    It is made while tracing, once, unless an option is traced.

    Args:
        vocab: the number tokens, worth v.
        sigma: one width or several, whose kernels are averaged; may be traced.
        squash: the factor of the distance s, `ntl_jax.losses.distances.squashed`; None
            for the plain distance. The released default of 9 leaves digits as they are
            and presses 0 to 999 into [1, 9].
        alpha: the weight of smoothness; "auto" for 1 / (2 mean row sum).
        kernel: "gaussian", or "laplace" for exp(-s(d) / sigma).
        mode: "smmd"; or one half of it, "mmd" for K and "smooth" for alpha (D - K).

    Returns:
        f32[K, K], symmetric, in the order of ``vocab.token_ids``.

    Raises:
        ValueError: for a sigma that is not positive, a negative alpha, or an unknown
            kernel or mode.

    >>> digits = {str(i): i for i in range(10)} | {"a": 10}
    >>> vocab = NumberVocab.from_mapping(digits, vocab_size=11)
    >>> print(smmd_matrix(vocab)[4, 4:].round(4))
    [1.4659 0.7782 0.5348 0.2863 0.1193 0.0387]

    Source: SMMD (ICML 2026, arXiv 2606.27731), ``Zuozhuo/smmd-loss``. The squash is
    the code's own.
    """
    widths = sigma if isinstance(sigma, tuple) else (sigma,)
    if any(isinstance(w, int | float) and not w > 0 for w in widths):
        raise ValueError(f"sigma must be positive, not {sigma}.")
    if isinstance(alpha, int | float) and not 0 <= alpha < math.inf:
        raise ValueError(f"alpha must be 0 or positive, and finite, not {alpha}.")
    known = not any(isinstance(x, Tracer) for x in (*widths, squash, alpha))
    with jax.ensure_compile_time_eval() if known else contextlib.nullcontext():
        distance = euclidean(vocab) if squash is None else squashed(vocab, squash)
        similar = _kernel(distance, widths, kernel)
        degree = jnp.sum(similar, axis=1)  # [K]
        if isinstance(alpha, str):
            if alpha != "auto":
                raise ValueError(f"alpha must be 'auto' or a number, not {alpha!r}.")
            alpha = 0.5 / jnp.mean(degree)
        smooth = scalar("alpha", alpha) * (jnp.diag(degree) - similar)
        modes = {"smmd": similar + smooth, "mmd": similar, "smooth": smooth}
    if mode not in modes:
        raise ValueError(f"mode must be 'smmd', 'mmd' or 'smooth', not {mode!r}.")
    return modes[mode]


def smmd(
    logits: Float[Array, "*B V"],
    labels: Int[Array, "*B"],
    vocab: NumberVocab,
    *,
    matrix: Float[Array, "K K"] | None = None,
    weights: Float[Array, "*B"] | Bool[Array, "*B"] | None = None,
    reduction: Reduction = None,
    support: Support = "numbers",
    ignore_index: int = -100,
) -> Float32[Array, "..."]:
    """SMMD on logits; see `smmd_from_stats` for the formula.

    Args:
        logits: [*B, V] of any floating dtype; columns from ``vocab.vocab_size`` on are
            padding.
        labels: token ids [*B].
        vocab: the number tokens.
        matrix: M [K, K]; that of `smmd_matrix` where None.
        weights: non-negative weights [*B]; 1 where None.
        reduction: None, "sum", or "mean" over the weight of number labels.
        support: "numbers" or "full".
        ignore_index: the label that counts nothing.

    Returns:
        float32, [*B] or a scalar, without unit; exactly 0, in value and gradient, where
        the label is no number, is ignored or has weight 0.

    Raises:
        TypeError, ValueError: as `ntl_jax.losses.stats_from_logits` does, and for a
            matrix of another shape or an unknown reduction or support.

    >>> digits = {str(i): i for i in range(10)} | {"a": 10}
    >>> vocab = NumberVocab.from_mapping(digits, vocab_size=11)
    >>> labels = jnp.array([4, 0, 10])
    >>> print(smmd(jnp.zeros((3, 11)), labels, vocab).round(3))
    [0.901 1.059 0.   ]
    >>> narrow = smmd_matrix(vocab, sigma=1.0, mode="mmd")
    >>> print(smmd(jnp.zeros((3, 11)), labels, vocab, matrix=narrow).round(3))
    [0.731 0.882 0.   ]
    """
    return on_logits(
        smmd_from_stats,
        logits,
        labels,
        vocab,
        weights=weights,
        reduction=reduction,
        ignore_index=ignore_index,
        numbers_only=support == "numbers",
        matrix=matrix,
        support=support,
    )


@on_auto_axes(labels=1)
def smmd_from_stats(
    stats: NumberStats,
    labels: Int[Array, "*B"],
    vocab: NumberVocab,
    *,
    matrix: Float[Array, "K K"] | None = None,
    weights: Float[Array, "*B"] | Bool[Array, "*B"] | None = None,
    ignore_index: int = -100,
    support: Support = "numbers",
) -> tuple[Float32[Array, "*B"], Float32[Array, "*B"]]:
    """SMMD of a position whose label is number token y.

    max(0, r' M r), where r_k = q_k - [k = y] and q is the distribution over numbers

    With M = K it is the squared maximum mean discrepancy of q and the label; what M
    adds prefers an r that is smooth over neighbouring numbers. It is added to the
    cross-entropy. No weight for it is known: neither the released code nor its default
    options hold one, so sweep it, from 0.1 to 1.

    Args:
        stats: NumberStats over [*B].
        labels: token ids [*B].
        vocab: the number tokens.
        matrix: M [K, K], symmetric, in the order of ``vocab.token_ids``; that of
            `smmd_matrix` where None. May be traced, or any other symmetric matrix.
        weights: non-negative weights [*B]; 1 where None.
        ignore_index: the label that counts nothing.
        support: "numbers" for a q that sums to 1, "full" for the number part of the
            softmax over the vocabulary.

    Returns:
        (value, weight), both f32[*B]: the distance, at least 0, exactly 0 where the
        weight is 0; and what each counts.

    Raises:
        ValueError: for a matrix of another shape or an unknown support.

    Source: SMMD (ICML 2026, arXiv 2606.27731), ``Zuozhuo/smmd-loss``.
    """
    if matrix is None:
        matrix = smmd_matrix(vocab)
    check_is_array("matrix", matrix)
    if matrix.shape != (len(vocab), len(vocab)):
        raise ValueError(
            f"a matrix of shape {matrix.shape} does not fit {len(vocab)} number "
            f"tokens: give one of shape {(len(vocab), len(vocab))}, in the order of "
            "vocab.token_ids."
        )
    targets = number_targets(labels, vocab, weights, ignore_index=ignore_index)
    q = number_probabilities(stats, targets, support)  # [*B, K]
    r = q - jax.nn.one_hot(targets.row, len(vocab), dtype=jnp.float32)
    pull = jnp.einsum(
        "...i,ij->...j",
        r,
        jnp.asarray(matrix).astype(jnp.float32),
        precision=jax.lax.Precision.HIGHEST,
    )
    loss = jnp.maximum(jnp.sum(r * pull, axis=-1), 0.0)
    return jnp.where(targets.mask, loss, 0.0), targets.weight


def _kernel(distance, widths, kernel) -> Float32[Array, "K K"]:
    """The mean over the widths of the similarity at each distance."""
    sigmas = jnp.concatenate([jnp.atleast_1d(jnp.asarray(w)) for w in widths])  # [S]
    steps = distance[None] / sigmas.astype(jnp.float32)[:, None, None]  # [S, K, K]
    if kernel == "gaussian":
        return jnp.mean(jnp.exp(-0.5 * jnp.square(steps)), axis=0)
    if kernel == "laplace":
        return jnp.mean(jnp.exp(-steps), axis=0)
    raise ValueError(f"kernel must be 'gaussian' or 'laplace', not {kernel!r}.")

"""The cost of turning the predicted numbers into any target, under any cost matrix."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.nn import logsumexp
from jaxtyping import Array, Bool, Float, Float32, Int

from ntl_jax.losses.checks import Scalar, scalar
from ntl_jax.losses.distances import check_costs, euclidean
from ntl_jax.losses.on_logits import on_logits
from ntl_jax.losses.reduction import Reduction
from ntl_jax.losses.softmax import Support, number_probabilities, reweigh_and_mask
from ntl_jax.losses.stats import MASKED_LOGIT, NumberStats
from ntl_jax.losses.targets import number_targets
from ntl_jax.losses.wasserstein import target_distribution
from ntl_jax.numbers.vocab import NumberVocab
from ntl_jax.sharding.auto_axes import on_auto_axes

_RELAXATION = 1.5  # at 1.7 some values were 2% of the largest cost off for a while


def ntl_optimal_transport(
    logits: Float[Array, "*B V"],
    labels: Int[Array, "*B"],
    vocab: NumberVocab,
    *,
    target: Float[Array, "*B K"],
    cost: Float[Array, "K K"] | None = None,
    epsilon: Scalar = 0.1,
    iterations: int = 50,
    debias: bool = False,
    weights: Float[Array, "*B"] | Bool[Array, "*B"] | None = None,
    reduction: Reduction = None,
    reweigh: bool = False,
    support: Support = "numbers",
    ignore_index: int = -100,
) -> Float32[Array, "..."]:
    """Optimal transport, on logits; see `ntl_optimal_transport_from_stats`.

    Args:
        logits: [*B, V] of any floating dtype; columns from ``vocab.vocab_size`` on are
            padding.
        labels: token ids [*B].
        vocab: the number tokens.
        target: the true distribution over ``vocab.token_ids``.
        cost: what each wrong number costs; |v_k - v_y| where None.
        epsilon: how much the coupling is blurred, as a share of the largest cost.
        iterations: how many times the potentials are updated.
        debias: whether to take off what the blur costs.
        weights: non-negative weights [*B]; 1 where None.
        reduction: None, "sum", or "mean" over the weight of number labels.
        reweigh: whether to charge for mass that is not on numbers.
        support: "numbers" or "full".
        ignore_index: the label that counts nothing.

    Returns:
        float32, [*B] or a scalar, in the units of the cost; exactly 0, in value and
        gradient, where the label is no number, is ignored or has weight 0.

    Raises:
        TypeError, ValueError: as `ntl_optimal_transport_from_stats` and
            `ntl_jax.losses.stats_from_logits` do.

    >>> from ntl_jax.losses.distances import circular
    >>> digits = {str(i): i for i in range(10)} | {"a": 10}
    >>> vocab = NumberVocab.from_mapping(digits, vocab_size=11)
    >>> nine = jnp.full((1, 11), -1e4).at[0, 9].set(0.0)
    >>> either = jnp.zeros((1, 10)).at[0, jnp.array([0, 1])].set(0.5)
    >>> loss = ntl_optimal_transport(
    ...     nine, jnp.array([0]), vocab, target=either, cost=circular(vocab, 10)
    ... )
    >>> print(f"{loss[0]:.3f}")  # half of it one step, half of it two
    1.500

    Source: as `ntl_optimal_transport_from_stats`.
    """
    return on_logits(
        ntl_optimal_transport_from_stats,
        logits,
        labels,
        vocab,
        target=target,
        cost=cost,
        epsilon=epsilon,
        iterations=iterations,
        debias=debias,
        weights=weights,
        reduction=reduction,
        ignore_index=ignore_index,
        numbers_only=support == "numbers" and not reweigh,
        reweigh=reweigh,
        support=support,
    )


@on_auto_axes(labels=1)
def ntl_optimal_transport_from_stats(
    stats: NumberStats,
    labels: Int[Array, "*B"],
    vocab: NumberVocab,
    *,
    target: Float[Array, "*B K"],
    cost: Float[Array, "K K"] | None = None,
    epsilon: Scalar = 0.1,
    iterations: int = 50,
    debias: bool = False,
    weights: Float[Array, "*B"] | Bool[Array, "*B"] | None = None,
    ignore_index: int = -100,
    reweigh: bool = False,
    support: Support = "numbers",
) -> tuple[Float32[Array, "*B"], Float32[Array, "*B"]]:
    """Entropic optimal transport from the prediction q to a target t over numbers.

    OT(q, t) = min_P sum_yk P_yk C_yk + e KL(P || t q^T), over the couplings P with
    marginals t and q, where e = epsilon max C

    For a cost and a target of your own. Where one of them is simple the exact cost is
    cheaper by far: `ntl_was` with ``distance=cost`` for the label alone, `ntl_was_cdf`
    for any target under |v_k - v_y|.

    The value includes the KL, and so is above the exact cost, by e times the smaller
    of the two entropies at most, and by nothing where t or q is one number.
    It is not 0 at q = t, and its minimum is a q a little sharper than t.
    ``debias=True`` mends that, for a symmetric cost, at three times the price, with
    the Sinkhorn divergence OT(q, t) - OT(q, q) / 2 - OT(t, t) / 2.

    The gradient is that of OT itself by the envelope theorem: the potentials are not
    differentiated, so a second derivative is not available. At the defaults, between
    distributions over digits, the value comes within 0.001 of its limit and 99 in 100
    gradients within 0.002, where the largest cost is 1. A smaller epsilon needs several
    times the iterations; with too few the value is below OT.

    Args:
        stats: NumberStats over [*B].
        labels: token ids [*B]; only positions whose label is a number count.
        vocab: the number tokens.
        target: t, as in `ntl_was_cdf_from_stats`.
        cost: C, [K, K], row y the costs of a true y, in the order of
            ``vocab.token_ids`` (see `ntl_jax.losses.distances`); |v_k - v_y| where
            None.
        epsilon: above 0, a share of the largest cost; may be a traced scalar.
        iterations: how many times both potentials are updated.
        debias: whether to return the Sinkhorn divergence.
        weights: non-negative weights [*B]; 1 where None.
        ignore_index: the label that counts nothing.
        reweigh: whether to charge 1.01 times the largest cost for mass off the numbers.
        support: "numbers" for a q that sums to 1. "full" for the number part of the
            softmax over the vocabulary: its mass m is moved to m t, so that the value
            is m OT.

    Returns:
        (value, weight), both f32[*B]: the cost, exactly 0 where the weight is 0; and
        what each counts.

    Raises:
        TypeError, ValueError: for a target or cost of another shape or dtype, for an
            epsilon or iterations not above 0, and to debias an asymmetric cost.

    Source: Sinkhorn Distances (NeurIPS 2013), with the updates of Overrelaxed
    Sinkhorn-Knopp Algorithm for Regularized Optimal Transport (2017); the divergence
    from Interpolating between Optimal Transport and MMD using Sinkhorn Divergences
    (AISTATS 2019).
    """
    _check_options(epsilon, iterations)
    matrix = euclidean(vocab) if cost is None else check_costs(cost, vocab)
    if debias:
        _check_symmetric(matrix)
    targets = number_targets(labels, vocab, weights, ignore_index=ignore_index)
    t, targets = target_distribution(target, targets, vocab)  # [*B, K]
    q = number_probabilities(stats, targets, "numbers")  # [*B, K]
    worst = jnp.max(matrix)
    blur = scalar("epsilon", epsilon) * jnp.where(worst > 0, worst, 1.0)
    loss = entropic_cost(q, t, matrix, blur, iterations)  # [*B]
    if debias:
        of_q = entropic_cost(q, q, matrix, blur, iterations)
        of_t = entropic_cost(t, t, matrix, blur, iterations)
        loss = loss - 0.5 * (of_q + of_t)
    if support != "numbers":
        loss *= jnp.sum(number_probabilities(stats, targets, support), axis=-1)
    return reweigh_and_mask(
        loss, stats, targets, support=support, reweigh=reweigh, worst=worst
    )


def entropic_cost(
    q: Float32[Array, "*B K"],
    t: Float32[Array, "*B K"],
    cost: Float32[Array, "K K"],
    blur: Float32[Array, ""],
    iterations: int,
) -> Float32[Array, "*B"]:
    """OT(q, t) of `ntl_optimal_transport_from_stats`, with its gradient.

    sum_k q_k f_k + sum_y t_y g_y, the dual at the potentials f and g

    Args:
        q: predicted distributions [*B, K].
        t: true distributions [*B, K].
        cost: [K, K], row y the costs of a true y.
        blur: e, the weight of the KL, above 0, in the units of the cost.
        iterations: how many times both potentials are updated.

    Returns:
        f32[*B]. Its gradient is f for q, g for t, the coupling for the cost and the KL
        for the blur.
    """
    fixed = jax.lax.stop_gradient((_log(q), _log(t), cost, blur))
    f, g = _potentials(*fixed, iterations)
    # The last term of the dual is 0 here, and brings the gradients of cost and blur.
    slack = (
        f[..., None, :] + g[..., :, None] - _for_each(cost, q)
    ) / blur  # [*B, K, K]
    coupling = jnp.exp(fixed[0][..., None, :] + fixed[1][..., :, None] + slack)
    excess = jnp.sum(coupling, axis=(-2, -1)) - 1
    return jnp.sum(q * f, axis=-1) + jnp.sum(t * g, axis=-1) - blur * excess


# A loop over functions that a call makes is compiled anew by each call outside of
# `jit`, and what was compiled is kept: hence one of its own.
@partial(jax.jit, static_argnames="iterations", inline=True)
def _potentials(
    log_q: Float32[Array, "*B K"],
    log_t: Float32[Array, "*B K"],
    cost: Float32[Array, "K K"],
    blur: Float32[Array, ""],
    iterations: int,
) -> tuple[Float32[Array, "*B K"], Float32[Array, "*B K"]]:
    """f and g of the dual, after so many updates of each in the log domain.

    The blur starts wide and is halved each time. A quarter of the updates move both
    potentials half of the way at once, which is exact where q is t; the others move one
    after the other, and half as far again as they should, which is several times
    faster than plain Sinkhorn; the last one is plain.
    """
    widest = jnp.max(cost)
    costs = _for_each(cost, log_q)

    def best_g(f, e):
        return -e * logsumexp(log_q[..., None, :] + (f[..., None, :] - costs) / e, -1)

    def best_f(g, e):
        return -e * logsumexp(log_t[..., :, None] + (g[..., :, None] - costs) / e, -2)

    def halfway(i, potentials):
        f, g = potentials
        e = jnp.maximum(blur, widest * 0.5 ** jnp.asarray(i, jnp.float32))
        return 0.5 * (f + best_f(g, e)), 0.5 * (g + best_g(f, e))

    def beyond(i, potentials):
        f, g = potentials
        e = jnp.maximum(blur, widest * 0.5 ** jnp.asarray(i, jnp.float32))
        g += _RELAXATION * (best_g(f, e) - g)
        f += _RELAXATION * (best_f(g, e) - f)
        return f, g

    start = jnp.zeros_like(log_q), jnp.zeros_like(log_t)
    near = jax.lax.fori_loop(0, iterations // 4, halfway, start)
    f, _ = jax.lax.fori_loop(iterations // 4, iterations - 1, beyond, near)
    g = best_g(f, blur)
    return best_f(g, blur), g


def _for_each(cost: Float32[Array, "K K"], x: Float32[Array, "*B K"]) -> Array:
    """The cost with an axis of size 1 for each leading axis of x."""
    return jnp.expand_dims(cost, tuple(range(x.ndim - 1)))


def _log(x: Float32[Array, "*B K"]) -> Float32[Array, "*B K"]:
    """log x, and a finite stand-in for the log of 0."""
    return jnp.where(x > 0, jnp.log(jnp.where(x > 0, x, 1.0)), MASKED_LOGIT)


def _check_options(epsilon: Scalar, iterations: int) -> None:
    if isinstance(epsilon, int | float) and not 0 < epsilon < np.inf:
        raise ValueError(f"epsilon must be positive and finite, not {epsilon}.")
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1, not {iterations}.")


def _check_symmetric(cost: Float32[Array, "K K"]) -> None:
    if isinstance(cost, Tracer):
        return
    known = np.asarray(cost)
    row, column = np.unravel_index(np.argmax(np.abs(known - known.T)), known.shape)
    there, back = known[row, column], known[column, row]
    if abs(there - back) > 1e-6 * known.max():
        raise ValueError(
            f"debias=True needs a symmetric cost, but [{row}, {column}] costs "
            f"{there:g} and [{column}, {row}] {back:g}. Use (cost + cost.T) / 2, or "
            "debias=False."
        )

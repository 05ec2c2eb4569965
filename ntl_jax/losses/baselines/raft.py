"""RAFT: squared error of the expected score, at the one score of each row."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Int

from ntl_jax.losses.dot_product import ntl_mse_from_stats
from ntl_jax.losses.on_logits import on_logits
from ntl_jax.losses.reduction import Reduction
from ntl_jax.losses.row_scans import row_index
from ntl_jax.losses.stats import NumberStats
from ntl_jax.losses.targets import label_is, number_targets, token_weights
from ntl_jax.numbers.vocab import NumberVocab
from ntl_jax.sharding.auto_axes import on_auto_axes


def score_positions(
    labels: Int[Array, "*B T"],
    vocab: NumberVocab,
    *,
    from_end: int | None = None,
    ignore_index: int = -100,
) -> Bool[Array, "*B T"]:
    """Where the score of each row stands.

    Args:
        labels: token ids [*B, T].
        vocab: the grid of scores.
        from_end: None for the last label of the row that is on the grid; n for the n-th
            label from the end, ignored ones aside, if that is on the grid. TRACT takes
            2: the score, then the end of the sequence.
        ignore_index: the label that counts nothing.

    Returns:
        bool[*B, T], true at most once a row.

    Raises:
        ValueError: for a from_end below 1, or labels without a row.

    >>> tokens = {"1": 0, "2": 1, "is": 2, "</s>": 3}
    >>> vocab = NumberVocab.from_mapping(tokens, vocab_size=4)
    >>> score_positions(jnp.array([1, 2, 0, 3, -100]), vocab).tolist()
    [False, False, True, False, False]

    Source: TRACT (ACL 2025, arXiv 2503.04381), ``d223302/TRACT``, for from_end = 2.
    """
    if labels.ndim == 0:
        raise ValueError("labels of shape () hold no row to look for a score in.")
    on_grid = number_targets(labels, vocab, ignore_index=ignore_index).mask
    if from_end is None:
        place = row_index(labels)
        last = jnp.where(on_grid, place, -1)
        last = jnp.max(last, axis=-1, keepdims=True, initial=-1)
        return place == last
    if from_end < 1:
        raise ValueError(f"from_end must be at least 1, the last, not {from_end}.")
    kept = ~label_is(labels, ignore_index)
    rank = jnp.cumsum(kept[..., ::-1], axis=-1, dtype=jnp.int32)[..., ::-1]
    return on_grid & kept & (rank == from_end)


def raft_cross_entropy_weights(
    labels: Int[Array, "*B T"],
    vocab: NumberVocab,
    *,
    scores: Bool[Array, "*B T"] | None = None,
    weights: Float[Array, "*B T"] | Bool[Array, "*B T"] | None = None,
    ce_on_score: bool = False,
    ignore_index: int = -100,
) -> Float32[Array, "*B T"]:
    """The weights of the cross-entropy that RAFT is added to.

    Args:
        labels: token ids [*B, T].
        vocab: the grid of scores.
        scores: where the scores stand [*B, T]; `score_positions` where None.
        weights: non-negative weights [*B, T]; 1 where None.
        ce_on_score: whether cross-entropy trains the score too. RAFT's equations say
            that it does, TRACT's code that it does not.
        ignore_index: the label that counts nothing.

    Returns:
        f32[*B, T], to be given to `ntl_jax.losses.cross_entropy`.
    """
    weight = token_weights(labels, weights, ignore_index=ignore_index)
    if ce_on_score:
        return weight
    if scores is None:
        scores = score_positions(labels, vocab, ignore_index=ignore_index)
    return jnp.where(scores, 0.0, weight)


def raft(
    logits: Float[Array, "*B T V"],
    labels: Int[Array, "*B T"],
    vocab: NumberVocab,
    *,
    scores: Bool[Array, "*B T"] | None = None,
    weights: Float[Array, "*B T"] | Bool[Array, "*B T"] | None = None,
    reduction: Reduction = None,
    ignore_index: int = -100,
) -> Float32[Array, "..."]:
    """RAFT on logits; see `raft_from_stats` for the formula.

    Args:
        logits: [*B, T, V] of any floating dtype; columns from ``vocab.vocab_size`` on
            are padding.
        labels: token ids [*B, T].
        vocab: the grid of scores.
        scores: where the scores stand [*B, T]; `score_positions` where None.
        weights: non-negative weights [*B, T]; 1 where None.
        reduction: None, "sum", or "mean" over the weight of the scores.
        ignore_index: the label that counts nothing.

    Returns:
        float32, [*B, T] or a scalar, in squared units of ``vocab.values``; exactly 0,
        in value and gradient, everywhere but at the scores.

    Raises:
        TypeError, ValueError: as `ntl_jax.losses.stats_from_logits` does, and for an
            unknown reduction.

    >>> from ntl_jax import cross_entropy
    >>> tokens = {str(i): i for i in range(1, 6)} | {"so": 0, "</s>": 6}
    >>> vocab = NumberVocab.from_mapping(tokens, vocab_size=7)
    >>> logits, labels = jnp.zeros((1, 3, 7)), jnp.array([[0, 5, 6]])
    >>> print(raft(logits, labels, vocab).round(3))  # (15 / 7 - 5)^2
    [[0.    8.163 0.   ]]
    >>> weights = raft_cross_entropy_weights(labels, vocab)
    >>> ce = cross_entropy(logits, labels, weights=weights, reduction="mean")
    >>> print((ce + raft(logits, labels, vocab, reduction="mean")).round(3))
    10.109
    """
    return on_logits(
        raft_from_stats,
        logits,
        labels,
        vocab,
        weights=weights,
        reduction=reduction,
        ignore_index=ignore_index,
        scores=scores,
    )


@on_auto_axes(labels=1)
def raft_from_stats(
    stats: NumberStats,
    labels: Int[Array, "*B T"],
    vocab: NumberVocab,
    *,
    scores: Bool[Array, "*B T"] | None = None,
    weights: Float[Array, "*B T"] | Bool[Array, "*B T"] | None = None,
    ignore_index: int = -100,
) -> tuple[Float32[Array, "*B T"], Float32[Array, "*B T"]]:
    """RAFT of a row whose score is the number y.

    (sum_k p_k v_k - y)^2, where p is the softmax over the whole vocabulary

    NTL-MSE under ``support="full"``, at one position a row: mass off the grid counts
    as a score of 0 and draws the expected score down. Averaged over the rows that have
    a score. Its weight beside cross-entropy is 1, and that cross-entropy leaves the
    score out: see `raft_cross_entropy_weights`.

    Args:
        stats: NumberStats over [*B, T].
        labels: token ids [*B, T].
        vocab: the grid of scores, single tokens worth v.
        scores: where the scores stand [*B, T]; `score_positions` where None. Those
            that are not on the grid do not count.
        weights: non-negative weights [*B, T]; 1 where None.
        ignore_index: the label that counts nothing.

    Returns:
        (value, weight), both f32[*B, T]: the squared error, exactly 0 where the weight
        is 0; and what each counts, 0 everywhere but at the scores.

    Source: RAFT (ICLR 2025); TRACT (ACL 2025, arXiv 2503.04381), ``d223302/TRACT``,
    whose mean over rows is divided by their number once more.
    """
    if scores is None:
        scores = score_positions(labels, vocab, ignore_index=ignore_index)
    weight = token_weights(labels, weights, ignore_index=ignore_index)
    return ntl_mse_from_stats(
        stats,
        labels,
        vocab,
        weights=jnp.where(scores, weight, 0.0),
        ignore_index=ignore_index,
        support="full",
    )

"""The losses that an Objective can hold, each as a function of NumberStats."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float32

from ntl_jax.losses import distances
from ntl_jax.losses.baselines import (
    digit_entropy_from_stats,
    dist2_from_stats,
    ntil_from_stats,
    raft_cross_entropy_weights,
    raft_from_stats,
    smmd_from_stats,
)
from ntl_jax.losses.cross_entropy import cross_entropy_from_stats
from ntl_jax.losses.dot_product import (
    ntl_huber_from_stats,
    ntl_mae_from_stats,
    ntl_mse_from_stats,
)
from ntl_jax.losses.gaussian import gaussian_cross_entropy_from_stats, gaussian_targets
from ntl_jax.losses.number_level import number_level_loss_from_stats
from ntl_jax.losses.stats import NumberStats
from ntl_jax.losses.wasserstein import ntl_was_cdf_from_stats, ntl_was_from_stats
from ntl_jax.numbers.vocab import NumberVocab

# What a term is given: the options of the Objective, the stats, labels, the vocabulary,
# and as keywords weights, ignore_index and segment_ids.
TokenLoss = Callable[..., tuple[Float32[Array, "..."], Float32[Array, "..."]]]


def _over_all_tokens(options: Any, labels, vocab: NumberVocab, weights):
    """RAFT takes the score out of cross-entropy; every other loss leaves it alone."""
    if options.raft is None or options.ce_on_score:
        return weights
    ignore_index = options.ignore_index
    return raft_cross_entropy_weights(
        labels, vocab, weights=weights, ignore_index=ignore_index
    )


def _ce(options, stats, labels, vocab, *, weights, segment_ids, ignore_index):
    del segment_ids
    return cross_entropy_from_stats(
        stats,
        labels,
        vocab,
        weights=_over_all_tokens(options, labels, vocab, weights),
        ignore_index=ignore_index,
        label_smoothing=options.label_smoothing,
        z_loss=options.z_loss,
    )


def _gce(options, stats, labels, vocab, *, weights, segment_ids, ignore_index):
    del segment_ids
    return gaussian_cross_entropy_from_stats(
        stats,
        labels,
        vocab,
        sigma=options.sigma,
        weights=_over_all_tokens(options, labels, vocab, weights),
        ignore_index=ignore_index,
    )


def _was(options, stats, labels, vocab, *, segment_ids, **common):
    del segment_ids
    distance = options.distance
    if options.squash is not None:
        distance = distances.squashed(vocab, options.squash)
    return ntl_was_from_stats(
        stats, labels, vocab, distance=distance, **_softmax(options), **common
    )


def _cdf(options, stats, labels, vocab, *, segment_ids, ignore_index, **common):
    del segment_ids
    target = None
    if options.cdf_target == "gaussian":
        target = gaussian_targets(
            labels, vocab, options.sigma, ignore_index=ignore_index
        )
    return ntl_was_cdf_from_stats(
        stats,
        labels,
        vocab,
        target=target,
        ignore_index=ignore_index,
        **_softmax(options),
        **common,
    )


def _on_expected(loss: TokenLoss) -> TokenLoss:
    def term(options, stats, labels, vocab, *, segment_ids, **common):
        del segment_ids
        return loss(stats, labels, vocab, **_softmax(options), **common)

    return term


def _huber(options, stats, labels, vocab, *, segment_ids, **common):
    del segment_ids
    return ntl_huber_from_stats(
        stats, labels, vocab, delta=options.huber_delta, **_softmax(options), **common
    )


def _number_level(options, stats, labels, vocab, **common):
    return number_level_loss_from_stats(
        stats, labels, vocab, log_space=options.log_space, **common
    )


def _digit_entropy(options, stats, labels, vocab, **common):
    del options
    return digit_entropy_from_stats(stats, labels, vocab, **common)


def _dist2(options, stats, labels, vocab, *, segment_ids, **common):
    del segment_ids
    return dist2_from_stats(
        stats, labels, vocab, tau=options.tau, support=options.support, **common
    )


def _smmd(options, stats, labels, vocab, *, segment_ids, **common):
    del segment_ids
    return smmd_from_stats(stats, labels, vocab, support=options.support, **common)


def _raft(options, stats, labels, vocab, *, segment_ids, **common):
    del options, segment_ids
    return raft_from_stats(stats, labels, vocab, **common)


def _ntil(options, stats, labels, vocab, **common):
    return ntil_from_stats(stats, labels, vocab, digits=options.ntil_digits, **common)


def _softmax(options) -> dict:
    return {"reweigh": options.reweigh, "support": options.support}


# The losses over all labels come first; those that take weights by place are marked.
OVER_ALL = {"ce": _ce, "gce": _gce}
BY_PLACE = {
    "was": _was,
    "cdf": _cdf,
    "mse": _on_expected(ntl_mse_from_stats),
    "mae": _on_expected(ntl_mae_from_stats),
    "huber": _huber,
    "dist2": _dist2,
    "smmd": _smmd,
}
OF_NUMBERS = {
    "number_level": _number_level,
    "digit_entropy": _digit_entropy,
    "ntil": _ntil,
    "raft": _raft,
}
TERMS: dict[str, Callable] = OVER_ALL | BY_PLACE | OF_NUMBERS


def zero_stats(labels: Array, vocab: NumberVocab) -> NumberStats:
    """NumberStats of no logits, for the weights of a loss, which read labels alone."""
    zero = jnp.zeros(labels.shape, jnp.float32)
    numbers = jnp.zeros((*labels.shape, len(vocab)), jnp.float32)
    return NumberStats(zero, zero, numbers, zero)

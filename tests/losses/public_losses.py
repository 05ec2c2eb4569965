"""Every public loss under options that use all of it: the table of their tests."""

import dataclasses
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax import NumberVocab
from ntl_jax.losses import baselines as baselines
from ntl_jax.losses import (
    cross_entropy,
    distances,
    dot_product,
    gaussian,
    number_level_loss,
    optimal_transport,
    stats_from_logits,
    wasserstein,
)
from ntl_jax.losses.reduction import reduce_tokens

# Digits out of order, one of them at id 0, among text, signs and columns without token.
TOKENS = {"5": 0, "a": 1, "0": 2, "9": 3, "b": 4, "1": 5, "4": 6, "2": 7, "8": 8}
TOKENS |= {"3": 9, "7": 10, "6": 12, "-": 13, ".": 15}
COLUMNS = 17
VOCAB = NumberVocab.from_mapping(TOKENS, vocab_size=COLUMNS)
IGNORED = -100
TEXTS = ("a12.04b5", "-7.8a9_5", "6923.-17")  # "_" is ignored


@dataclasses.dataclass(frozen=True)
class Loss:
    """A public loss, and what may be asked of it.

    Attributes:
        call: (logits, labels, vocab, *, weights, reduction, ignore_index) -> loss.
        counts: the labels at which it may be other than 0. "all" that are not ignored,
            "numbers", or "rows" for a loss that says something of several positions at
            once, whose weights are not those of the logits at their places.
        by_row: whether it is one number a row, and not one a position.
        shifts: whether a constant on all logits changes it.
        differs: whether its gradient is not that of its value, on purpose.
    """

    call: Callable[..., jax.Array]
    counts: str = "numbers"
    by_row: bool = False
    shifts: bool = False
    differs: bool = False


def with_target(loss, **options):
    """A loss to a Gaussian around each label."""

    def call(logits, labels, vocab, **common):
        target = gaussian.gaussian_targets(labels, vocab, 1.0)
        return loss(logits, labels, vocab, target=target, **options, **common)

    return call


def with_cost(loss, cost, **options):
    """A loss under a matrix of costs between the numbers."""

    def call(logits, labels, vocab, **common):
        return loss(logits, labels, vocab, **options, **cost(vocab), **common)

    return call


def gaussian_and_ntl(logits, labels, vocab, *, reduction, ignore_index, weights):
    """Gaussian cross-entropy and NTL to the same target, off one set of stats."""
    options = {"ignore_index": ignore_index, "weights": weights}
    stats = stats_from_logits(logits, labels, vocab, ignore_index=ignore_index)
    target = gaussian.gaussian_targets(labels, vocab, 1.0)
    gce = gaussian.gaussian_cross_entropy_from_stats(
        stats, labels, vocab, sigma=1.0, **options
    )
    ntl = wasserstein.ntl_was_cdf_from_stats(
        stats, labels, vocab, target=target, **options
    )
    return reduce_tokens(*gce, reduction) + 0.3 * reduce_tokens(*ntl, reduction)


def plain_cross_entropy(logits, labels, vocab, **options):
    size = vocab.vocab_size
    return cross_entropy(logits, labels, vocab_size=size, **options)


def squashed(vocab):
    return {"distance": distances.squashed(vocab, 3.0)}


def all_wrong_numbers_alike(vocab):
    return {"distance": distances.squashed(vocab, 1.0)}


def circular(vocab):
    return {"distance": distances.circular(vocab, 10)}


def logarithmic(vocab):
    return {"cost": distances.log_scale(vocab)}


# The first word of a key is the name of the function.
LOSSES = {
    "cross_entropy": Loss(plain_cross_entropy, "all"),
    "cross_entropy smoothed": Loss(
        partial(plain_cross_entropy, label_smoothing=0.1), "all"
    ),
    "cross_entropy z": Loss(
        partial(plain_cross_entropy, z_loss=1e-3), "all", shifts=True
    ),
    "ntl_was": Loss(wasserstein.ntl_was),
    "ntl_was full": Loss(partial(wasserstein.ntl_was, support="full")),
    "ntl_was squashed": Loss(with_cost(wasserstein.ntl_was, squashed, reweigh=True)),
    "ntl_was alike": Loss(with_cost(wasserstein.ntl_was, all_wrong_numbers_alike)),
    "ntl_was circular": Loss(with_cost(wasserstein.ntl_was, circular)),
    "ntl_was_cdf": Loss(wasserstein.ntl_was_cdf),
    "ntl_was_cdf target": Loss(with_target(wasserstein.ntl_was_cdf, reweigh=True)),
    "ntl_was_cdf full": Loss(
        with_target(wasserstein.ntl_was_cdf, gaps=False, support="full")
    ),
    "ntl_dot_product": Loss(
        partial(dot_product.ntl_dot_product, penalty=lambda x, y: jnp.hypot(x - y, 1.0))
    ),
    "ntl_mse": Loss(dot_product.ntl_mse),
    "ntl_mae": Loss(partial(dot_product.ntl_mae, reweigh=True)),
    "ntl_huber": Loss(partial(dot_product.ntl_huber, delta=2.0, support="full")),
    "ntl_optimal_transport": Loss(
        with_target(
            with_cost(optimal_transport.ntl_optimal_transport, logarithmic),
            epsilon=0.1,
            iterations=60,
        )
    ),
    "gaussian_cross_entropy": Loss(gaussian.gaussian_cross_entropy, "all"),
    "gaussian_cross_entropy doubled": Loss(
        partial(gaussian.gaussian_cross_entropy, sigma=2.0, form="doubled"), "all"
    ),
    "gaussian_cross_entropy and NTL": Loss(gaussian_and_ntl, "all"),
    "number_level_loss": Loss(number_level_loss, "rows"),
    "number_level_loss log": Loss(partial(number_level_loss, log_space=True), "rows"),
    "number_level_loss ntloss": Loss(
        partial(number_level_loss, mode="ntloss", float_level=True, reweigh=True),
        "rows",
    ),
    "digit_entropy": Loss(baselines.digit_entropy, shifts=True),
    "dist2": Loss(baselines.dist2),
    "dist2 full": Loss(partial(baselines.dist2, tau=4.0, support="full")),
    "ntil": Loss(baselines.ntil, "rows", by_row=True, differs=True),
    "ntil expected": Loss(
        partial(baselines.ntil, digits="expected"), "rows", by_row=True
    ),
    "smmd": Loss(baselines.smmd),
    "raft": Loss(baselines.raft),
}
# The names of functions; under other options they repeat much of what costs time here.
PLAIN_FIRST = [
    pytest.param(name, marks=pytest.mark.slow if " " in name else ()) for name in LOSSES
]


def batch() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits [3, 8, V], labels of TEXTS, and weights, two of them 0."""
    rng = np.random.default_rng(3)
    ids = TOKENS | {"_": IGNORED}
    labels = np.array([[ids[c] for c in text] for text in TEXTS], np.int32)
    logits = 2 * rng.normal(size=(*labels.shape, COLUMNS)).astype(np.float32)
    weights = rng.uniform(0.5, 2, size=labels.shape).astype(np.float32)
    weights[0, 1] = weights[1, 4] = 0  # the first digit of a number, and a text
    return logits, labels, weights


def extremes() -> dict[str, np.ndarray]:
    """Logits that a softmax can fail on."""
    logits, _, _ = batch()
    large = np.where(logits > 1, np.float32(1e30), logits)
    lonely = np.where(logits > 0, -np.float32(np.inf), logits)
    lonely[0, 1] = lonely[2, 0] = -np.inf  # and two positions with nothing else
    off_numbers = logits.copy()
    off_numbers[..., VOCAB.token_ids] = -np.inf
    gap = np.where(logits == logits.max(axis=-1, keepdims=True), 1e4, -1e4)
    return {
        "1e30": large,
        "-1e30": -large,
        "both": np.where(logits < -1, np.float32(-1e30), large),
        "-inf": lonely,
        "-inf on numbers": off_numbers,
        "huge gaps": gap.astype(np.float32),
        "alike": np.full_like(logits, 3e4),
    }


def moved(places: np.ndarray) -> NumberVocab:
    """VOCAB with token i at places[i]."""
    tokens = {token: int(places[i]) for token, i in TOKENS.items()}
    return NumberVocab.from_mapping(tokens, vocab_size=COLUMNS)


def total_and_tokens(name, logits, labels, weights, vocab=VOCAB):
    """(sum, losses [B, T] or [B]) of a loss, checked for dtype and shape."""
    options = {"weights": weights, "ignore_index": IGNORED}
    tokens = LOSSES[name].call(logits, labels, vocab, reduction=None, **options)
    assert tokens.dtype == jnp.float32
    assert tokens.shape == labels.shape[: 1 if LOSSES[name].by_row else None]
    return jnp.sum(tokens), tokens


def losses_and_gradients(logits, labels, weights, vocab=VOCAB):
    """{name: (losses, gradient of their sum)} of the whole table."""

    def one(name):
        f = partial(total_and_tokens, name, vocab=vocab)
        (_, tokens), gradient = jax.value_and_grad(f, has_aux=True)(
            logits, labels, weights
        )
        return tokens, gradient

    return {name: one(name) for name in LOSSES}

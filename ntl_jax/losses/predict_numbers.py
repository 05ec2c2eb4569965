"""The number that a distribution over number tokens expects."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32

from ntl_jax.losses.stats import NumberStats, stats_from_logits
from ntl_jax.numbers.vocab import NumberVocab
from ntl_jax.sharding.auto_axes import on_auto_axes


@on_auto_axes(labels=None)
def predict_numbers(
    logits: Float[Array, "*B V"], vocab: NumberVocab
) -> tuple[Float32[Array, "*B"], Float32[Array, "*B"]]:
    """The expected number at every position, and the probability of any number.

    (sum_k q_k v_k, sum_k p_k), where q is the softmax over the number tokens worth v
    and p that over the vocabulary

    Args:
        logits: [*B, V] of any floating dtype; columns from ``vocab.vocab_size`` on are
            padding.
        vocab: the number tokens.

    Returns:
        (value, mass), both f32[*B]: in the units of ``vocab.values``, and in [0, 1].

    Raises:
        TypeError, ValueError: as `ntl_jax.losses.stats_from_logits` does.

    >>> digits = {str(i): i for i in range(10)} | {"a": 10, "b": 11}
    >>> vocab = NumberVocab.from_mapping(digits, vocab_size=12)
    >>> value, mass = predict_numbers(jnp.zeros(12), vocab)
    >>> round(float(value), 3), round(float(mass), 3)  # 10 of 12 tokens
    (4.5, 0.833)

    Source: ntloss 0.3.2, ``NTLossDotProduct.predict_numbers``.
    """
    labels = jnp.zeros(logits.shape[:-1], jnp.int32)
    return predict_numbers_from_stats(stats_from_logits(logits, labels, vocab), vocab)


@on_auto_axes(labels=None)
def predict_numbers_from_stats(
    stats: NumberStats, vocab: NumberVocab
) -> tuple[Float32[Array, "*B"], Float32[Array, "*B"]]:
    """`predict_numbers` on NumberStats, whatever labels they were made with.

    Args:
        stats: NumberStats over [*B].
        vocab: the number tokens.

    Returns:
        (value, mass), both f32[*B]: in the units of ``vocab.values``, and in [0, 1].

    Source: as `predict_numbers`.
    """
    q = jax.nn.softmax(stats.number_logits, axis=-1)  # [*B, K]
    log_mass = jax.nn.logsumexp(stats.number_logits, axis=-1) - stats.log_sum  # [*B]
    return expected_value(q, vocab), jnp.exp(jnp.minimum(log_mass, 0.0))


def expected_value(
    q: Float32[Array, "*B K"], vocab: NumberVocab
) -> Float32[Array, "*B"]:
    """sum_k q_k v_k, in full float32 on every device.

    Args:
        q: probabilities [*B, K].
        vocab: the number tokens.

    Returns:
        f32[*B], in the units of ``vocab.values``.
    """
    values = jnp.asarray(vocab.values)
    return jnp.einsum("...k,k->...", q, values, precision=jax.lax.Precision.HIGHEST)

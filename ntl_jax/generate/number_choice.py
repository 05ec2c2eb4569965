"""Which number to write down, given a distribution over numbers."""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int

from ntl_jax.losses.predict_numbers import expected_value
from ntl_jax.numbers.vocab import NumberVocab

Rule = Literal["argmax", "expected", "median"]
RULES = ("argmax", "expected", "median")
_SLACK = 1e-6  # of a sum of probabilities that is exactly one half


def argmax_token(
    logits: Float32[Array, "*B V"], vocab: NumberVocab | None, rule: Rule
) -> Int[Array, "*B"]:
    """The likeliest token; where it is a number, the one that the rule puts there.

    `"expected"`: the number token nearest to sum_k q_k v_k, where q is the softmax over
    the number tokens worth v. `"median"`: the smallest v with sum_{v_k <= v} q_k of at
    least 1/2. Among tokens as near, or of the same worth, the likeliest.

    Args:
        logits: [*B, V].
        vocab: the number tokens; None only with `"argmax"`.
        rule: `"argmax"` leaves numbers as they are.

    Returns:
        Token ids [*B].

    >>> digits = {str(i): i for i in range(10)} | {"a": 10}
    >>> vocab = NumberVocab.from_mapping(digits, vocab_size=11)
    >>> p = jnp.array([0.4, 0, 0.15, 0, 0, 0, 0, 0, 0.35, 0.1, 0])  # 0 2 8 9
    >>> for rule in RULES:
    ...     print(rule, argmax_token(jnp.log(p + 1e-9), vocab, rule))
    argmax 0
    expected 4
    median 2
    """
    chosen = jnp.argmax(logits, axis=-1)
    if rule == "argmax" or vocab is None:
        return chosen
    vocab.check_columns(logits.shape[-1])
    ids = jnp.asarray(vocab.token_ids)
    numbers = logits[..., ids]  # [*B, K]
    q = jax.nn.softmax(numbers, axis=-1)
    aim = expected_value(q, vocab) if rule == "expected" else _median(q, vocab)
    values = jnp.broadcast_to(jnp.asarray(vocab.values), q.shape)
    away = jnp.abs(values - aim[..., None])
    nearest = away <= jnp.min(away, axis=-1, keepdims=True)
    best = jnp.argmax(jnp.where(nearest, q, -1.0), axis=-1)
    is_number = jnp.any(chosen[..., None] == jnp.broadcast_to(ids, q.shape), axis=-1)
    return jnp.where(is_number, ids[best], chosen)


def _median(q: Float32[Array, "*B K"], vocab: NumberVocab) -> Float32[Array, "*B"]:
    below = jnp.cumsum(q[..., vocab.order], axis=-1)
    place = jnp.argmax(below >= 0.5 - _SLACK, axis=-1)
    return jnp.asarray(vocab.values[vocab.order])[place]

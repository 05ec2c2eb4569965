"""The loop that gives every row one token after another."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int, Int32

from ntl_jax.generate.decoder import Decoder
from ntl_jax.generate.ending import Ending
from ntl_jax.sharding.constrain import constrain

Pick = Callable[[Float32[Array, "B V"], Int[Array, ""]], Int[Array, "B"]]


def decode_loop(
    decoder: Decoder, pick: Pick, ending: Ending, *, scored: bool
) -> tuple[Int32[Array, "B T"], Float32[Array, "B"]]:
    """Tokens, one after another, until every row has ended.

    Args:
        decoder: has read the input; one beam.
        pick: takes logits and the number of tokens so far, gives each row's token.
        ending: which token ends a row, and how long rows may get.
        scored: whether to add up log-probabilities; they cost a pass over the logits.

    Returns:
        tokens [B, T], pad ids after a row's end, and scores [B]: the sum of the
        tokens' log-probabilities, 0 if not `scored`.
    """

    def choose(state, hidden):
        count, tokens, ended, generated, scores, cache = state
        logits = decoder.logits(hidden, ending.vocab_size)[:, 0]  # [B, V]
        chosen = pick(ending.held_off(logits, count), count).astype(jnp.int32)
        if scored:
            gained = jnp.take_along_axis(logits, chosen[:, None], axis=1)[:, 0]
            gained = gained - jax.nn.logsumexp(logits, axis=-1)
            scores = scores + jnp.where(ended, 0, gained)
        tokens = constrain(jnp.where(ended, ending.pad, chosen), "batch")  # [B]
        generated = jax.lax.dynamic_update_slice(generated, tokens[:, None], (0, count))
        ended = ended | (tokens == ending.token)
        return count + 1, tokens, ended, generated, scores, cache

    def unfinished(state):
        return (state[0] < ending.longest) & ~jnp.all(state[2])

    def step(state):
        count, tokens, *_, cache = state
        hidden, cache = decoder.step(tokens[:, None], count, cache)
        return choose((*state[:-1], cache), hidden)

    batch = decoder.batch
    tokens = jnp.zeros((batch,), jnp.int32)
    generated = jnp.full((batch, ending.longest), ending.pad, jnp.int32)
    ended, scores = jnp.zeros((batch,), bool), jnp.zeros((batch,), jnp.float32)
    if decoder.tokens is not None:
        tokens = decoder.tokens[:, 0]
    state = (jnp.int32(0), tokens, ended, generated, scores, decoder.cache)
    if decoder.hidden is not None:  # of a prompt: it gives the first token
        state = choose(state, decoder.hidden)
    state = jax.lax.while_loop(unfinished, step, state)
    return state[3], state[4]

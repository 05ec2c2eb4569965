"""Decoding with a key/value cache, as one compiled program a shape."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Int32

from ntl_jax.models import Params, T5Config, bind


@partial(jax.jit, static_argnames=("config", "max_new_tokens"))
def greedy(
    config: T5Config,
    params: Params,
    input_ids: Int[Array, "B S"],
    *,
    attention_mask: Bool[Array, "B S"] | Int[Array, "B S"] | None = None,
    max_new_tokens: int,
) -> Int32[Array, "B max_new_tokens"]:
    """The likeliest token, one after another, until every row has ended.

    The encoder runs once, and so do the keys and values that cross-attention reads; a
    step costs one token. The batch may be sharded over devices on its first axis: rows
    do not meet except in the question whether all have ended.

    Args:
        config: the model's config.
        params: the model's parameters.
        input_ids: source tokens.
        attention_mask: true or non-zero where a source token is to be seen; None sees
            them all.
        max_new_tokens: how many tokens a row may have, its end token included.

    Returns:
        Token ids without the start token; after its end token a row holds pad ids.

    Raises:
        ValueError: `max_new_tokens` is below 1, or shapes disagree.

    Source: transformers' `generate(do_sample=False, num_beams=1)`, token for token.
    """
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {max_new_tokens}; it must be at least 1")
    model = bind(config, params)
    encoded = model.encode(input_ids, attention_mask)
    cache = model.start_cache(encoded, attention_mask, max_new_tokens)
    batch = input_ids.shape[0]
    pad = jnp.int32(config.pad_token_id)

    def unfinished(state):
        position, _, ended, _, _ = state
        return (position < max_new_tokens) & ~jnp.all(ended)

    def step(state):
        position, tokens, ended, generated, cache = state
        hidden, cache = model.decode_step(tokens, position, cache)
        logits = model.logits(hidden)[:, 0]  # [B, V]
        chosen = jnp.argmax(logits, axis=-1).astype(jnp.int32)
        tokens = jnp.where(ended, pad, chosen)  # [B]
        ended = ended | (tokens == config.eos_token_id)
        generated = jax.lax.dynamic_update_slice(
            generated, tokens[:, None], (0, position)
        )
        return position + 1, tokens, ended, generated, cache

    start = jnp.full((batch,), config.decoder_start_token_id, jnp.int32)
    generated = jnp.full((batch, max_new_tokens), pad)
    state = (jnp.int32(0), start, jnp.zeros((batch,), bool), generated, cache)
    return jax.lax.while_loop(unfinished, step, state)[3]

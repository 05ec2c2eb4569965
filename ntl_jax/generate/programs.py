"""Greedy decoding, beam search and sampling, each one compiled program a shape."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int, Int32, Key

from ntl_jax.generate.beams import EarlyStopping, search
from ntl_jax.generate.checks import (
    check_beams,
    check_rule,
    check_sampling,
    check_source,
)
from ntl_jax.generate.decode_loop import decode_loop
from ntl_jax.generate.decoder import Decoder, Mask
from ntl_jax.generate.ending import Ending
from ntl_jax.generate.number_choice import Rule, argmax_token
from ntl_jax.generate.warpers import restrict
from ntl_jax.kernels.dropout import RowOffset
from ntl_jax.models import Params
from ntl_jax.numbers.vocab import NumberVocab
from ntl_jax.sharding.mesh import mesh_of, on_mesh

Number = float | Float[Array, ""]
Answers = tuple[Int32[Array, "B T"], Float32[Array, "B"]]
_STATIC = ("config", "mesh", "max_new_tokens", "min_new_tokens", "vocab_size")


def greedy(
    config: Any,
    params: Params,
    input_ids: Int[Array, "B S"],
    *,
    attention_mask: Mask | None = None,
    max_new_tokens: int,
    min_new_tokens: int = 0,
    numbers: Rule = "argmax",
    vocab: NumberVocab | None = None,
    vocab_size: int | None = None,
) -> Int32[Array, "B T"]:
    """The likeliest token, one after another, until every row has ended.

    The source or prompt is read once; a step costs one token. The batch may be sharded
    over devices on its first axis: rows do not meet except in the question whether all
    have ended.

    `numbers` decides what stands where the likeliest token is a number: that token,
    the number token nearest to the expected value of the distribution over number
    tokens, or its median. The expected value has the least squared error, the median
    the least absolute error, if the distribution is right. For answers of one token:
    each digit of 19 or 20 taken for itself may give 15.

    Args:
        config: the model's config.
        params: the model's parameters.
        input_ids: source tokens, or a prompt padded on the left.
        attention_mask: true or non-zero where a token is to be seen; None sees all.
        max_new_tokens: how many tokens a row may have, its end token included.
        min_new_tokens: how many tokens a row has before it may end.
        numbers: `"argmax"`, `"expected"` or `"median"`.
        vocab: the number tokens; not needed for `"argmax"`.
        vocab_size: the logits' real columns; None takes the config's.

    Returns:
        Token ids without the start token; after its end token a row holds pad ids.

    Raises:
        ValueError: an option is out of range, or shapes disagree.

    Source: transformers' `generate(do_sample=False, num_beams=1)`, token for token.
    Decisions by expected error: Lukasik et al. 2024, Regression-aware Inference with
    LLMs.
    """
    check_rule(numbers, vocab, alone=True)
    check_source(config, input_ids, attention_mask)
    return greedy_program(
        config,
        params,
        input_ids,
        mesh=mesh_of(params),
        attention_mask=attention_mask,
        max_new_tokens=max_new_tokens,
        min_new_tokens=min_new_tokens,
        vocab_size=vocab_size,
        numbers=numbers,
        vocab=vocab,
        scored=False,
    )[0]


def beam_search(
    config: Any,
    params: Params,
    input_ids: Int[Array, "B S"],
    *,
    attention_mask: Mask | None = None,
    max_new_tokens: int,
    min_new_tokens: int = 0,
    num_beams: int = 4,
    length_penalty: Number = 1.0,
    early_stopping: EarlyStopping = False,
    vocab_size: int | None = None,
) -> Int32[Array, "B T"]:
    """The best of the answers that the likeliest W beginnings lead to.

    An answer of n tokens, its end token included, is worth its log-probability over
    n ** length_penalty. What a row gets does not depend on the rest of its batch.

    Args:
        config: the model's config.
        params: the model's parameters.
        input_ids: source tokens, or a prompt padded on the left.
        attention_mask: true or non-zero where a token is to be seen; None sees all.
        max_new_tokens: the most tokens of an answer, its end token included.
        min_new_tokens: how many tokens an answer has before it may end.
        num_beams: W; the paper takes 4.
        length_penalty: above 0 favours long answers, under 0 short ones.
        early_stopping: True: a row is done once W answers have ended. False: once no
            beam, at the length it has, beats the worst of W ended answers. `"never"`:
            once none could, at the length where it would be worth most.
        vocab_size: the logits' real columns; None takes the config's.

    Returns:
        Token ids without the start token; after its end token a row holds pad ids.

    Raises:
        ValueError: an option is out of range, or shapes disagree.

    Source: transformers 5, `generate(num_beams=W)`, token for token.
    """
    check_beams(num_beams, length_penalty, early_stopping, False)
    check_source(config, input_ids, attention_mask)
    divisors, favours_long = length_divisors(length_penalty, max_new_tokens)
    return beam_search_program(
        config,
        params,
        input_ids,
        mesh=mesh_of(params),
        attention_mask=attention_mask,
        max_new_tokens=max_new_tokens,
        min_new_tokens=min_new_tokens,
        vocab_size=vocab_size,
        num_beams=num_beams,
        early_stopping=early_stopping,
        divisors=divisors,
        favours_long=favours_long,
    )[0]


def sample(
    config: Any,
    params: Params,
    input_ids: Int[Array, "B S"],
    *,
    key: Key[Array, ""],
    attention_mask: Mask | None = None,
    max_new_tokens: int,
    min_new_tokens: int = 0,
    temperature: Number = 1.0,
    top_k: int | None = None,
    top_p: Number | None = None,
    row_offset: RowOffset = 0,
    vocab_size: int | None = None,
) -> Int32[Array, "B T"]:
    """Tokens drawn from the model's distribution, or from the likelier part of it.

    Draws depend on the key, a row's number and the token's place alone, not on the
    batch that a row comes in, nor on how it is spread over devices.

    Args:
        config: the model's config.
        params: the model's parameters.
        input_ids: source tokens, or a prompt padded on the left.
        key: `jax.random.key(seed)`.
        attention_mask: true or non-zero where a token is to be seen; None sees all.
        max_new_tokens: how many tokens a row may have, its end token included.
        min_new_tokens: how many tokens a row has before it may end.
        temperature: logits are divided by it; above 0.
        top_k: draw from the k likeliest tokens only; None from all.
        top_p: draw from the fewest tokens that have this much probability, after top_k.
        row_offset: added to a row's place in the batch to give its number; one number,
            or one a row.
        vocab_size: the logits' real columns; None takes the config's.

    Returns:
        Token ids without the start token; after its end token a row holds pad ids.

    Raises:
        ValueError: an option is out of range, or shapes disagree.

    Source: transformers' `generate(do_sample=True)`, its order of temperature, top-k
    and top-p.
    """
    check_sampling(True, key, temperature, top_k, top_p)
    check_source(config, input_ids, attention_mask)
    return sample_program(
        config,
        params,
        input_ids,
        mesh=mesh_of(params),
        attention_mask=attention_mask,
        max_new_tokens=max_new_tokens,
        min_new_tokens=min_new_tokens,
        vocab_size=vocab_size,
        key=key,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        row_offset=row_offset,
        scored=False,
    )[0]


def length_divisors(
    length_penalty: Number, longest: int
) -> tuple[Float32[Array, "T+1"], Bool[Array, ""]]:
    """n ** length_penalty for n up to `longest`, and whether it rises with n."""
    lengths = np.arange(longest + 1)
    lengths[0] = 1  # never asked for
    if isinstance(length_penalty, jax.Array):
        divisors = jnp.asarray(lengths, jnp.float32) ** length_penalty
        return divisors, length_penalty > 0
    divisors = np.power(lengths.astype(np.float64), length_penalty)
    return jnp.asarray(divisors, jnp.float32), jnp.asarray(length_penalty > 0)


@partial(jax.jit, static_argnames=(*_STATIC, "numbers", "vocab", "scored"))
def greedy_program(
    config,
    params,
    input_ids,
    *,
    mesh,
    attention_mask,
    max_new_tokens,
    min_new_tokens,
    vocab_size,
    numbers,
    vocab,
    scored,
) -> Answers:
    """`greedy` with scores."""
    ending = Ending.of(config, max_new_tokens, min_new_tokens, vocab_size)

    def pick(logits, count):
        return argmax_token(logits, vocab, numbers)

    with on_mesh(mesh):
        decoder = Decoder(config, params, input_ids, attention_mask, max_new_tokens)
        return decode_loop(decoder, pick, ending, scored=scored)


@partial(jax.jit, static_argnames=(*_STATIC, "num_beams", "early_stopping"))
def beam_search_program(
    config,
    params,
    input_ids,
    *,
    mesh,
    attention_mask,
    max_new_tokens,
    min_new_tokens,
    vocab_size,
    num_beams,
    early_stopping,
    divisors,
    favours_long,
) -> Answers:
    """`beam_search` with scores."""
    ending = Ending.of(config, max_new_tokens, min_new_tokens, vocab_size)
    source = (input_ids, attention_mask, max_new_tokens, num_beams)
    with on_mesh(mesh):
        return search(
            Decoder(config, params, *source),
            ending,
            divisors=divisors,
            favours_long=favours_long,
            early_stopping=early_stopping,
        )


@partial(jax.jit, static_argnames=(*_STATIC, "top_k", "scored"))
def sample_program(
    config,
    params,
    input_ids,
    *,
    mesh,
    attention_mask,
    max_new_tokens,
    min_new_tokens,
    vocab_size,
    key,
    temperature,
    top_k,
    top_p,
    row_offset,
    scored,
) -> Answers:
    """`sample` with scores."""
    ending = Ending.of(config, max_new_tokens, min_new_tokens, vocab_size)
    rows = jnp.arange(input_ids.shape[0], dtype=jnp.int32)
    rows = rows + jnp.asarray(row_offset, jnp.int32)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, rows)  # [B]

    def pick(logits, count):
        at_place = jax.vmap(jax.random.fold_in, (0, None))(keys, count)
        left = restrict(logits, temperature=temperature, top_k=top_k, top_p=top_p)
        return jax.vmap(jax.random.categorical)(at_place, left)

    with on_mesh(mesh):
        decoder = Decoder(config, params, input_ids, attention_mask, max_new_tokens)
        return decode_loop(decoder, pick, ending, scored=scored)

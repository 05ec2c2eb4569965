"""`generate`: one door to every way of choosing tokens."""

from typing import Any, NamedTuple

from jaxtyping import Array, Float32, Int, Int32, Key

from ntl_jax.generate.beams import EarlyStopping
from ntl_jax.generate.checks import (
    check_beams,
    check_rule,
    check_sampling,
    check_source,
)
from ntl_jax.generate.decoder import Mask
from ntl_jax.generate.number_choice import Rule
from ntl_jax.generate.number_distributions import number_distributions
from ntl_jax.generate.programs import (
    Number,
    RowOffset,
    beam_search_program,
    greedy_program,
    length_divisors,
    sample_program,
)
from ntl_jax.losses.checks import check_vocab
from ntl_jax.models import Params
from ntl_jax.numbers.vocab import NumberVocab
from ntl_jax.sharding.mesh import mesh_of


class Generation(NamedTuple):
    """Answers, and on request what they were worth.

    Attributes:
        tokens: ids without the start token or prompt; pad ids after the end token.
        scores: log-probability of the whole answer, its end token included; of beams,
            over length ** length_penalty. None unless asked for.
        numbers: probabilities of the number tokens at every position, see
            `number_distributions`. None unless asked for.
    """

    tokens: Int32[Array, "B T"]
    scores: Float32[Array, "B"] | None = None
    numbers: Float32[Array, "B T K"] | None = None


def generate(
    config: Any,
    params: Params,
    input_ids: Int[Array, "B S"],
    *,
    attention_mask: Mask | None = None,
    max_new_tokens: int,
    min_new_tokens: int = 0,
    num_beams: int = 1,
    length_penalty: Number = 1.0,
    early_stopping: EarlyStopping = False,
    do_sample: bool = False,
    key: Key[Array, ""] | None = None,
    temperature: Number = 1.0,
    top_k: int | None = None,
    top_p: Number | None = None,
    row_offset: RowOffset = 0,
    numbers: Rule = "argmax",
    vocab: NumberVocab | None = None,
    vocab_size: int | None = None,
    return_scores: bool = False,
    return_numbers: bool = False,
) -> Generation:
    """Answers to sources or prompts: greedy, by beam search, or sampled.

    Every shape, and every whole or named option, is one compiled program; temperature,
    top_p and length_penalty may change freely. The batch may be sharded on axis 0.

    Args:
        config: the model's config.
        params: the model's parameters.
        input_ids: sources of an encoder-decoder, else prompts padded on the left.
        attention_mask: true or non-zero where an input token is to be seen; None sees
            them all.
        max_new_tokens: T, the most tokens of an answer, its end token included.
        min_new_tokens: how many tokens an answer has before it may end.
        num_beams: above 1, `beam_search`, with length_penalty and early_stopping.
        length_penalty: see `beam_search`.
        early_stopping: see `beam_search`.
        do_sample: `sample`, with key, temperature, top_k, top_p and row_offset.
        key: see `sample`.
        temperature: see `sample`.
        top_k: see `sample`.
        top_p: see `sample`.
        row_offset: see `sample`.
        numbers: see `greedy`.
        vocab: the number tokens, for `numbers` and `return_numbers`.
        vocab_size: the logits' real columns; others are never chosen. None takes the
            config's.
        return_scores: fill in `scores`.
        return_numbers: fill in `numbers`.

    Returns:
        A Generation.

    Raises:
        ValueError: an option is out of range, or belongs to another way of choosing.

    Source: transformers 5, GenerationMixin.generate.
    """
    shared: dict[str, Any] = {
        "mesh": mesh_of(params),
        "attention_mask": attention_mask,
        "max_new_tokens": max_new_tokens,
        "min_new_tokens": min_new_tokens,
        "vocab_size": vocab_size,
    }
    check_beams(num_beams, length_penalty, early_stopping, do_sample)
    check_sampling(do_sample, key, temperature, top_k, top_p)
    check_rule(numbers, vocab, alone=not do_sample and num_beams == 1)
    check_source(config, input_ids, attention_mask)
    if return_numbers:
        if vocab is None:
            raise ValueError("return_numbers=True needs vocab, a NumberVocab")
        check_vocab(vocab)
    if do_sample:
        drawn = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        drawn |= {"key": key, "row_offset": row_offset, "scored": return_scores}
        tokens, scores = sample_program(config, params, input_ids, **shared, **drawn)
    elif num_beams > 1:
        divisors, favours_long = length_divisors(length_penalty, max_new_tokens)
        beams = {"num_beams": num_beams, "early_stopping": early_stopping}
        beams |= {"divisors": divisors, "favours_long": favours_long}
        tokens, scores = beam_search_program(
            config, params, input_ids, **shared, **beams
        )
    else:
        plain = {"numbers": numbers, "vocab": vocab, "scored": return_scores}
        tokens, scores = greedy_program(config, params, input_ids, **shared, **plain)
    number_probs = None
    if return_numbers:
        assert vocab is not None
        number_probs = number_distributions(
            config, params, input_ids, tokens, vocab, attention_mask=attention_mask
        )
    return Generation(tokens, scores if return_scores else None, number_probs)

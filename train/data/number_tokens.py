"""Which tokens are numbers, and how many of the answers' digits land on them."""

import logging
from typing import cast

from ntl_jax import NumberVocab
from ntl_jax.models import AnyConfig
from ntl_jax.numbers.grammar import find_numbers
from ntl_jax.numbers.place_tokens import LARGEST_PLACE, SMALLEST_PLACE
from ntl_jax.numbers.vocab import Policy
from ntl_jax.tokenization import (
    RegressionTransformerTokenizer,
    Tokenizer,
    read_place_digit,
)
from train.config import NUMBER_TERMS, ConfigError, TrainConfig
from train.data.inputs import Inputs
from train.heads import head_of

logger = logging.getLogger("train")

COVERAGE_ROWS = 1000
_DIGITS = frozenset("0123456789")
LOWEST_COVERAGE = 0.5
_LOW_COVERAGE = {
    "digits": "train with --split-digits or --number-policy numbers,",
    "places": "tokens have places "
    f"from 10^{SMALLEST_PLACE} to 10^{LARGEST_PLACE} alone; take numbers within them, "
    "leave out --number-tokens places,",
}


def number_vocab(tokenizer: Tokenizer, vocab_size: int, policy: str) -> NumberVocab:
    """The number tokens under a policy; tokens with places count as their digits."""
    if isinstance(tokenizer, RegressionTransformerTokenizer):
        return NumberVocab.from_tokenizer(
            tokenizer, vocab_size=vocab_size, policy=read_place_digit
        )
    return NumberVocab.from_tokenizer(
        tokenizer, vocab_size=vocab_size, policy=cast(Policy, policy)
    )


def make_vocab(config: TrainConfig, model: AnyConfig, inputs: Inputs) -> NumberVocab:
    """The number tokens, after checking that the answers' digits land on them.

    Raises:
        ConfigError: no number tokens, or a number loss that would see under half of
            the digits, or no number at all.
    """
    try:
        vocab = number_vocab(inputs.tokenizer, model.vocab_size, config.number_policy)
    except ValueError as error:
        raise ConfigError(f"--tokenizer {config.tokenizer}: {error}") from error
    how = head_of(model).describe_numbers(inputs.scale)
    if how is not None:
        logger.info("%s", how)
        return vocab
    answers = [row["answer"] for row in inputs.splits.train[:COVERAGE_ROWS]]
    coverage = vocab.coverage(inputs.tokenizer, answers)
    longest = config.data.max_target_length
    seen = vocab.coverage(inputs.tokenizer, answers, max_length=longest)
    if any(set(answer) & _DIGITS for answer in answers):
        share = f"{coverage:.1%} of the digits in the answers are number tokens"
        if seen < coverage:
            share += f", {seen:.1%} before --data.max-target-length {longest} cuts them"
    else:
        share = f"the first {len(answers)} training answers hold no digit"
    logger.info("%s", share)
    has_number_loss = any(
        getattr(config.loss, term) is not None for term in NUMBER_TERMS
    )
    if (
        has_number_loss
        and not config.allow_low_coverage
        and not any(find_numbers(answer, fractions=True) for answer in answers)
    ):
        raise ConfigError(
            f"the first {len(answers)} training answers hold no number, so a number "
            "loss would see nothing: train with cross entropy alone (--loss.was None), "
            "or accept it with --allow-low-coverage."
        )
    if has_number_loss and seen < LOWEST_COVERAGE and not config.allow_low_coverage:
        if coverage < LOWEST_COVERAGE:
            remedy = _LOW_COVERAGE[config.number_tokens]
        else:
            remedy = f"raise --data.max-target-length {longest}, which cuts answers,"
        raise ConfigError(
            f"only {seen:.1%} of the digits in the answers land on number tokens, so a "
            f"number loss would see little of them: {remedy} or accept it with "
            "--allow-low-coverage."
        )
    return vocab

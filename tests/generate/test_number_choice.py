"""Which number is written down: on distributions made by hand, then in decoding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax import NumberVocab
from ntl_jax.generate import generate, greedy
from ntl_jax.generate.number_choice import argmax_token
from ntl_jax.models import T5Config, bind, init_params
from tests.generate.answers import SMALLER, inputs_of
from tests.models.cases import t5_batch as batch

WORDS = {"a": 10, "b": 11}
DIGITS = NumberVocab.from_mapping(
    {str(i): i for i in range(10)} | WORDS, vocab_size=12, policy="digits"
)


def chosen(probabilities: dict[int, float], rule, vocab=DIGITS, columns=12):
    p = np.full(columns, 1e-12, np.float32)
    for token, share in probabilities.items():
        p[token] = share
    return int(argmax_token(jnp.log(jnp.asarray(p)), vocab, rule))


@pytest.mark.parametrize(
    ("probabilities", "argmax", "expected", "median"),
    [
        ({3: 1.0}, 3, 3, 3),
        ({0: 0.4, 2: 0.15, 8: 0.35, 9: 0.1}, 0, 4, 2),  # mean 4.0
        ({0: 0.4, 9: 0.3, 8: 0.3}, 0, 5, 8),  # mean 5.1
        ({1: 0.5, 3: 0.5}, 1, 2, 1),  # half of it lies at 1: the lower median
        ({0: 0.6, 1: 0.4}, 0, 0, 0),  # mean 0.4
        ({2: 0.45, 3: 0.55}, 3, 3, 3),  # mean 2.55
        ({10: 0.5, 1: 0.3, 9: 0.2}, 10, 10, 10),  # the likeliest is no number
        ({10: 0.3, 1: 0.4, 9: 0.3}, 1, 4, 1),  # mean of numbers alone: 4.43
    ],
)
def test_by_hand(probabilities, argmax, expected, median):
    assert chosen(probabilities, "argmax") == argmax
    assert chosen(probabilities, "expected") == expected
    assert chosen(probabilities, "median") == median


def test_unsorted_values_and_several_tokens_of_one_worth():
    tokens = {"7": 0, "▁3": 1, "100": 2, "3": 3, "▁5": 4, "a": 5}
    vocab = NumberVocab.from_mapping(tokens, vocab_size=6, policy="numbers")
    spread = {0: 0.3, 1: 0.16, 3: 0.24, 4: 0.1, 2: 0.2}  # 7 3 3 5 100
    assert chosen(spread, "argmax", vocab, 6) == 0
    assert chosen(spread, "median", vocab, 6) == 4  # 0.4 at 3, 0.5 at 5
    assert chosen(spread, "expected", vocab, 6) == 0  # mean 23.8, 7 is nearest
    low = {1: 0.3, 3: 0.35, 4: 0.35}
    assert chosen(low, "median", vocab, 6) == 3  # of two tokens worth 3 the likelier
    swapped = {1: 0.36, 3: 0.3, 4: 0.34}
    assert chosen(swapped, "median", vocab, 6) == 1


def test_neighbours_as_near_as_each_other_go_by_likelihood():
    halves = NumberVocab.from_mapping({"1": 0, "3": 1, "a": 2}, vocab_size=3)
    assert chosen({0: 0.5, 1: 0.5}, "expected", halves, 3) == 0  # 2 from both
    many = {1: 0.25, 2: 0.25, 3: 0.25, 4: 0.25}
    assert chosen(many, "expected") == 2


def test_the_right_decision_for_each_error():
    draw = np.random.default_rng(0)
    logits = jnp.asarray(draw.normal(size=(300, 12)).astype(np.float32) * 2)
    logits = logits.at[:, 10:].set(-9.0)  # always a number
    q = np.asarray(jax.nn.softmax(logits[:, :10]))
    off = np.arange(10)[:, None] - np.arange(10)[None]  # [guess, truth]
    for rule, error in (("expected", off**2), ("median", np.abs(off))):
        cost = q @ error.T  # [300, guess]
        picked = np.asarray(argmax_token(logits, DIGITS, rule))
        best = cost[np.arange(300), picked]
        np.testing.assert_allclose(best, cost.min(axis=1), rtol=1e-4)
        plain = cost[np.arange(300), np.asarray(argmax_token(logits, DIGITS, "argmax"))]
        assert (plain > best + 1e-3).any()


CONFIG = T5Config(vocab_size=50, tie_word_embeddings=False, **SMALLER)
NUMBERS = NumberVocab.from_mapping(
    {str(i): 20 + i for i in range(10)} | {"a": 30}, vocab_size=50
)


def numeric_params():
    """A model that likes to write digits."""
    params = init_params(CONFIG, jax.random.key(3))
    kernel = 0.3 * params["lm_head"]["kernel"]
    kernel = kernel.at[:, 20:30].multiply(2.5)
    return {**params, "lm_head": {"kernel": kernel}}


@pytest.mark.parametrize("rule", ["expected", "median"])
def test_every_step_of_decoding_chooses_so(rule):
    params, data = numeric_params(), inputs_of(batch(rows=6))
    options = {"numbers": rule, "vocab": NUMBERS, "max_new_tokens": 6}
    tokens = greedy(CONFIG, params, **data, **options)
    before = jnp.concatenate([jnp.zeros((6, 1), jnp.int32), tokens[:, :-1]], axis=1)
    mask = jnp.asarray(data["attention_mask"])
    logits = bind(CONFIG, params)(
        jnp.asarray(data["input_ids"]), before, attention_mask=mask
    )
    ended = np.cumsum(np.asarray(before[:, 1:] == 1), axis=1) > 0
    live = np.concatenate([np.ones((6, 1), bool), ~ended], axis=1)
    want = np.asarray(argmax_token(logits, NUMBERS, rule))
    assert np.array_equal(np.asarray(tokens)[live], want[live])
    plain = np.asarray(argmax_token(logits, None, "argmax"))
    assert (want[live] != plain[live]).any()  # the rule changes something
    assert not np.isin(plain[live], np.arange(20, 30)).all()  # and not everything


def test_plain_numbers_are_plain_greedy_decoding():
    params, data = numeric_params(), inputs_of(batch(rows=6))
    want = greedy(CONFIG, params, **data, max_new_tokens=6)
    got = generate(
        CONFIG, params, **data, max_new_tokens=6, numbers="argmax", vocab=NUMBERS
    )
    assert np.array_equal(got.tokens, want)

"""Beam search against transformers, token for token, and by its own rules."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ntl_jax.generate import beam_search, generate, greedy
from ntl_jax.generate.programs import beam_search_program
from ntl_jax.models import T5Config, init_params
from ntl_jax.sharding.mesh import batch_sharding, make_mesh
from ntl_jax.sharding.rules import param_shardings
from tests.generate.answers import (
    END,
    NEW_TOKENS,
    PAD,
    SMALLER,
    inputs_of,
    lively_t5,
    torch_answers,
)
from tests.models.cases import ours, perturbed
from tests.models.cases import t5_batch as batch

SCORE_TOLERANCE = 1e-5  # relative: a score is a sum of a dozen logarithms
CONFIG = T5Config(vocab_size=50, tie_word_embeddings=False, **SMALLER)
PENALTIES = (1.0, 0.0, -1.0, 2.0)


def search(config, params, data, **options):
    options = {"max_new_tokens": NEW_TOKENS, "num_beams": 4} | options
    return generate(config, params, **inputs_of(data), **options, return_scores=True)


def small_params(seed=0):
    return jax.jit(init_params, static_argnums=0)(CONFIG, jax.random.key(seed))


def test_tokens_and_scores_equal_transformers():
    ended, full, differed = 0, 0, 0
    for seed in range(20):
        kind = "t5_v1_0" if seed % 6 == 0 else "t5_v1_1"
        model, data = lively_t5(kind, seed), batch(seed, rows=4)
        config, params = ours(model)
        want, scores = torch_answers(model, data, num_beams=4)
        got = search(config, params, data)
        assert np.array_equal(got.tokens, want), seed
        np.testing.assert_allclose(got.scores, scores, rtol=SCORE_TOLERANCE)
        ended += (want == END).any(axis=1).sum()
        full += (want != END).all(axis=1).sum()
        wrong = search(config, perturbed(params, "decoder/final_norm/scale"), data)
        differed += not np.array_equal(wrong.tokens, want)
    assert ended > 10 and full > 10  # rows that end and rows that do not
    assert differed > 10  # and the comparison can fail


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
def test_stopping_rules_and_length_penalties_equal_transformers(early_stopping):
    answers = set()
    for seed, penalty in enumerate(PENALTIES):
        model, data = lively_t5("t5_v1_1", seed), batch(seed, rows=4)
        config, params = ours(model)
        options = {"early_stopping": early_stopping, "length_penalty": penalty}
        want, scores = torch_answers(model, data, num_beams=4, **options)
        got = search(config, params, data, **options)
        assert np.array_equal(got.tokens, want), (seed, penalty)
        np.testing.assert_allclose(got.scores, scores, rtol=SCORE_TOLERANCE)
        answers |= {tuple(row) for row in want.tolist()}
    assert len(answers) > 8


def test_stopping_rules_and_penalties_matter():
    answers = {}
    options = [(False, 1.0), (True, 1.0), (False, -1.0), (False, 2.0), ("never", 2.0)]
    for rule, penalty in options:
        tokens = [
            search(
                *ours(lively_t5("t5_v1_1", seed)),
                batch(seed, rows=4),
                early_stopping=rule,
                length_penalty=penalty,
            ).tokens
            for seed in range(12)
        ]
        answers[np.concatenate(tokens).tobytes()] = rule, penalty
    assert len(answers) == len(options), answers.values()


@pytest.mark.parametrize("beams", [2, 7])
def test_other_numbers_of_beams_equal_transformers(beams):
    for seed in range(4):
        model, data = lively_t5("t5_v1_1", seed), batch(seed, rows=4)
        want, scores = torch_answers(model, data, num_beams=beams)
        got = search(*ours(model), data, num_beams=beams)
        assert np.array_equal(got.tokens, want), seed
        np.testing.assert_allclose(got.scores, scores, rtol=SCORE_TOLERANCE)


def test_the_least_length_holds_the_end_off_as_in_transformers():
    before = 0
    for seed in range(6):
        model, data = lively_t5("t5_v1_1", seed), batch(seed, rows=4)
        config, params = ours(model)
        want, _ = torch_answers(model, data, num_beams=4, min_new_tokens=6)
        got = search(config, params, data, min_new_tokens=6)
        assert np.array_equal(got.tokens, want), seed
        assert not (got.tokens[:, :6] == END).any()
        free = search(config, params, data)
        before += (np.asarray(free.tokens)[:, :6] == END).any(axis=1).sum()
    assert before > 0


def test_one_token():
    model, data = lively_t5("t5_v1_1", 0), batch(0, rows=4)
    config, params = ours(model)
    got = search(config, params, data, max_new_tokens=1)
    first = greedy(config, params, **inputs_of(data), max_new_tokens=1)
    assert np.array_equal(got.tokens, first)  # the likeliest token is the best answer
    want, scores = torch_answers(model, data, num_beams=4, new_tokens=1)
    assert np.array_equal(got.tokens, want)
    np.testing.assert_allclose(got.scores, scores, rtol=SCORE_TOLERANCE)


def test_ties_go_to_the_lower_token():
    params = small_params()
    flat = jax.tree.map(jnp.zeros_like, params)  # every token is as likely
    # -log(50) a token: the longest answer and the shortest tie without a penalty.
    got = search(CONFIG, flat, batch(), length_penalty=1.0)
    assert np.isclose(got.scores, -np.log(50)).all()
    tokens = np.asarray(got.tokens)
    assert (tokens == tokens[:1]).all()  # whatever wins, it is the same in all rows
    again = search(CONFIG, flat, batch(seed=3), length_penalty=1.0)
    assert np.array_equal(again.tokens, tokens)


def test_answers_do_not_depend_on_the_rest_of_the_batch():
    for seed in range(4):
        config, params = ours(lively_t5("t5_v1_1", seed))
        data = batch(seed, rows=4)
        together = search(config, params, data, early_stopping=True)
        for row in range(4):
            one = {name: x[row : row + 1] for name, x in data.items()}
            alone = search(config, params, one, early_stopping=True)
            assert np.array_equal(alone.tokens[0], together.tokens[row])
            np.testing.assert_allclose(
                alone.scores[0], together.scores[row], rtol=SCORE_TOLERANCE
            )


def test_more_beams_find_likelier_answers():
    gained = 0
    for seed in range(6):
        config, params = ours(lively_t5("t5_v1_1", seed))
        data, options = batch(seed, rows=4), {"length_penalty": 0.0}
        few = search(config, params, data, num_beams=2, **options).scores
        many = search(config, params, data, num_beams=12, **options).scores
        gained += float(jnp.sum(many - few))
    assert gained > 0.1


def test_sharded_batch_gives_the_same_tokens():
    params, data = small_params(), batch(rows=8)
    want = search(CONFIG, params, data)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    rows, everywhere = (
        NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), ())
    )
    got = search(CONFIG, jax.device_put(params, everywhere), jax.device_put(data, rows))
    assert len(got.tokens.sharding.device_set) == 8
    assert np.array_equal(got.tokens, want.tokens)
    np.testing.assert_allclose(got.scores, want.scores, rtol=SCORE_TOLERANCE)


def test_sharded_parameters_give_the_same_tokens():
    params, data = small_params(), batch(rows=8)
    mesh = make_mesh(2, 2, 2)
    spread = jax.device_put(params, param_shardings(CONFIG, params, mesh))
    data_there = jax.device_put(data, batch_sharding(mesh))
    for beams in (1, 4):
        want = search(CONFIG, params, data, num_beams=beams)
        got = search(CONFIG, spread, data_there, num_beams=beams)
        assert np.array_equal(got.tokens, want.tokens)
        np.testing.assert_allclose(got.scores, want.scores, rtol=SCORE_TOLERANCE)


def test_one_program_serves_every_batch_and_penalty():
    params = small_params()
    before = beam_search_program._cache_size()
    for seed, penalty in enumerate((1.0, 0.3, -2.0)):
        data = inputs_of(batch(seed, rows=5))
        options = {"length_penalty": penalty, "max_new_tokens": 5}
        beam_search(CONFIG, params, **data, **options)
    assert beam_search_program._cache_size() == before + 1


def test_a_traced_penalty_gives_what_a_number_gives():
    params, data = small_params(), batch(rows=4)

    def under(penalty):
        options = {"num_beams": 3, "max_new_tokens": 6, "length_penalty": penalty}
        return beam_search(CONFIG, params, **inputs_of(data), **options)

    for penalty in (1.0, -1.5):
        traced = jax.jit(under)(jnp.float32(penalty))
        assert np.array_equal(traced, under(penalty))


def test_padding_columns_are_never_chosen():
    params, data = small_params(), batch(rows=4)
    free = search(CONFIG, params, data)
    cut = int(np.max(free.tokens))  # the largest token of the answers is forbidden
    assert cut > 2
    got = search(CONFIG, params, data, vocab_size=cut)
    assert np.max(got.tokens) < cut


def test_bfloat16_decodes():
    low = dataclasses.replace(CONFIG, dtype="bfloat16")
    got = search(low, small_params(), batch())
    assert ((got.tokens >= 0) & (got.tokens < 50)).all()
    assert np.isfinite(got.scores).all()
    # After its end a row holds padding alone.
    ends = np.asarray(got.tokens == END).astype(int)
    after = ends.cumsum(axis=1) - ends > 0
    assert (np.asarray(got.tokens)[after] == PAD).all()

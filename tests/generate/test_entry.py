"""`generate`: what it returns on request, and what it refuses."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ntl_jax import NumberVocab
from ntl_jax.generate import beam_search, generate, greedy, number_distributions, sample
from ntl_jax.generate.ending import Ending
from ntl_jax.models import T5Config, bind, init_params
from tests.generate.answers import SMALLER, inputs_of
from tests.models.cases import t5_batch as batch

CONFIG = T5Config(vocab_size=50, tie_word_embeddings=False, **SMALLER)
NUMBERS = NumberVocab.from_mapping(
    {str(i): 20 + i for i in range(10)} | {"a": 30}, vocab_size=50
)
KEY = jax.random.key(0)
T = 8


@pytest.fixture(scope="module")
def params():
    params = jax.jit(init_params, static_argnums=0)(CONFIG, jax.random.key(0))
    kernel = 0.2 * params["lm_head"]["kernel"]
    return {**params, "lm_head": {"kernel": kernel.at[:, 1].multiply(4)}}


def run(params, **options):
    options = {"max_new_tokens": T} | options
    return generate(CONFIG, params, **inputs_of(batch(rows=4)), **options)


def teacher_forced(params, tokens):
    """Logits [B, T, V] of the answers' positions, and which positions count."""
    data = batch(rows=4)
    before = jnp.concatenate([jnp.zeros((4, 1), jnp.int32), tokens[:, :-1]], axis=1)
    mask = jnp.asarray(data["attention_mask"])
    source = jnp.asarray(data["input_ids"])
    logits = bind(CONFIG, params)(source, before, attention_mask=mask)
    ends = np.cumsum(np.asarray(tokens) == 1, axis=1) - (np.asarray(tokens) == 1)
    return logits, ends == 0


@pytest.mark.parametrize(
    "options",
    [{}, {"num_beams": 3}, {"do_sample": True, "key": KEY, "temperature": 1.5}],
    ids=["greedy", "beams", "sampled"],
)
def test_scores_and_numbers_are_the_model_s_own(params, options):
    out = run(params, **options, vocab=NUMBERS, return_scores=True, return_numbers=True)
    logits, live = teacher_forced(params, out.tokens)
    gained = np.asarray(jax.nn.log_softmax(logits))
    gained = np.take_along_axis(gained, np.asarray(out.tokens)[..., None], axis=2)
    scores = (gained[..., 0] * live).sum(axis=1)
    if "num_beams" in options:
        scores = scores / live.sum(axis=1)
    np.testing.assert_allclose(out.scores, scores, rtol=1e-5)
    want = np.asarray(jax.nn.softmax(logits[..., 20:30])) * live[..., None]
    assert out.numbers.shape == (4, T, 10)
    np.testing.assert_allclose(out.numbers, want, atol=1e-6)
    bare = run(params, **options)
    assert bare.scores is None and bare.numbers is None
    assert np.array_equal(bare.tokens, out.tokens)


def test_numbers_after_the_end_are_nothing(params):
    tokens = jnp.array([[22, 1, 0, 0], [22, 23, 24, 1], [5, 6, 7, 8], [1, 0, 0, 0]])
    data = inputs_of(batch(rows=4))
    mask = data.pop("attention_mask")
    q = number_distributions(
        CONFIG, params, **data, tokens=tokens, vocab=NUMBERS, attention_mask=mask
    )
    sums = [[1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1], [1, 0, 0, 0]]
    np.testing.assert_allclose(q.sum(axis=-1), sums, atol=1e-6)


def test_generate_is_the_three_ways(params):
    data, free = inputs_of(batch(rows=4)), {"max_new_tokens": T}
    plain = greedy(CONFIG, params, **data, **free)
    assert np.array_equal(run(params).tokens, plain)
    beams = beam_search(CONFIG, params, **data, **free, num_beams=3)
    assert np.array_equal(run(params, num_beams=3).tokens, beams)
    drawn = sample(CONFIG, params, **data, **free, key=KEY, top_k=9)
    got = run(params, do_sample=True, key=KEY, top_k=9)
    assert np.array_equal(got.tokens, drawn)
    ways = {plain.tobytes(), beams.tobytes(), drawn.tobytes()}
    assert len(ways) == 3


def test_a_model_without_an_end_token_writes_to_the_last():
    endless = SimpleNamespace(eos_token_id=None, pad_token_id=None, vocab_size=50)
    ending = Ending.of(endless, T, 3)
    assert ending.pad == 0
    logits = jnp.zeros((2, 50))
    assert np.array_equal(ending.held_off(logits, jnp.int32(0)), logits)
    assert not (jnp.argmax(logits, axis=-1) == ending.token).any()


def test_the_least_length_of_greedy_answers(params):
    free = np.asarray(run(params, max_new_tokens=40).tokens)
    held = np.asarray(run(params, max_new_tokens=40, min_new_tokens=40).tokens)
    assert (free == 1).any()
    assert not (held == 1).any()
    for row, other in zip(free, held, strict=True):
        end = np.flatnonzero(row == 1)
        upto = end[0] if len(end) else 40
        assert np.array_equal(row[:upto], other[:upto])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"max_new_tokens": 1.5}, "max_new_tokens is 1.5; it must be a whole number"),
        ({"min_new_tokens": 9}, "min_new_tokens is 9.*max_new_tokens, 8"),
        ({"min_new_tokens": -1}, "min_new_tokens is -1"),
        ({"vocab_size": 51}, "vocab_size is 51, but the model has 50"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"num_beams": 0}, "num_beams is 0"),
        ({"num_beams": 2, "early_stopping": "soon"}, "early_stopping is 'soon'"),
        ({"early_stopping": True}, "num_beams is 1"),
        ({"length_penalty": 2.0}, "num_beams is 1"),
        ({"num_beams": 4, "do_sample": True, "key": KEY}, "num_beams is 4: take 1"),
        ({"do_sample": True}, "needs key"),
        ({"key": KEY, "top_k": 3}, "key, top_k: only for sampling"),
        ({"temperature": 0.5}, "temperature: only for sampling"),
        ({"do_sample": True, "key": KEY, "temperature": 0.0}, "temperature is 0.0"),
        ({"do_sample": True, "key": KEY, "temperature": jnp.zeros(())}, "is 0.0"),
        ({"do_sample": True, "key": KEY, "top_p": jnp.float32(2)}, "top_p is 2.0"),
        ({"do_sample": True, "key": KEY, "top_p": np.float32(0)}, "top_p is 0.0"),
        ({"num_beams": 2, "length_penalty": float("nan")}, "length_penalty is nan"),
        ({"do_sample": True, "key": KEY, "top_k": 0}, "top_k is 0"),
        ({"do_sample": True, "key": KEY, "top_p": 0.0}, "top_p is 0.0"),
        ({"do_sample": True, "key": KEY, "top_p": 1.5}, "top_p is 1.5"),
        ({"numbers": "mean"}, "numbers is 'mean'"),
        ({"numbers": "median"}, "needs vocab"),
        ({"numbers": "median", "vocab": NUMBERS, "num_beams": 2}, "for greedy"),
        ({"return_numbers": True}, "return_numbers=True needs vocab"),
    ],
    ids=str,
)
def test_refusals(params, options, message):
    with pytest.raises(ValueError, match=message):
        run(params, **options)


IDS = np.full((2, 3), 7)


@pytest.mark.parametrize(
    ("ids", "mask", "message"),
    [
        (IDS[:0], None, r"shape \(0, 3\) hold nothing to answer"),
        (jnp.asarray(IDS[:, :0]), None, r"shape \(2, 0\) hold nothing to answer"),
        (IDS + 43, None, "6 input_ids, the first 50, are no tokens of the model's 50"),
        (-IDS, IDS, "the first -7, are no tokens"),
    ],
)
def test_what_is_no_source(params, ids, mask, message):
    with pytest.raises(ValueError, match=message):
        generate(CONFIG, params, ids, attention_mask=mask, max_new_tokens=T)


def test_ids_that_nobody_sees_may_be_anything(params):
    mask = np.array([[0, 1, 1], [1, 1, 0]])
    known = np.where(mask, IDS, 0)
    got, want = (
        generate(CONFIG, params, ids, attention_mask=mask, max_new_tokens=T).tokens
        for ids in (np.where(mask, IDS, 50_000), known)
    )
    assert np.array_equal(got, want)


@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto])
def test_a_batch_over_axes_that_are_jaxs_default(params, kind):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(kind,))
    ids = jax.device_put(IDS, NamedSharding(mesh, PartitionSpec("data")))
    if kind is AxisType.Auto:
        generate(CONFIG, params, ids, max_new_tokens=T)
        return
    with pytest.raises(ValueError, match=r"'data'.*Explicit"):
        generate(CONFIG, params, ids, max_new_tokens=T)


def test_what_is_of_another_kind(params, monkeypatch):
    # Past the test-only shape checker: users meet our errors, not its.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(TypeError, match=r"input_ids .*float64"):
        generate(CONFIG, params, IDS + 0.5, max_new_tokens=T)
    for options in ({"numbers": "median"}, {"return_numbers": True}):
        with pytest.raises(TypeError, match=r"NumberVocab.* dict"):
            run(params, **options, vocab={"1": 1})
    for several in ([1, 2], (1, 2)):
        config = dataclasses.replace(CONFIG, eos_token_id=several)
        with pytest.raises(ValueError, match=r"eos_token_id .*1, 2"):
            generate(config, params, IDS, max_new_tokens=T)


@pytest.mark.parametrize("way", [greedy, beam_search])
def test_many_models_answer_as_one_program(way):
    keys = jax.random.split(jax.random.key(0), 3)
    many = jax.vmap(lambda key: init_params(CONFIG, key))(keys)
    data = inputs_of(batch(rows=4))

    def answer(params):
        return way(CONFIG, params, **data, max_new_tokens=T)

    together = jax.jit(jax.vmap(answer))(many)
    for number in range(3):
        one = jax.tree.map(lambda leaf, i=number: leaf[i], many)
        assert np.array_equal(together[number], answer(one))
    assert not np.array_equal(together[0], together[1])

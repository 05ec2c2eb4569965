"""Sampling: what is drawn from, that it is drawn from, and what draws depend on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from scipy import stats

from ntl_jax.generate import generate, greedy, sample
from ntl_jax.generate.programs import sample_program
from ntl_jax.generate.warpers import restrict
from ntl_jax.models import T5Config, bind, init_params
from tests.generate.answers import SMALLER, inputs_of
from tests.models.cases import t5_batch as batch

CONFIG = T5Config(vocab_size=50, tie_word_embeddings=False, **SMALLER)
FEW = T5Config(vocab_size=8, tie_word_embeddings=False, **SMALLER)
KEY = jax.random.key(7)


@pytest.fixture(scope="module")
def params():
    return jax.jit(init_params, static_argnums=0)(CONFIG, jax.random.key(0))


def draw(params, data, **options):
    options = {"key": KEY, "max_new_tokens": 6} | options
    return np.asarray(sample(CONFIG, params, **inputs_of(data), **options))


def torch_restricted(logits, temperature, top_k, top_p):
    torch = pytest.importorskip("torch")
    from transformers.generation import logits_process as warpers

    scores = torch.from_numpy(logits)
    scores = warpers.TemperatureLogitsWarper(temperature)(None, scores)
    if top_k is not None:
        scores = warpers.TopKLogitsWarper(top_k)(None, scores)
    if top_p is not None:
        scores = warpers.TopPLogitsWarper(top_p)(None, scores)
    return scores.numpy()


def assert_restricted_alike(logits, temperature, top_k, top_p):
    got = restrict(
        jnp.asarray(logits), temperature=temperature, top_k=top_k, top_p=top_p
    )
    want = torch_restricted(logits, temperature, top_k, top_p)
    assert np.array_equal(np.isfinite(got), np.isfinite(want))
    kept = np.isfinite(want)
    np.testing.assert_allclose(np.asarray(got)[kept], want[kept], rtol=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_k=st.sampled_from([None, 1, 3, 10, 40, 99]),
    top_p=st.sampled_from([None, 0.05, 0.5, 0.9, 0.999]),
)
def test_what_is_left_is_what_transformers_leaves(seed, temperature, top_k, top_p):
    logits = np.random.default_rng(seed).normal(size=(3, 40)).astype(np.float32) * 2
    assert_restricted_alike(logits, temperature, top_k, top_p)


def test_the_order_of_temperature_and_cuts_matters():
    logits = np.random.default_rng(0).normal(size=(3, 40)).astype(np.float32) * 2
    with pytest.raises(AssertionError):  # top-p after temperature, not before
        early = torch_restricted(logits, 1.0, None, 0.7)
        late = torch_restricted(logits, 0.3, None, 0.7)
        assert np.array_equal(np.isfinite(early), np.isfinite(late))
    with pytest.raises(AssertionError):  # the comparison can fail
        want = torch_restricted(logits, 1.0, 5, None)
        got = restrict(jnp.asarray(logits), top_k=6)
        assert np.array_equal(np.isfinite(got), np.isfinite(want))


def test_edges_of_the_cuts():
    logits = jnp.array([[0.0, 0.0, 0.0, -1.0]])
    assert np.isfinite(restrict(logits, top_k=2)).sum() == 3  # ties stay
    assert np.isfinite(restrict(logits, top_k=1, top_p=1e-6)).sum() == 3
    assert np.isfinite(restrict(logits, top_p=1.0)).all()
    tiny = jnp.array([[5.0, 1.0, 0.0]])
    assert np.isfinite(restrict(tiny, top_p=1e-6)).tolist() == [[True, False, False]]
    gone = jnp.array([[0.0, -jnp.inf, 1.0]])
    assert np.isfinite(restrict(gone, top_p=0.999)).tolist() == [[True, False, True]]


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 2.0, "top_k": 5}, {"top_p": 0.8}], ids=str
)
def test_draws_follow_the_softmax(options):
    params = jax.jit(init_params, static_argnums=0)(FEW, jax.random.key(1))
    params = {**params, "lm_head": {"kernel": 0.8 * params["lm_head"]["kernel"]}}
    source = np.tile(np.arange(2, 8, dtype=np.int32), (4096, 1))
    tokens = sample(FEW, params, source, key=KEY, max_new_tokens=1, **options)
    start = jnp.zeros((1, 1), jnp.int32)
    logits = bind(FEW, params)(jnp.asarray(source[:1]), start)[:, 0]
    p = np.asarray(jax.nn.softmax(restrict(logits, **options)), np.float64)[0]
    counts = np.bincount(np.asarray(tokens)[:, 0], minlength=8)
    assert counts[p == 0].sum() == 0
    kept = p > 0
    assert kept.sum() > 2
    expected = p[kept] / p[kept].sum() * len(source)
    assert stats.chisquare(counts[kept], expected).pvalue > 1e-3
    skewed = np.roll(expected, 1)
    assert stats.chisquare(counts[kept], skewed).pvalue < 1e-6  # the test can fail


def test_the_key_decides(params):
    data = batch(rows=4)
    first = draw(params, data)
    assert np.array_equal(draw(params, data), first)
    assert not np.array_equal(draw(params, data, key=jax.random.key(8)), first)
    same = {name: np.repeat(x[:1], 4, axis=0) for name, x in data.items()}
    assert len(np.unique(draw(params, same), axis=0)) > 1  # rows draw for themselves


def test_draws_depend_on_the_row_number_not_on_the_batch(params):
    data = batch(rows=6)
    whole = draw(params, data)
    tail = {name: x[2:] for name, x in data.items()}
    assert np.array_equal(draw(params, tail, row_offset=2), whole[2:])
    assert not np.array_equal(draw(params, tail), whole[2:])
    order = np.array([5, 3, 0, 1], np.int32)
    mixed = {name: x[order] for name, x in data.items()}
    numbers = order - np.arange(4, dtype=np.int32)
    assert np.array_equal(draw(params, mixed, row_offset=numbers), whole[order])


def test_shorter_answers_are_prefixes(params):
    whole = draw(params, batch(rows=6))
    assert np.array_equal(draw(params, batch(rows=6), max_new_tokens=2), whole[:, :2])


def test_sharded_batch_gives_the_same_tokens(params):
    data = batch(rows=8)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    everywhere = NamedSharding(mesh, PartitionSpec())
    got = draw(jax.device_put(params, everywhere), jax.device_put(data, rows))
    assert np.array_equal(got, draw(params, data))


def test_one_candidate_is_greedy_decoding(params):
    data = batch(rows=4)
    want = greedy(CONFIG, params, **inputs_of(data), max_new_tokens=6)
    assert np.array_equal(draw(params, data, top_k=1), want)
    assert np.array_equal(draw(params, data, top_p=1e-6), want)
    assert np.array_equal(draw(params, data, temperature=1e-4), want)


def test_temperature_and_top_p_compile_nothing_anew(params):
    draw(params, batch(rows=4), temperature=0.9, top_p=0.9)
    before = sample_program._cache_size()
    draw(params, batch(rows=4), temperature=0.5, top_p=0.3)
    assert sample_program._cache_size() == before


def test_padding_columns_are_never_drawn(params):
    data = batch(rows=64)
    assert draw(params, data, temperature=50.0).max() > 20
    assert draw(params, data, temperature=50.0, vocab_size=20).max() < 20


def test_scores_are_the_log_probabilities_of_the_tokens(params):
    data = batch(rows=4)
    out = generate(
        CONFIG,
        params,
        **inputs_of(data),
        max_new_tokens=1,
        do_sample=True,
        key=KEY,
        temperature=3.0,
        top_k=20,
        return_scores=True,
    )
    start = jnp.zeros((4, 1), jnp.int32)
    model = bind(CONFIG, params)
    mask = jnp.asarray(data["attention_mask"])
    logits = model(jnp.asarray(data["input_ids"]), start, attention_mask=mask)[:, 0]
    want = np.asarray(jax.nn.log_softmax(logits))[np.arange(4), out.tokens[:, 0]]
    np.testing.assert_allclose(out.scores, want, rtol=1e-5, atol=1e-6)

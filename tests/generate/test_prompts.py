"""Decoder-only models: prompts padded on the left, against transformers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ntl_jax import NumberVocab
from ntl_jax.generate import generate, number_distributions, sample
from ntl_jax.models import bind
from tests.generate.answers import NEW_TOKENS, inputs_of, torch_answers
from tests.models.cases import batch, ours, torch_model

END = 50
SCORE_TOLERANCE = 1e-4  # relative, of a model; T5's are closer
FAMILIES = {
    "gpt2": ("gpt2_untied", {"gain": 3.0}),  # with more, beams all agree
    "granite": ("granite_dense", {}),
    "granite-moe": ("granite_experts", {}),
}


def lively(family, seed):
    """A random PyTorch model whose answers end at times, its config and parameters."""
    name, options = FAMILIES[family]
    model = torch_model(name, seed, **options)
    head = model.get_output_embeddings().weight
    head.data[END].mul_(4)
    model.generation_config.pad_token_id = END
    return model, *ours(model)


def prompts(seed):
    return inputs_of(batch("left", seed, rows=4, length=10))


def run(config, params, data, **options):
    options = {"max_new_tokens": NEW_TOKENS, "return_scores": True} | options
    return generate(config, params, **data, **options)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_equal_transformers(family):
    answers, differed = set(), 0
    for seed in range(4):
        model, config, params = lively(family, seed)
        data = prompts(seed)
        want, _ = torch_answers(model, data, end=END, pad=END)
        got = run(config, params, data).tokens
        assert np.array_equal(filled(got), want), seed
        answers |= {tuple(row) for row in want.tolist()}
        unseen = {**data, "attention_mask": np.ones_like(data["attention_mask"])}
        differed += not np.array_equal(run(config, params, unseen).tokens, got)
    assert len(answers) > 8
    assert differed > 0  # the mask matters, and the comparison can fail


@pytest.mark.parametrize("family", FAMILIES)
def test_beams_equal_transformers(family):
    ended = 0
    for seed in range(4):
        model, config, params = lively(family, seed)
        data = prompts(seed)
        want, scores = torch_answers(model, data, num_beams=4, end=END, pad=END)
        got = run(config, params, data, num_beams=4)
        assert np.array_equal(filled(got.tokens), want), seed
        np.testing.assert_allclose(got.scores, scores, rtol=SCORE_TOLERANCE)
        ended += (want == END).any(axis=1).sum()
    assert 0 < ended < 16


def filled(tokens):
    """Our answers with the end token in the place of padding, as PyTorch's here."""
    ends = np.asarray(tokens == END).astype(int)
    return np.where(ends.cumsum(axis=1) - ends > 0, END, tokens)


def test_prompts_alone_answer_as_in_a_batch():
    _, config, params = lively("gpt2", 0)
    data = prompts(0)
    together = run(config, params, data, num_beams=3)
    for row, mask in enumerate(data["attention_mask"]):
        alone = data["input_ids"][row : row + 1, mask.astype(bool)]
        got = run(config, params, {"input_ids": alone}, num_beams=3)
        assert np.array_equal(got.tokens[0], together.tokens[row])


def test_number_distributions_and_scores_are_the_model_s_own():
    _, config, params = lively("gpt2", 1)
    data = prompts(1)
    vocab = NumberVocab.from_mapping(
        {str(i): 10 + i for i in range(10)} | {"a": 0}, vocab_size=51
    )
    out = run(config, params, data, vocab=vocab, return_numbers=True)
    whole = jnp.concatenate([data["input_ids"], out.tokens[:, :-1]], axis=1)
    mask = np.pad(data["attention_mask"], ((0, 0), (0, 11)), constant_values=1)
    logits = bind(config, params)(whole, attention_mask=jnp.asarray(mask))[:, 9:]
    ends = np.asarray(out.tokens == END).astype(int)
    live = ends.cumsum(axis=1) - ends == 0
    want = np.asarray(jax.nn.softmax(logits[..., 10:20])) * live[..., None]
    np.testing.assert_allclose(out.numbers, want, atol=1e-5)
    gained = np.asarray(jax.nn.log_softmax(logits))
    gained = np.take_along_axis(gained, np.asarray(out.tokens)[..., None], axis=2)
    scores = (gained[..., 0] * live).sum(axis=1)
    np.testing.assert_allclose(out.scores, scores, rtol=SCORE_TOLERANCE)
    plain = number_distributions(
        config, params, jnp.asarray(data["input_ids"][:1]), out.tokens[:1], vocab
    )  # the first prompt is not padded
    np.testing.assert_allclose(plain, out.numbers[:1], atol=1e-5)


def test_sharded_prompts_give_the_same_tokens():
    _, config, params = lively("gpt2", 2)
    data = inputs_of(batch("left", 2, rows=8, length=10))
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    everywhere = NamedSharding(mesh, PartitionSpec())
    spread = jax.device_put(params, everywhere), jax.device_put(data, rows)
    for beams in (1, 3):
        want = run(config, params, data, num_beams=beams)
        got = run(config, *spread, num_beams=beams)
        assert np.array_equal(got.tokens, want.tokens)


def test_padding_rows_of_the_vocabulary_are_never_drawn():
    model, config, params = lively("gpt2", 0)
    padded, rows = ours(model, vocab_rows=64)
    data = prompts(0)
    options = {"key": jax.random.key(0), "max_new_tokens": 6, "temperature": 100.0}
    tokens = sample(padded, rows, **data, **options)
    assert np.max(tokens) < 51
    assert len(np.unique(tokens)) > 10
    want = run(config, params, data, num_beams=3)
    got = run(padded, rows, data, num_beams=3)
    assert np.array_equal(got.tokens, want.tokens)


def test_bfloat16_decodes():
    for family in FAMILIES:
        _, config, params = lively(family, 0)
        low = dataclasses.replace(config, dtype="bfloat16")
        tokens = np.asarray(run(low, params, prompts(0), num_beams=2).tokens)
        assert ((tokens >= 0) & (tokens < 51)).all()


@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray, np.ndarray.tolist])
def test_a_prompt_padded_on_the_right_is_refused(kind):
    _, config, params = lively("gpt2", 0)
    data = inputs_of(batch("right", 0, rows=4, length=10))
    data["attention_mask"] = kind(np.asarray(data["attention_mask"]))
    with pytest.raises(ValueError, match=r"3 .*row 1"):
        run(config, params, data)


def test_an_answer_beyond_the_positions_is_refused():
    _, config, params = lively("gpt2", 0)
    with pytest.raises(ValueError, match="48"):
        run(config, params, prompts(0), max_new_tokens=39)

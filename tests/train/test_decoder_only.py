"""Decoder-only models in the trainer: rows, losses, answers, all families, resuming."""

import dataclasses
import functools
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax import cross_entropy
from ntl_jax.models import GPT2Config, GraniteConfig, bind
from ntl_jax.tokenization import load_tokenizer
from tests.train.conftest import standard_promotion
from tests.train.helpers import TINY, answer_logits, changed, tiny_batch, tiny_task
from train.checkpointing.model_dict import model_dict, model_of_dict
from train.config import ConfigError, DataConfig
from train.data import CausalDataset, DataError, eval_batches, tokenize_rows
from train.data.inputs import load_inputs
from train.evaluation.predict import load_run, predict
from train.heads.lm import number_probabilities
from train.loop import run
from train.state import init_state
from train.step import loss_and_grads

GPT2 = GPT2Config(
    vocab_size=512,
    n_positions=32,
    n_embd=16,
    n_layer=1,
    n_head=4,
    bos_token_id=1,
    eos_token_id=1,
    pad_token_id=0,
)
GRANITE = GraniteConfig(
    vocab_size=512,
    hidden_size=16,
    intermediate_size=16,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    bos_token_id=1,
    eos_token_id=1,
    pad_token_id=0,
)
MOE = dataclasses.replace(
    GRANITE, num_local_experts=4, num_experts_per_tok=2, router_aux_loss_coef=0.5
)
MODELS = {"gpt2": GPT2, "granite": GRANITE, "moe": MOE}
CAUSAL = changed(
    TINY,
    model=GPT2,
    data=DataConfig(
        name="multiplication",
        digits=1,
        train_size=64,
        eval_size=8,
        batch_size=8,
        separator="",
    ),
    steps=4,
)


def of(name: str):
    return changed(CAUSAL, model=MODELS[name])


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("builtin", split_digits=True)


def tokenized(rows, tokenizer, **options):
    options = {"max_source_length": 8, "max_target_length": 8} | options
    return tokenize_rows(rows, tokenizer, separator="", **options)


ROWS = [
    {"question": "3*4=", "answer": "12"},
    {"question": "12*34=", "answer": "408"},
]


def test_a_row_is_question_and_answer_and_asks_for_the_answer(tokenizer):
    dataset = tokenized(ROWS, tokenizer)
    assert isinstance(dataset, CausalDataset)
    batch = dataset.batch(np.arange(2))
    for i, row in enumerate(ROWS):
        question = tokenizer.encode(row["question"])[:-1]
        answer = tokenizer.encode(row["answer"])
        both = question + answer
        padding = dataset.length - len(both)
        assert batch["input_ids"][i].tolist() == both + [0] * padding
        assert batch["attention_mask"][i].sum() == len(both)
        asked = [-100] * len(question) + answer + [-100] * padding
        assert batch["labels"][i].tolist() == asked
    assert dataset.count_tokens(batch) == batch["attention_mask"].sum()


def test_prompts_are_filled_up_on_the_left(tokenizer):
    dataset = tokenized(ROWS, tokenizer)
    batch = dataset.eval_batch(np.arange(2))
    for i, row in enumerate(ROWS):
        question = tokenizer.encode(row["question"])[:-1]
        ids, mask = batch["prompt_ids"][i], batch["prompt_mask"][i]
        assert ids[mask].tolist() == question
        assert mask[-len(question) :].all() and mask.sum() == len(question)
    assert "prompt_ids" not in dataset.batch(np.arange(2))


def test_long_rows_keep_their_end_token_and_are_counted(tokenizer):
    dataset = tokenized(ROWS, tokenizer, max_source_length=4, max_target_length=3)
    assert (dataset.truncated_sources, dataset.truncated_targets) == (1, 1)
    labels = dataset.batch(np.arange(2))["labels"]
    assert [row[row != -100][-1] for row in labels] == [1, 1]


def test_an_empty_question_has_nothing_to_begin_with(tokenizer):
    rows = [*ROWS, {"question": "", "answer": "1"}]
    with pytest.raises(DataError, match="the question of row 3 has no token"):
        tokenized(rows, tokenizer)


def test_the_loss_is_that_of_the_next_token():
    task = tiny_task(CAUSAL)
    params = init_state(task).params
    batch = jax.tree.map(jnp.asarray, tiny_batch(task))
    loss, terms, _ = jax.jit(functools.partial(loss_and_grads, task=task))(
        params, batch
    )
    ids, labels = np.asarray(batch["input_ids"]), np.asarray(batch["labels"])
    model = bind(task.model, params)
    total = 0.0
    for row, asked in zip(ids, labels, strict=True):
        length = int((asked != -100).nonzero()[0][-1]) + 1  # without padding
        logits = np.asarray(model(jnp.asarray(row[None, :length])))[0]
        for place in np.flatnonzero(asked != -100):
            z = logits[place - 1]
            total += np.log(np.exp(z - z.max()).sum()) + z.max() - z[asked[place]]
    count = (labels != -100).sum()
    np.testing.assert_allclose(terms["ce"].mean, total / count, rtol=1e-5)
    assert float(terms["ce"].count) == count
    expected = terms["ce"].mean + 0.3 * terms["was"].mean
    np.testing.assert_allclose(loss, expected, rtol=1e-6)


def test_the_first_end_token_is_learned_where_it_also_pads(tokenizer):
    # As in GPT-2, whose end token fills up.
    dataset = dataclasses.replace(tokenized(ROWS, tokenizer), pad_token_id=1)
    labels = dataset.batch(np.arange(2))["labels"]
    assert [int((row == 1).sum()) for row in labels] == [1, 1]


def test_the_loss_of_the_routers_is_added():
    task = tiny_task(of("moe"))
    params = init_state(task).params
    batch = jax.tree.map(jnp.asarray, tiny_batch(task))
    run_ = jax.jit(functools.partial(loss_and_grads, task=task))
    loss, terms, grads = run_(params, batch)
    rest = terms["ce"].mean + 0.3 * terms["was"].mean
    np.testing.assert_allclose(loss, rest + 0.5 * terms["router"].mean, rtol=1e-5)
    assert terms["router"].mean > 0.5
    routers = [
        leaf
        for path, leaf in jax.tree.leaves_with_path(grads)
        if "router" in jax.tree_util.keystr(path)
    ]
    assert routers and all(bool(jnp.any(leaf != 0)) for leaf in routers)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_survives_json(name):
    assert model_of_dict(model_dict(MODELS[name])) == MODELS[name]
    earlier = model_dict(MODELS[name])
    earlier.pop("attention")  # a field that runs of earlier versions lack
    assert model_of_dict(earlier) == MODELS[name]
    with pytest.raises(ConfigError, match="a run of a Mamba, which is none of"):
        model_of_dict({"class": "Mamba"})
    with pytest.raises(ConfigError, match=r"other fields, \['colour'\]"):
        model_of_dict(model_dict(MODELS[name]) | {"colour": 1})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """name -> (folder, result): a whole run of a family, made once."""

    @functools.cache
    def run_of(name):
        config = changed(of(name), checkpoint_every=2, log_every=1)
        folder = tmp_path_factory.mktemp(name)
        with standard_promotion():
            return folder, run(config, folder)

    return run_of


FAMILIES = [
    "gpt2",
    pytest.param("moe", marks=pytest.mark.slow),
    pytest.param("granite", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_run_evaluates_and_answers(finished, name):
    folder, result = finished(name)
    metrics = result.results["interpolation"].metrics
    assert 4 < metrics["ce"] < 9 and "number_accuracy" in metrics
    assert len(result.results["extrapolation"].predictions) == 8
    assert "digit |" in predict(folder, "3*4=") or "no digit" in predict(folder, "3*4=")


def test_probabilities_of_an_answer_are_those_of_its_own_places(finished):
    folder, _ = finished("gpt2")
    trained = load_run(folder)
    ids = jnp.asarray([trained.encode("3*4=")], jnp.int32)
    answer = jnp.asarray([trained.tokenizer.encode("12")], jnp.int32)
    found = number_probabilities(trained, ids, answer)  # [T, K]
    both = jnp.concatenate([ids, answer], axis=1)
    logits = bind(trained.model, trained.params)(both)[0]
    at = logits[ids.shape[1] - 1 : -1, np.asarray(trained.vocab.token_ids)]
    np.testing.assert_allclose(found, jax.nn.softmax(at, axis=-1), atol=1e-6)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_resumed_run_ends_with_the_same_bits(finished, name, tmp_path):
    folder, result = finished(name)
    shutil.copytree(folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "4")  # as if killed after step 2
    config = changed(of(name), checkpoint_every=2, log_every=1, resume=True)
    resumed = run(config, tmp_path / "run")
    for a, b in zip(
        jax.tree.leaves(result.state.params),
        jax.tree.leaves(resumed.state.params),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)


def test_evaluation_sees_every_row_and_the_same_loss(finished):
    _, result = finished("gpt2")
    config = of("gpt2")
    task = tiny_task(config)
    inputs = load_inputs(config, config.model)
    dataset = inputs.evaluation["interpolation"]
    total = count = 0.0
    for batch in eval_batches(dataset, batch_size=3):
        weights = batch.pop("weights")
        device = {name: jnp.asarray(value) for name, value in batch.items()}
        logits, labels = answer_logits(task.model, result.state.params, device)
        each = cross_entropy(logits, labels).sum(axis=-1)
        total += float((each * weights).sum())
        count += float(((labels != -100).sum(axis=-1) * weights).sum())
    expected = result.results["interpolation"].metrics["ce"]
    np.testing.assert_allclose(total / count, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("model", "field"),
    [("gpt2", "n_positions"), ("granite", "max_position_embeddings")],
)
def test_rows_must_have_positions(model, field):
    short = changed(of(model), **{f"model__{field}": 8})
    said = f"more than the model's 8 positions: set --model.{field.replace('_', '-')} "
    with pytest.raises(ConfigError, match=said):
        load_inputs(short, short.model)


def test_end_tokens_must_be_the_same():
    other = changed(CAUSAL, model__eos_token_id=7)
    with pytest.raises(ConfigError, match="ends a text with token 1, the model with 7"):
        load_inputs(other, other.model)

"""Packed rows train as rows of their own do, in every family and loss."""

import contextlib
import dataclasses
import functools
import itertools
from typing import Any

import chex
import jax
import numpy as np
import pytest

from ntl_jax.models import GPT2Config, GraniteConfig, init_params
from ntl_jax.sharding.mesh import batch_sharding, make_mesh
from tests.train.helpers import SHALLOW, answer_logits, changed
from train.config import ConfigError, LossConfig, validate
from train.data import pack, tokenize_rows, train_batches
from train.data.inputs import load_inputs
from train.data.number_tokens import make_vocab
from train.data.transforms import Ragged
from train.state import init_state, make_task
from train.step import compile_train_step, loss_and_grads

TOKENS: dict[str, Any] = {
    "vocab_size": 512,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
GRANITE = GraniteConfig(
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    attention_multiplier=1.0,
    residual_multiplier=1.0,
    embedding_multiplier=1.0,
    logits_scaling=2.0,
    initializer_range=0.3,
    attention_dropout=0.0,
    **TOKENS,
)
MODELS = {
    "t5": dataclasses.replace(SHALLOW.model, dropout_rate=0.0),
    "gpt2": GPT2Config(
        n_positions=64,
        n_embd=16,
        n_layer=1,
        n_head=2,
        initializer_range=0.3,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        **TOKENS,
    ),
    "granite": GRANITE,
    "granite_moe": dataclasses.replace(
        GRANITE,
        num_local_experts=4,
        num_experts_per_tok=2,
        router_aux_loss_coef=0.1,
    ),
}
LOSS = LossConfig(was=0.3, number_level=0.5, digit_entropy=0.4, place_base=2.0)
ANSWERS = ("7", "-12", "3.25", "about 100", "42 or 43", "0", "1234567", "9.5 m", "-8")
ROWS = [
    {"question": f"What is {'1 + ' * (i % 4)}{i}?", "answer": answer}
    for i, answer in enumerate(ANSWERS)
]


@dataclasses.dataclass
class Case:
    """A task, its parameters, and the same rows alone and packed.

    Both batches have the same shapes and segments, so one program runs both.
    """

    task: Any
    params: Any
    alone: dict[str, np.ndarray]
    packed: dict[str, np.ndarray]
    plan: list[list[int]]

    @functools.cached_property
    def grads(self):
        """The loss, its terms and its gradients."""
        return jax.jit(functools.partial(loss_and_grads, task=self.task))

    @functools.cached_property
    def logits(self):
        """Logits and the labels that stand for them."""

        def run(params, batch):
            return answer_logits(self.task.model, params, batch)

        return jax.jit(run)


@functools.cache
def case(family: str) -> Case:
    model = MODELS[family]
    config = changed(SHALLOW, model=model, loss=LOSS)
    inputs = load_inputs(config, model)
    mesh = make_mesh(1, 1, 1, devices=jax.devices()[:1])
    task = make_task(config, model, make_vocab(config, model, inputs), mesh)
    dataset = tokenize_rows(
        ROWS,
        inputs.tokenizer,
        max_source_length=64,
        max_target_length=16,
        separator=":" if model.decoder_only else None,
    )
    packed = pack(dataset, seed=0, length=64)
    assert len(packed) <= len(ROWS) / 2
    apart = dataclasses.replace(packed, plan=Ragged(np.arange(9), np.arange(10)))
    batch = packed.batch(np.arange(len(packed)))
    empty = {k: -100 if k == "labels" else 0 for k in batch}
    room = ((0, len(ROWS) - len(packed)), (0, 0))
    return Case(
        task,
        init_params(model, jax.random.key(0)),
        apart.batch(np.arange(len(ROWS))),
        {k: np.pad(v, room, constant_values=empty[k]) for k, v in batch.items()},
        [packed.plan[row].tolist() for row in range(len(packed))],
    )


def segments(of: Case) -> np.ndarray:
    """Which text each label is of, before a decoder-only model's labels move."""
    return of.packed.get("target_segment_ids", of.packed["segment_ids"])


def only(of: Case, text: int) -> tuple[dict, dict]:
    """Both batches, with the labels of one text alone."""
    alone = of.alone["labels"].copy()
    alone[np.arange(len(ROWS)) != text] = -100
    row = next(i for i, members in enumerate(of.plan) if text in members)
    mine = np.zeros_like(segments(of), bool)
    mine[row] = segments(of)[row] == 1 + of.plan[row].index(text)
    packed = np.where(mine, of.packed["labels"], -100)
    return of.alone | {"labels": alone}, of.packed | {"labels": packed}


def assert_same(got, expected) -> None:
    (loss, terms, grads), (other, other_terms, other_grads) = got, expected
    np.testing.assert_allclose(loss, other, rtol=1e-5)
    chex.assert_trees_all_close(terms, other_terms, rtol=1e-5)
    scale = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(other_grads))
    assert scale > 1e-3
    chex.assert_trees_all_close(grads, other_grads, rtol=1e-5, atol=1e-5 * scale)


FAMILIES = list(MODELS)


@pytest.mark.parametrize("family", FAMILIES)
def test_loss_terms_and_gradients_are_those_of_the_rows_alone(family):
    of = case(family)
    got, expected = (of.grads(of.params, batch) for batch in (of.packed, of.alone))
    assert {"number_level", "digit_entropy"} < got[1].keys()
    assert ("router" in got[1]) == (family == "granite_moe")
    assert_same(got, expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_texts_loss_and_gradient_know_nothing_of_its_neighbours(family):
    of = case(family)
    for text in range(len(ROWS)):
        alone, packed = only(of, text)
        expected = of.grads(of.params, alone)
        assert float(expected[1]["ce"].count) > 1
        assert_same(of.grads(of.params, packed), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_alone_need_no_segments(family):
    of = case(family)
    plain = {k: v for k, v in of.alone.items() if "segment" not in k}
    (logits, labels), (expected, _) = (
        jax.device_get(of.logits(of.params, batch)) for batch in (of.alone, plain)
    )
    asked = labels != -100
    assert asked.sum() > 30
    np.testing.assert_allclose(logits[asked], expected[asked], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_neighbours_of_one_segment_are_seen(family):
    """The tests above can fail."""
    of = case(family)
    names = [name for name in of.packed if "segment" in name]
    blind = {name: np.minimum(of.packed[name], 1) for name in names}
    got, expected = (
        of.grads(of.params, batch) for batch in (of.packed | blind, of.packed)
    )
    with pytest.raises(AssertionError):
        assert_same(got, expected)
    for term in ("ce", "was", "digit_entropy"):
        assert abs(float(got[1][term].mean / expected[1][term].mean) - 1) > 2e-4


@pytest.mark.slow
@pytest.mark.parametrize("family", ["t5", "granite_moe"])
def test_packed_rows_give_the_same_gradients_on_eight_devices(family):
    of = case(family)
    batch = {name: leaf[:8] for name, leaf in of.packed.items()}
    mesh = make_mesh(2, 2, 2)
    step = functools.partial(
        loss_and_grads, task=dataclasses.replace(of.task, mesh=mesh)
    )
    with jax.set_mesh(mesh):
        placed = jax.device_put(batch, batch_sharding(mesh))
        sharded = jax.jit(step)(of.params, placed)
    assert_same(sharded, of.grads(of.params, batch))


@pytest.mark.slow
def test_a_step_is_compiled_once_a_bucket():
    config = changed(SHALLOW, data__max_operand=9999, data__buckets=2)
    config = changed(config, data__max_source_length=32, data__batch_size=4)
    inputs = load_inputs(config, config.model)
    assert inputs.buckets is not None and len(inputs.buckets.lengths) == 2
    mesh = make_mesh(1, 1, 1, devices=jax.devices()[:1])
    vocab = make_vocab(config, config.model, inputs)
    task = make_task(config, config.model, vocab, mesh)
    step, state, shapes = compile_train_step(task), init_state(task), set()
    batches = train_batches(inputs.train, batch_size=4, seed=0, buckets=inputs.buckets)
    with contextlib.closing(batches):
        for batch in itertools.islice(batches, 30):
            state, metrics = step(state, jax.device_put(batch, batch_sharding(mesh)))
            shapes.add(batch["input_ids"].shape + batch["labels"].shape)
            assert np.isfinite(metrics["loss"])
    assert len(shapes) == step._cache_size() == 2


@pytest.mark.parametrize("term", ["ntil", "raft"])
def test_losses_of_whole_rows_are_refused(term):
    config = changed(SHALLOW, data__packing=True, **{f"loss__{term}": 0.1})
    with pytest.raises(ConfigError, match=f"--loss.{term} .*--data.packing"):
        validate(config, 1)
    validate(changed(config, data__packing=False), 1)


def test_packing_and_buckets_exclude_each_other():
    config = changed(SHALLOW, data__packing=True, data__buckets=2)
    with pytest.raises(ConfigError, match=r"leave out --data\.buckets"):
        validate(config, 1)
    with pytest.raises(ConfigError, match=r"--data\.packed-length 64 needs"):
        validate(changed(SHALLOW, data__packed_length=64), 1)

"""A batch in parts, and a head that makes no logits: the same loss and gradient."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from ntl_jax import NumberVocab
from tests.train.helpers import changed
from tests.train.mesh_cases import (
    config_of,
    placed,
    random_batch,
    relative_errors,
    task_of,
)
from train.heads import lm
from train.loss import loss_and_grads
from train.state import abstract_state
from train.step import eval_step

TOLERANCE = 1e-5
ROWS, LENGTH = 32, 8
ONE, CUT = (1, 1, 1), (2, 2, 2)


@functools.cache
def compiled(family: str, shape, router: float, **fields):
    """A task's loss and gradient, and what it is of."""
    config = config_of(family, **fields)
    if family == "experts":
        config = changed(config, model__router_aux_loss_coef=router)
    task = task_of(config, shape)
    step = jax.jit(functools.partial(loss_and_grads, task=task))
    return step, placed(task, random_batch(task.model, ROWS, LENGTH))


def found(family: str, shape=ONE, *, router: float = 0.5, key: int = 3, **fields):
    """Loss, terms and gradient of one batch, dropout on."""
    step, arguments = compiled(family, shape, router, **fields)
    return jax.device_get(step(*arguments, dropout_key=jax.random.key(key)))


def assert_same(got, want):
    np.testing.assert_allclose(got[0], want[0], rtol=TOLERANCE)
    for name, term in want[1].items():
        np.testing.assert_allclose(got[1][name], term, rtol=TOLERANCE)
    errors = relative_errors(got[2], want[2])
    assert max(errors.values()) < TOLERANCE, errors


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("family", "shape"),
    [
        ("gpt2", CUT),
        slow("granite", CUT),
        slow("t5", ONE),
        slow("t5", (1, 8, 1)),
    ],
)
def test_four_parts_are_the_whole(family, shape):
    whole = found(family)
    assert_same(found(family, shape, accumulate=4), whole)
    with pytest.raises(AssertionError):  # under other dropout masks
        assert_same(found(family, shape, accumulate=4, key=4), whole)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [ONE, CUT])
def test_parts_of_a_batch_with_experts_are_the_whole_but_for_the_balance(shape):
    whole = found("experts", router=0.0)
    parts = found("experts", shape, router=0.0, accumulate=4)
    balance = parts[1].pop("router")
    assert balance.count == 4
    want = dict(whole[1])
    np.testing.assert_allclose(balance.mean, want.pop("router").mean, rtol=0.05)
    assert_same(parts, (whole[0], want, whole[2]))
    with_balance = found("experts", shape, accumulate=4)
    np.testing.assert_allclose(
        with_balance[0], parts[0] + 0.5 * balance.mean, rtol=TOLERANCE
    )


@pytest.mark.parametrize(
    ("family", "shape"),
    [
        ("gpt2", ONE),
        slow("experts", CUT),
        slow("gpt2", CUT),
        slow("granite", ONE),
        slow("t5", (1, 8, 1)),
    ],
)
def test_a_fused_head_changes_nothing(family, shape):
    assert_same(found(family, shape, fused_head=True), found(family))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["t5", "granite"])
def test_a_fused_head_of_parts_changes_nothing(family):
    assert_same(found(family, CUT, fused_head=True, accumulate=2), found(family))


def test_evaluation_by_a_fused_head_is_the_same():
    outputs = []
    for fused in (False, True):
        task = task_of(config_of("t5", fused_head=fused))
        batch = random_batch(task.model, 8, LENGTH)
        batch["weights"] = np.arange(8, dtype=np.float32)
        params, batch = placed(task, batch)
        outputs.append(jax.jit(functools.partial(eval_step, task=task))(params, batch))
    dense, fused = jax.device_get(outputs)
    for name, term in dense.terms.items():
        np.testing.assert_allclose(fused.terms[name], term, rtol=TOLERANCE)
    np.testing.assert_array_equal(fused.number_rows, dense.number_rows)
    np.testing.assert_allclose(fused.number_logits, dense.number_logits, atol=1e-5)
    assert dense.terms["was"].count > 0


def scratch(monkeypatch, tile: int = 4096, **fields) -> int:
    """Bytes that a gradient takes beside its arguments, under a large vocabulary."""
    config = config_of("gpt2", model__vocab_size=4096, **fields)
    vocab = NumberVocab.from_mapping({"1": 21, "2": 22, "a": 1}, vocab_size=4096)
    task = dataclasses.replace(task_of(config), vocab=vocab)
    monkeypatch.setattr(lm, "TILE_TOKENS", tile)
    step = jax.jit(functools.partial(loss_and_grads, task=task))
    batch = random_batch(task.model, ROWS, 32)
    compiled = step.lower(abstract_state(task).params, batch).compile()
    analysis = compiled.memory_analysis()
    assert analysis is not None
    return analysis.temp_size_in_bytes


def test_parts_and_fused_heads_need_less_memory(monkeypatch):
    logits = 4 * ROWS * 32 * 4096
    whole = scratch(monkeypatch)
    assert whole > logits
    assert scratch(monkeypatch, accumulate=8) < whole / 4
    assert scratch(monkeypatch, fused_head=True, tile=128) < whole / 4

"""What devices send each other in a bfloat16 step of training."""

import contextlib

import pytest

from tests.train.sent_cases import (
    COLUMNS,
    INNER,
    LAYERS,
    SIZES,
    WIDTH,
    gathered_states,
    is_kernel,
    logits,
    sent,
    slow,
    stacks,
    task_for,
    whole_batches,
)
from train import loss as loss_module


@pytest.mark.parametrize(
    ("family", "mesh"),
    [("gpt2", (2, 2, 2))]
    + [slow(family, (1, 8, 1)) for family in SIZES]
    + [slow(family, (2, 2, 2)) for family in ("t5", "granite", "experts")],
)
def test_parameters_are_gathered_layer_by_layer_in_bfloat16(tmp_path, family, mesh):
    found = sent(tmp_path, task_for(family, mesh))
    gathered = [x for x in found if x.operation == "all-gather" and is_kernel(x.shape)]
    assert {x.dtype for x in gathered if x.shape[0] != LAYERS} == {"bf16"}
    summed = {x.shape for x in found if x.operation in ("all-reduce", "reduce-scatter")}
    assert any(is_kernel(shape) for shape in summed)
    assert not stacks(found)
    assert not logits(found)
    assert not whole_batches(found)
    assert not gathered_states(found)


@pytest.mark.parametrize(
    ("family", "mesh"),
    [("gpt2", (1, 8, 1))]
    + [slow(family, (1, 8, 1)) for family in ("t5", "granite")]
    + [slow(family, (2, 2, 2)) for family in ("gpt2", "t5", "granite")],
)
def test_kernels_that_are_kept_are_gathered_once(tmp_path, family, mesh):
    counts = {}
    for remat in ("matmuls", "gathered"):
        folder = tmp_path / remat
        folder.mkdir()
        found = sent(folder, task_for(family, mesh, remat=remat))
        assert not stacks(found) and not whole_batches(found)
        assert not gathered_states(found)
        gathered = [x for x in found if x[:2] == ("all-gather", "bf16")]
        kernels = [x for x in gathered if is_kernel(x.shape)]
        counts[remat] = len([x for x in kernels if max(x.shape) <= INNER])  # no head
    # Where they are not kept the backward pass gathers them again.
    assert counts["matmuls"] == 2 * counts["gathered"] > 0


def test_the_gradient_of_t5s_table_is_summed_in_bfloat16(tmp_path):
    found = sent(tmp_path, task_for("t5", (8, 1, 1)))
    tables = [x for x in found if sorted(x.shape) == [WIDTH, COLUMNS]]
    assert {x[:2] for x in tables} == {("all-reduce", "bf16")}


@pytest.mark.slow
def test_a_fused_head_sends_no_logits(tmp_path):
    found = sent(tmp_path, task_for("gpt2", (2, 2, 2), fused_head=True))
    assert not logits(found) and not whole_batches(found)


def test_rows_that_are_left_to_the_partitioner_are_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(
        loss_module, "on_mesh", lambda mesh: contextlib.nullcontext(mesh)
    )
    assert whole_batches(sent(tmp_path, task_for("gpt2", (1, 8, 1))))

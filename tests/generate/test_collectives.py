"""What devices send each other while they generate in bfloat16."""

import contextlib

import jax
import jax.numpy as jnp
import pytest

from ntl_jax.generate import programs
from ntl_jax.sharding.mesh import batch_sharding
from tests.collectives import Sent, sent_by
from tests.train.sent_cases import (
    COLUMNS,
    INNER,
    LENGTH,
    ROWS,
    SIZES,
    WIDTH,
    stacks,
    task_for,
    whole_batches,
)
from train.state import abstract_state

NEW = 11  # tokens
SHARED = {"max_new_tokens": NEW, "min_new_tokens": 0, "vocab_size": None}
BEAMS = 3  # so that no number of rows is a kernel's size
MESHES = [(1, 8, 1), (2, 2, 2), (2, 1, 4)]


def lowered(way: str, task):
    """A program of `generate`, for the arrays that evaluation gives it."""
    along = batch_sharding(task.mesh)
    ids = jax.ShapeDtypeStruct((ROWS, LENGTH), jnp.int32, sharding=along)
    mask = jax.ShapeDtypeStruct((ROWS, LENGTH), bool, sharding=along)
    given = (task.model, abstract_state(task).params, ids)
    options = SHARED | {"attention_mask": mask, "mesh": task.mesh}
    if way == "beams":
        divisors, longer = programs.length_divisors(1.0, NEW)
        options |= {"divisors": divisors, "favours_long": longer}
        program, more = (
            programs.beam_search_program,
            {"num_beams": BEAMS, "early_stopping": False},
        )
    elif way == "greedy":
        program, more = programs.greedy_program, {"numbers": "argmax", "vocab": None}
        more |= {"scored": True}
    else:
        program, more = (
            programs.sample_program,
            {"top_k": 5, "top_p": 0.9, "scored": True},
        )
        more |= {"key": jax.random.key(0), "temperature": 1.0, "row_offset": 0}
    return program.lower(*given, **options, **more)


def logits(found: list[Sent]) -> list[Sent]:
    """Logits that one device is given of another's columns or rows."""
    return [
        x
        for x in found
        if x.operation == "all-gather"
        and x.dtype == "f32"
        and x.shape[-1] >= COLUMNS // 8
    ]


def caches(found: list[Sent]) -> list[Sent]:
    """Keys and values of earlier tokens."""
    lengths = {LENGTH, NEW, LENGTH + NEW}
    return [
        x
        for x in found
        if x.dtype == "bf16" and len(x.shape) > 3 and lengths & set(x.shape[1:-1])
    ]


def kernels(found: list[Sent]) -> list[Sent]:
    """Matrices that a step of decoding sends around."""
    sizes = {n // parts for n in (WIDTH, INNER, COLUMNS) for parts in (1, 2)}
    return [
        x
        for x in found
        if "decoder_step" in x.name and len(x.shape) > 1 and set(x.shape[-2:]) <= sizes
    ]


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("family", "mesh", "way"),
    [("gpt2", (2, 2, 2), "beams")]
    + [
        slow(family, mesh, way)
        for family in SIZES
        for mesh in MESHES
        for way in ("greedy", "beams", "drawn")
        if (family, mesh, way) != ("gpt2", (2, 2, 2), "beams")
    ],
)
def test_rows_logits_caches_and_parameters_stay_where_they_are(
    tmp_path, family, mesh, way
):
    found = sent_by(lowered(way, task_for(family, mesh)), tmp_path)
    assert not logits(found)
    assert not caches(found)
    assert not kernels(found)
    # Output projections are cut anew, once: each device sends its part of them.
    recut = [x for x in stacks(found) if x.operation == "all-to-all"]
    assert recut == stacks(found)
    assert not any("decoder_step" in x.name for x in recut)
    assert not whole_batches(found)
    assert any("decoder_step" in x.name for x in found)


@pytest.mark.slow
def test_what_is_left_to_the_partitioner_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "on_mesh", lambda mesh: contextlib.nullcontext())
    jax.clear_caches()
    found = sent_by(lowered("beams", task_for("gpt2", (2, 2, 2))), tmp_path)
    assert logits(found)
    assert whole_batches(found) or caches(found)

"""A tiny run to test the trainer on."""

import dataclasses
import json

import jax
import pytest

from ntl_jax.models import T5Config
from ntl_jax.sharding.mesh import make_mesh
from train.config import (
    DataConfig,
    EvalConfig,
    LossConfig,
    MeshConfig,
    OptimizerConfig,
    TrainConfig,
    mesh_shape,
)
from train.data.inputs import load_inputs
from train.data.number_tokens import make_vocab
from train.heads.teacher_forcing import answer_hidden
from train.state import Task, make_task

INTERRUPTED_IO = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)
"""Orbax drops reads and writes that were under way when the first one failed, and
Python warns of them when they are collected."""

TINY_MODEL = T5Config(
    vocab_size=512,
    d_model=16,
    d_kv=8,
    d_ff=32,
    num_layers=2,
    num_decoder_layers=2,
    num_heads=8,
    dropout_rate=0.1,
)

TINY = TrainConfig(
    name="tiny",
    data=DataConfig(
        train_size=64,
        eval_size=20,
        max_operand=9,
        batch_size=8,
        max_source_length=16,
        max_target_length=8,
    ),
    model=TINY_MODEL,
    loss=LossConfig(was=0.3),
    optimizer=OptimizerConfig(learning_rate=1e-3),
    evaluation=EvalConfig(batch_size=16, max_new_tokens=4),
    mesh=MeshConfig(data=-1),
    steps=6,
    log_every=2,
)


def changed(config: TrainConfig, **fields) -> TrainConfig:
    """A config with fields replaced; `data__seed=1` reaches into a nested one."""
    for path, value in fields.items():
        head, _, tail = path.partition("__")
        if tail:
            value = dataclasses.replace(getattr(config, head), **{tail: value})
        config = dataclasses.replace(config, **{head: value})
    return config


SHALLOW = changed(TINY, model__num_layers=1, model__num_decoder_layers=1)
"""TINY with a layer a stack: half the time to compile."""

COMPARED = changed(
    SHALLOW,
    optimizer__learning_rate=3e-2,
    mesh=MeshConfig(data=2, fsdp=2, tensor=2),
    cross_entropy_baseline=True,
    steps=24,
    log_every=8,
)
"""Long enough that the answers are digits, if not the right ones."""


def tiny_task(config: TrainConfig = TINY, devices: int = 1, **mesh: int) -> Task:
    """The static parts of a tiny run on the first `devices` devices."""
    shape = mesh_shape(dataclasses.replace(MeshConfig(), **mesh), devices)
    inputs = load_inputs(config, config.model)
    vocab = make_vocab(config, config.model, inputs)
    mesh_ = make_mesh(**shape, devices=jax.devices()[:devices])
    return make_task(config, config.model, vocab, mesh_)


def tiny_batch(task: Task, step: int = 0) -> dict:
    """The host batch of one step."""
    from train.data import train_batches

    inputs = load_inputs(task.config, task.model)
    batches = train_batches(
        inputs.train,
        batch_size=task.config.data.batch_size,
        seed=task.config.data.seed,
        start_step=step,
    )
    batch = next(batches)
    batches.close()
    return batch


SET = "interpolation"


def answers(folder) -> list[str]:
    """The generated texts of one evaluation set."""
    lines = (folder / "predictions.jsonl").read_text().splitlines()
    return [row["prediction"] for row in map(json.loads, lines) if row["set"] == SET]


def answer_logits(model, params, batch):
    """Logits in the place of `answer_hidden`'s states, and the labels."""
    answer = answer_hidden(model, params, batch)
    return answer.model.logits(answer.hidden), answer.labels

"""Tiny tasks of every family on any mesh, with random batches, and how to compare."""

import dataclasses
import functools

import jax
import numpy as np

from ntl_jax import NumberVocab
from ntl_jax.models import AnyConfig, GPT2Config, GraniteConfig, T5Config
from ntl_jax.sharding.mesh import batch_sharding, make_mesh
from tests.train.helpers import TINY, changed
from train.config import TrainConfig
from train.state import Task, init_state, make_task

COLUMNS, FIRST_DIGIT = 64, 20
VOCAB = NumberVocab.from_mapping(
    {str(d): FIRST_DIGIT + d for d in range(10)} | {"a": 1}, vocab_size=COLUMNS
)
GRANITE = GraniteConfig(
    vocab_size=COLUMNS,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=8,
    num_key_value_heads=4,
    max_position_embeddings=64,
    embedding_multiplier=3.0,
    attention_multiplier=0.3,
    initializer_range=0.15,
    attention_dropout=0.1,
)
MODELS: dict[str, GPT2Config | GraniteConfig | T5Config] = {
    "t5": T5Config(
        vocab_size=COLUMNS,
        d_model=16,
        d_kv=4,
        d_ff=32,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=8,
    ),
    "gpt2": GPT2Config(
        vocab_size=COLUMNS,
        n_positions=64,
        n_embd=16,
        n_layer=2,
        n_head=8,
        initializer_range=0.15,
    ),
    "granite": GRANITE,
    "experts": dataclasses.replace(
        GRANITE, num_local_experts=4, num_experts_per_tok=2, router_aux_loss_coef=0.5
    ),
}


def config_of(family: str, **fields) -> TrainConfig:
    """The config of a tiny run of a family, dropout on."""
    return changed(TINY, model=MODELS[family], **fields)


def task_of(config: TrainConfig, shape: tuple[int, int, int] = (1, 1, 1)) -> Task:
    """The task of a config on the first devices."""
    devices = jax.devices()[: int(np.prod(shape))]
    mesh = make_mesh(*shape, devices=devices)
    return make_task(config, config.model, VOCAB, mesh)


def random_batch(model: AnyConfig, rows: int, length: int, seed: int = 0) -> dict:
    """Random texts, half of their answers' tokens digits; the first answers have none.

    With 32 rows and up to eight devices, a device's first rows are without a number.
    """
    draw = np.random.default_rng(seed)
    lengths = draw.integers(length // 2, length + 1, (rows, 1))
    mask = np.arange(length) < lengths
    ids = np.where(mask, draw.integers(2, FIRST_DIGIT, mask.shape), 0)
    labels = draw.integers(FIRST_DIGIT, FIRST_DIGIT + 10, mask.shape)
    words = draw.random(mask.shape) < 0.5
    words[: max(1, rows // 8)] = True
    labels = np.where(words, draw.integers(2, FIRST_DIGIT, mask.shape), labels)
    if isinstance(model, T5Config):
        labels = labels[:, : length // 2]
        asked = mask[:, : length // 2]
    else:
        asked = mask & (np.arange(length) >= length // 3)
        ids = np.where(asked, labels, ids)
    return {
        "input_ids": ids.astype(np.int32),
        "attention_mask": mask,
        "labels": np.where(asked, labels, -100).astype(np.int32),
    }


@functools.cache
def start_of(config: TrainConfig) -> dict:
    """A config's first parameters, on the host."""
    return jax.device_get(init_state(task_of(config)).params)


def placed(task: Task, batch: dict) -> tuple[dict, dict]:
    """The first parameters and a batch, as a task's mesh lays them out."""
    state = init_state(task, start_of(task.config))
    return state.params, jax.device_put(batch, batch_sharding(task.mesh))


def relative_errors(got, want) -> dict[str, float]:
    """|got - want| / |want| of every leaf, by its path."""
    got, want = jax.device_get((got, want))
    paths = jax.tree_util.tree_leaves_with_path(want)
    errors = {}
    for (path, leaf), other in zip(paths, jax.tree.leaves(got), strict=True):
        size = np.linalg.norm(leaf)
        assert size > 0, path
        errors[jax.tree_util.keystr(path)] = float(np.linalg.norm(other - leaf) / size)
    return errors

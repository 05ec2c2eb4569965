"""Tasks in bfloat16 on a mesh, and which of the arrays that they send are what."""

import functools
import math

import jax
import jax.numpy as jnp
import pytest

from ntl_jax import NumberVocab
from ntl_jax.models.remat import Remat
from ntl_jax.sharding.mesh import batch_sharding
from tests.collectives import Sent, sent_by
from tests.train.mesh_cases import config_of, task_of
from train.config import MeshConfig
from train.loss import loss_and_grads
from train.state import abstract_state, make_task

ROWS, LENGTH, LAYERS, WIDTH, INNER, COLUMNS = 16, 24, 5, 64, 128, 1024
SIZES = {
    "gpt2": {"n_layer": LAYERS, "n_embd": WIDTH, "n_inner": INNER},
    "t5": {
        "num_layers": LAYERS,
        "num_decoder_layers": LAYERS,
        "d_model": WIDTH,
        "d_ff": INNER,
    },
    "granite": {
        "num_hidden_layers": LAYERS,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
    },
}
SIZES["experts"] = SIZES["granite"]


@functools.cache
def task_for(family: str, mesh, *, fused_head: bool = False, remat: Remat = False):
    fields = {f"model__{name}": size for name, size in SIZES[family].items()}
    fields |= {"model__vocab_size": COLUMNS, "model__dtype": "bfloat16"}
    fields["model__remat"] = remat
    config = config_of(family, **fields, fused_head=fused_head, mesh=MeshConfig())
    vocab = NumberVocab.from_mapping({"1": 21, "2": 22, "a": 1}, vocab_size=COLUMNS)
    return make_task(config, config.model, vocab, task_of(config, mesh).mesh)


def sent(folder, task) -> list[Sent]:
    """All that the devices send each other for a loss and its gradient."""
    along = batch_sharding(task.mesh)

    def rows(length: int, dtype) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((ROWS, length), dtype, sharding=along)

    batch = {"input_ids": rows(LENGTH, jnp.int32), "labels": rows(LENGTH, jnp.int32)}
    batch["attention_mask"] = rows(LENGTH, bool)
    step = jax.jit(lambda params, batch: loss_and_grads(params, batch, task))
    return sent_by(step.lower(abstract_state(task).params, batch), folder)


def is_kernel(shape) -> bool:
    """A matrix of one layer, or the head's, whole or cut along its width."""
    widths = {WIDTH, INNER, COLUMNS, COLUMNS // 2, INNER // 2, WIDTH // 2}
    return len(shape) >= 2 and LENGTH not in shape and bool(set(shape[-2:]) & widths)


def whole_batches(found: list[Sent]) -> list[Sent]:
    """Activations of all rows, which no device should see."""
    return [
        x
        for x in found
        if x.dtype in ("f32", "bf16") and x.shape[:2] == (ROWS, LENGTH) and x.shape[2:]
    ]


def gathered_states(found: list[Sent]) -> list[Sent]:
    """Activations inside layers, gathered in the place of a kernel."""
    gathered = [x for x in found if x.operation == "all-gather"]
    return [x for x in gathered if x.dtype == "bf16" and LENGTH in x.shape]


def logits(found: list[Sent]) -> list[Sent]:
    """Logits of any rows: a row's many columns."""
    return [x for x in found if LENGTH in x.shape[:-1] and x.shape[-1] >= COLUMNS // 8]


def stacks(found: list[Sent]) -> list[Sent]:
    """Kernels of all layers at once."""
    least = LAYERS * WIDTH * WIDTH // 4
    return [
        x for x in found if x.shape[:1] == (LAYERS,) and math.prod(x.shape) >= least
    ]


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)

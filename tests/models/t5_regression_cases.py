"""Tiny T5s with a regression head: PyTorch's, and the same weights as ours."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax.hf import t5_regression
from ntl_jax.hf.mapping import read_params
from ntl_jax.models import (
    bind,
    init_params,
)
from tests.models.cases import CASES, tensors

TARGETS = np.array([-3.0, 0.5, 2.0], np.float32)


def torch_model(kind, **changes) -> Any:
    """A random T5ForSequenceClassification with one label, dropout off."""
    torch = pytest.importorskip("torch")
    import transformers

    torch.manual_seed(0)
    sizes: Any = CASES[kind].fields | changes | {"num_labels": 1}
    config = transformers.T5Config(**sizes)
    model = transformers.T5ForSequenceClassification(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:  # constant, which would hide a swap
                parameter.add_(0.3 * torch.randn_like(parameter))
            if "classification_head" in name:  # so that the sizes of errors show
                parameter.mul_(2)
    return model


def to_params(config, named):
    shapes = jax.eval_shape(partial(init_params, config), jax.random.key(0))
    table = t5_regression.table(config)
    return read_params(table, list(named), named.__getitem__, shapes)


def ours(model):
    named = tensors(model)
    raw = model.config.to_dict()
    config = t5_regression.read_config(raw, list(named), named.__getitem__)
    return config, to_params(config, named)


def questions(ends=((12,), (5,), (9,))):
    """Three rows of 13 tokens, padded on either side, that end where told."""
    ids = np.random.default_rng(0).integers(2, 50, (3, 13), dtype=np.int32)
    mask = np.ones_like(ids)
    for row, places in enumerate(ends):
        ids[row, list(places)] = 1
        ids[row, max(places) + 1 :] = 0
        mask[row, max(places) + 1 :] = 0
    ids[2, :3], mask[2, :3] = 0, 0  # padded on the left
    return {"input_ids": ids, "attention_mask": mask}


@partial(jax.jit, static_argnums=0)
def run(config, params, data, dropout_key=None, row_offset=0):
    return bind(config, params)(
        data["input_ids"],
        attention_mask=data["attention_mask"],
        dropout_key=dropout_key,
        row_offset=row_offset,
    )


@partial(jax.jit, static_argnums=0)
def loss_and_gradient(config, params, data):
    def loss(params):
        return jnp.mean((run(config, params, data) - TARGETS) ** 2)

    return jax.value_and_grad(loss)(params)


def run_torch(model, data, labels=None):
    import torch

    tensor = {k: torch.from_numpy(v).long() for k, v in data.items()}
    return model(**tensor, labels=None if labels is None else torch.from_numpy(labels))

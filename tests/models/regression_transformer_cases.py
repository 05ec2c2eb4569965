"""T5 with number encodings on random batches: ours, and transformers' T5 fed them."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from ntl_jax.models import (
    bind,
    shift_right,
)
from tests.models.cases import t5_batch as batch

FIRST, ROWS = 40, 384  # rows 40 to 359 are number tokens


def by_hand(value, dimension, formula, scale):
    """One entry, in Python's float64."""
    divisor = dimension + 1
    if formula == "reference" and dimension % 2:
        divisor = dimension
    entry = (-1) ** dimension * value / divisor
    if scale == "linear":
        return entry / (3e9 / 10)
    if scale == "log":
        logarithm = math.copysign(math.log10(abs(entry) + 1), entry)
        return logarithm / (math.log10(3e9) / 10)
    return entry


def numeric_batch():
    """Half of the tokens are numbers, at every place."""
    data = batch()
    draw = np.random.default_rng(1)
    for name in ("input_ids", "labels"):
        numbers = draw.integers(FIRST, FIRST + 320, data[name].shape, dtype=np.int32)
        data[name] = np.where(draw.random(data[name].shape) < 0.5, numbers, data[name])
    data["input_ids"][0, :3] = (39, 40, 359)  # on both sides of the edges
    return data


def number_encoding(token, width, formula):
    """[D] of one token, from the formula."""
    place, digit = divmod(token - FIRST, 10)
    if not 0 <= token - FIRST < 320:
        return [0.0] * width
    value = digit * 10.0 ** (place - 12)
    return [by_hand(value, dimension, formula, "log") for dimension in range(width)]


def run_torch(model, data, formula):
    """transformers' T5 on embeddings that are made here."""
    import torch

    width = model.config.d_model
    rows = [number_encoding(token, width, formula) for token in range(ROWS)]
    table = torch.tensor(rows, dtype=torch.float32)
    data = {k: torch.from_numpy(v).long() for k, v in data.items()}
    decoder_input_ids = model._shift_right(data["labels"])
    return model(
        inputs_embeds=model.shared(data["input_ids"]) + table[data["input_ids"]],
        attention_mask=data["attention_mask"],
        decoder_inputs_embeds=model.shared(decoder_input_ids)
        + table[decoder_input_ids],
        labels=data["labels"],
    )


@partial(jax.jit, static_argnums=0)
def logits_and_gradient(config, params, data):
    def loss(params):
        shifted = shift_right(data["labels"], start_id=0, pad_id=0)
        mask = data["attention_mask"]
        logits = bind(config, params)(data["input_ids"], shifted, attention_mask=mask)
        chosen = jax.nn.log_softmax(logits)
        chosen = jnp.take_along_axis(chosen, data["labels"][..., None], axis=-1)
        return -jnp.mean(chosen), logits

    grads, logits = jax.grad(loss, has_aux=True)(params)
    return logits, grads

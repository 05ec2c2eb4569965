"""xVal on tiny T5s and batches half of numbers: ours, and PyTorch's."""

from functools import partial

import jax
import numpy as np

from ntl_jax.hf.mapping import flatten, unflatten
from ntl_jax.losses.number_heads import xval_loss
from ntl_jax.models import XvalConfig, bind, init_params, shift_right
from ntl_jax.models.baselines.t5_xval import shift_values
from tests.models.cases import t5_batch as batch

NUM, POSITIONS, HIDDEN = 49, 48, 20
OWN = ("positions/embedding", "number_head/wi/kernel", "number_head/wi/bias")
OWN += ("number_head/wo/kernel", "number_head/wo/bias")


def numeric_batch():
    """Half of the tokens are numbers, values on both sides."""
    data, draw = batch(), np.random.default_rng(1)
    for ids, values in (("input_ids", "input_values"), ("labels", "values")):
        is_number = draw.random(data[ids].shape) < 0.5
        data[ids] = np.where(is_number, NUM, data[ids]).astype(np.int32)
        data[values] = draw.normal(0, 2, is_number.shape).astype(np.float32)
    data["labels"][1, 6:] = -100
    data["input_ids"][0, 0] = 0  # so that the table's first row is in use
    return data


def extended(plain, params, scale):
    """The config and parameters of an xVal around a T5's."""
    config = XvalConfig.from_t5(
        plain,
        num_id=NUM,
        embedding_scale=scale,
        max_positions=POSITIONS,
        number_hidden=HIDDEN,
    )
    fresh = flatten(init_params(config, jax.random.key(0)))
    draw = np.random.default_rng(2).standard_normal
    own = {path: 0.5 * draw(fresh[path].shape, np.float32) for path in OWN}
    return config, unflatten(flatten(params) | own)


def factor(ids, values, scale):
    """What an embedding is multiplied by, number by number."""
    if scale == "log":
        scaled = values.sign() * (values.abs() + 1).log10() / (np.log10(3e9) / 10)
    else:
        scaled = values + 1 if scale == "plus_one" else values
    return scaled.where(ids == NUM, ids.new_ones(()).float())[..., None]


def torch_loss(model, leaves, data, scale):
    """Loss and both predictions; `leaves` are what a T5 does not have."""
    import torch

    data = {name: torch.tensor(value) for name, value in data.items()}
    ids, labels = data["input_ids"].long(), data["labels"].long()
    shifted = model._shift_right(labels)
    ones = torch.ones(len(ids), 1)
    values = torch.cat([ones, data["values"][:, :-1]], dim=1)
    embedded = [
        model.shared(tokens) * factor(tokens, numbers, scale)
        + leaves["positions/embedding"][: tokens.shape[1]]
        for tokens, numbers in ((ids, data["input_values"]), (shifted, values))
    ]
    states = model(
        inputs_embeds=embedded[0],
        attention_mask=data["attention_mask"].long(),
        decoder_inputs_embeds=embedded[1],
        output_hidden_states=True,
    )
    x = states.decoder_hidden_states[-1]  # after the last norm, not scaled
    h = x @ leaves["number_head/wi/kernel"] + leaves["number_head/wi/bias"]
    h = torch.nn.functional.gelu(h)
    numbers = (h @ leaves["number_head/wo/kernel"])[..., 0]
    numbers = numbers + leaves["number_head/wo/bias"]
    here = labels == NUM
    cross = torch.nn.functional.cross_entropy(states.logits.mT, labels)
    squared = torch.nn.functional.mse_loss(numbers[here], data["values"][here])
    return cross + squared, states.logits, numbers


@partial(jax.jit, static_argnums=0)
def loss_and_gradient(config, params, data, dropout_key=None):
    def loss(params):
        output = bind(config, params)(
            data["input_ids"],
            data["input_values"],
            shift_right(data["labels"], start_id=0, pad_id=0),
            shift_values(data["values"]),
            attention_mask=data["attention_mask"],
            dropout_key=dropout_key,
        )
        logits, numbers = output
        terms = xval_loss(logits, numbers, data["labels"], data["values"], num_id=NUM)
        return terms.total(), output

    (value, output), grads = jax.value_and_grad(loss, has_aux=True)(params)
    return value, output, grads

"""Tiny random GPT-2 models in PyTorch, and the same weights as parameter trees."""

from functools import partial

import jax
import numpy as np
import pytest

from ntl_jax.hf import gpt2
from ntl_jax.hf.mapping import read_params
from ntl_jax.models import GPT2Config, Params, init_params

SIZES = {
    "vocab_size": 51,
    "n_positions": 48,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "bos_token_id": 50,
    "eos_token_id": 50,
}
KINDS = {
    "tied": {},
    "untied": {
        "tie_word_embeddings": False,
        "n_inner": 40,
        "activation_function": "relu",
        "layer_norm_epsilon": 1e-2,
    },
}
PADDINGS = ("none", "left", "right")


def torch_model(kind: str, seed: int = 0, gain: float = 6.0, **changes):
    """A random GPT2LMHeadModel in float32, dropout off, no weight at 0 or 1.

    Fresh matrices are multiplied by `gain`: they are so small that softmaxes stay
    flat and hide mistakes.
    """
    torch = pytest.importorskip("torch")
    import transformers

    torch.manual_seed(seed)
    config = transformers.GPT2Config(**SIZES | KINDS[kind] | changes)
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(gain)
            else:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def tensors(model) -> dict[str, np.ndarray]:
    """The model's distinct tensors by name."""
    return {k: v.detach().numpy() for k, v in model.named_parameters()}


def to_params(config: GPT2Config, named: dict[str, np.ndarray]) -> Params:
    """Named tensors, weights or their gradients, as a parameter tree."""
    shapes = jax.eval_shape(partial(init_params, config), jax.random.key(0))
    return read_params(gpt2.table(config), list(named), named.__getitem__, shapes)


def ours(model, **changes) -> tuple[GPT2Config, Params]:
    """Config and parameters of a PyTorch model."""
    named = tensors(model)
    raw = model.config.to_dict()
    config = gpt2.read_config(raw, list(named), named.__getitem__, **changes)
    return config, to_params(config, named)


def batch(padding: str = "left", seed: int = 0, rows: int = 3, length: int = 20):
    """Random tokens, labels (the next tokens) and, unless "none", a mask.

    Rows after the first are padded on one side, more and more of them.
    """
    draw = np.random.default_rng(seed)
    data = {"input_ids": draw.integers(0, 50, (rows, length), dtype=np.int32)}
    mask = np.ones((rows, length), np.int32)
    if padding != "none":
        for row in range(1, rows):
            hidden = length * row // (rows + 1)
            mask[row, slice(hidden) if padding == "left" else slice(-hidden, None)] = 0
        data["attention_mask"] = mask
    # What follows on padding is not to be predicted from it.
    predicted = mask & np.pad(mask[:, :-1], ((0, 0), (1, 0)))
    data["labels"] = np.where(predicted, data["input_ids"], -100).astype(np.int32)
    return data


def run_torch(model, data, **options):
    """What the PyTorch model gives, with positions that do not count padding."""
    import torch

    tensor = {k: torch.from_numpy(v).long() for k, v in data.items()}
    if "attention_mask" in tensor:
        positions = tensor["attention_mask"].cumsum(1) - 1
        tensor["position_ids"] = positions.clamp(min=0)
    return model(**tensor, **options)


def real(data) -> np.ndarray:
    """Bool [B, T]: which positions are none of padding."""
    if "attention_mask" not in data:
        return np.ones(data["input_ids"].shape, bool)
    return data["attention_mask"].astype(bool)

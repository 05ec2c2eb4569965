"""Tiny random T5 models in PyTorch, and the same weights as parameter trees."""

from functools import partial

import jax
import numpy as np
import pytest

from ntl_jax.hf import t5
from ntl_jax.hf.mapping import flatten, read_params, unflatten
from ntl_jax.models import Params, T5Config, init_params

SIZES = {
    "vocab_size": 50,
    "d_model": 32,
    "d_kv": 12,  # not d_model / num_heads
    "d_ff": 48,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
KINDS = {
    "v1_0": {"feed_forward_proj": "relu"},
    "v1_1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
}


def torch_model(kind: str, seed: int = 0, **changes):
    """A random T5ForConditionalGeneration in float32, dropout off."""
    torch = pytest.importorskip("torch")
    import transformers

    torch.manual_seed(seed)
    config = transformers.T5Config(**SIZES | KINDS[kind] | changes)
    model = transformers.T5ForConditionalGeneration(config).eval()
    if kind == "v1_1":  # a head of its own, which the constructor has tied
        model.lm_head.weight = torch.nn.Parameter(
            torch.randn(model.lm_head.weight.shape)
        )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:  # all ones otherwise, which would hide a swap
                parameter.add_(0.3 * torch.randn_like(parameter))
            if "relative_attention_bias" in name:
                parameter.mul_(4)
    return model


def tensors(model) -> dict[str, np.ndarray]:
    """The model's distinct tensors by name."""
    return {k: v.detach().numpy() for k, v in model.named_parameters()}


def to_params(config: T5Config, named: dict[str, np.ndarray]) -> Params:
    """Named tensors, weights or their gradients, as a parameter tree."""
    shapes = jax.eval_shape(partial(init_params, config), jax.random.key(0))
    return read_params(t5.table(config), list(named), named.__getitem__, shapes)


def ours(model, **changes) -> tuple[T5Config, Params]:
    """Config and parameters of a PyTorch model."""
    named = tensors(model)
    raw = model.config.to_dict()
    config = t5.read_config(raw, list(named), named.__getitem__, **changes)
    return config, to_params(config, named)


def batch(seed: int = 0, rows: int = 3, source: int = 40, target: int = 9) -> dict:
    """Random tokens; the second row is padded on the right, the third on the left."""
    draw = np.random.default_rng(seed)
    mask = np.ones((rows, source), np.int32)
    mask[1:2, source // 3 :] = 0
    mask[2:3, : source // 4] = 0
    return {
        "input_ids": draw.integers(2, 50, (rows, source), dtype=np.int32),
        "attention_mask": mask,
        "labels": draw.integers(2, 50, (rows, target), dtype=np.int32),
    }


def perturbed(params: Params, path: str) -> Params:
    """The parameters with one weight of one leaf changed."""
    flat = dict(flatten(params))
    leaf = np.array(flat[path])
    leaf[(0,) * leaf.ndim] += 1.0
    flat[path] = leaf
    return unflatten(flat)

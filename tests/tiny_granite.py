"""Tiny random Granite models in PyTorch, and the same weights as parameter trees."""

from functools import partial

import jax
import numpy as np
import pytest

from ntl_jax.hf import granite
from ntl_jax.hf.mapping import read_params
from ntl_jax.models import GraniteConfig, Params, init_params

SIZES = {
    "vocab_size": 51,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "attention_multiplier": 0.2,  # 1/sqrt(H) would be 0.354
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.6,
    "logits_scaling": 2.5,
    "pad_token_id": None,  # else PyTorch does not train its embedding
    "bos_token_id": 50,
    "eos_token_id": 50,
}
THETA = 40.0  # so that far positions differ within a short row
KINDS = {
    "dense": {"tie_word_embeddings": True},
    "biased": {
        "tie_word_embeddings": False,
        "attention_bias": True,
        "mlp_bias": True,
        "num_key_value_heads": 1,
        "rms_norm_eps": 1e-2,
    },
    "experts": {
        "tie_word_embeddings": True,
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "router_aux_loss_coef": 0.5,
    },
}
LONG = 64  # three such rows are too many tokens for all experts to see all


def torch_model(kind: str, seed: int = 0, gain: float = 8.0, **changes):
    """A random Granite in float32, dropout off, no weight at 0 or 1."""
    torch = pytest.importorskip("torch")
    import transformers

    torch.manual_seed(seed)
    name = "GraniteMoe" if kind == "experts" else "Granite"
    rope = {"rope_type": "default", "rope_theta": THETA}
    fields = SIZES | KINDS[kind] | {"rope_parameters": rope} | changes
    config = getattr(transformers, f"{name}Config")(**fields)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Fresh weights are so small that softmaxes stay flat and hide mistakes.
            parameter.mul_(gain if parameter.ndim > 1 else 1)
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


_NAMES_IN_FILES = {
    "block_sparse_moe.router.weight": "block_sparse_moe.router.layer.weight",
    "block_sparse_moe.experts.gate_up_proj": "block_sparse_moe.input_linear.weight",
    "block_sparse_moe.experts.down_proj": "block_sparse_moe.output_linear.weight",
}


def in_file(name: str) -> str:
    """A parameter's name as checkpoints have it."""
    for module_name, file_name in _NAMES_IN_FILES.items():
        name = name.replace(module_name, file_name)
    return name


def tensors(model) -> dict[str, np.ndarray]:
    """The model's distinct tensors by the names that files give them."""
    return {in_file(k): v.detach().numpy() for k, v in model.named_parameters()}


def gradients(model) -> dict[str, np.ndarray]:
    """The gradients of the model's tensors, by the same names."""
    return {in_file(k): v.grad.numpy() for k, v in model.named_parameters()}


def to_params(config: GraniteConfig, named: dict[str, np.ndarray]) -> Params:
    """Named tensors, weights or their gradients, as a parameter tree."""
    shapes = jax.eval_shape(partial(init_params, config), jax.random.key(0))
    return read_params(granite.table(config), list(named), named.__getitem__, shapes)


def ours(model, **changes) -> tuple[GraniteConfig, Params]:
    """Config and parameters of a PyTorch model."""
    named = tensors(model)
    raw = model.config.to_dict()
    config = granite.read_config(raw, list(named), named.__getitem__, **changes)
    return config, to_params(config, named)

"""Tiny random models of every released family: PyTorch's, and the same weights as ours.

A new decoder-only family is one entry of `CASES` per kind, one of `TINY` for its forms
without PyTorch, and its fields and classes in the tables that they use.
"""

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
import pytest

from ntl_jax.hf import gpt2, granite, t5
from ntl_jax.hf.mapping import flatten, read_params, unflatten
from ntl_jax.models import GPT2Config, GraniteConfig, Params, T5Config, init_params

T5_SIZES = {
    "vocab_size": 50,
    "d_model": 32,
    "d_kv": 12,  # not d_model / num_heads
    "d_ff": 48,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
GPT2_SIZES = {
    "vocab_size": 51,
    "n_positions": 48,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "bos_token_id": 50,
    "eos_token_id": 50,
}
GRANITE_SIZES = {
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
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": THETA}}
BIASED = {
    "tie_word_embeddings": False,
    "attention_bias": True,
    "mlp_bias": True,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-2,
}
EXPERTS = {
    "tie_word_embeddings": True,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "router_aux_loss_coef": 0.5,
}
LONG = 64  # three such rows are too many tokens for all experts to see all


class Case(NamedTuple):
    """A kind of a family.

    config, model: transformers' classes.
    fields: of the config.
    gain: what fresh matrices are multiplied by: they are so small that softmaxes stay
        flat and hide mistakes.
    long: the length of the longer rows that are compared.
    probe, norm: leaves whose perturbation must show in the tokens and in all gradients.
    """

    config: str
    model: str
    fields: dict
    gain: float
    long: int
    probe: str = "layers/attention/o/kernel"
    norm: str = "final_norm/scale"


_T5 = partial(
    Case,
    "T5Config",
    "T5ForConditionalGeneration",
    gain=1.0,
    long=300,
    probe="decoder/layers/cross_attention/o/kernel",
    norm="encoder/final_norm/scale",
)
_GPT2 = partial(Case, "GPT2Config", "GPT2LMHeadModel", gain=6.0, long=48)
_GRANITE = partial(Case, "GraniteConfig", "GraniteForCausalLM", gain=8.0, long=LONG)
_GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
_UNTIED = {
    "tie_word_embeddings": False,
    "n_inner": 40,
    "activation_function": "relu",
    "layer_norm_epsilon": 1e-2,
}
_TIED = {"tie_word_embeddings": True}
CASES = {
    "t5_v1_0": _T5(T5_SIZES | {"feed_forward_proj": "relu"}),
    "t5_v1_1": _T5(T5_SIZES | _GATED),
    "gpt2_tied": _GPT2(GPT2_SIZES),
    "gpt2_untied": _GPT2(GPT2_SIZES | _UNTIED),
    "granite_dense": _GRANITE(GRANITE_SIZES | ROPE | _TIED),
    "granite_biased": _GRANITE(GRANITE_SIZES | ROPE | BIASED),
    "granite_experts": Case(
        "GraniteMoeConfig",
        "GraniteMoeForCausalLM",
        GRANITE_SIZES | ROPE | EXPERTS,
        gain=8.0,
        long=LONG,
    ),
}
T5_CASES = ("t5_v1_0", "t5_v1_1")
DECODERS = tuple(name for name in CASES if name not in T5_CASES)
GRANITES = tuple(name for name in DECODERS if name.startswith("granite"))
PADDINGS = ("none", "left", "right")

# The same without PyTorch: two layers each, and weights large enough to tell apart.
_TINY_T5 = T5Config(**T5_SIZES | {"num_layers": 2, "num_decoder_layers": 2})
_TINY_GPT2 = GPT2Config(
    **GPT2_SIZES | {"n_layer": 2, "pad_token_id": 50}, initializer_range=0.2
)
_TINY_GRANITE = GraniteConfig(
    **GRANITE_SIZES | {"num_hidden_layers": 2, "pad_token_id": 50},
    initializer_range=0.2,
    rope_theta=THETA,
)
TINY = {
    "t5_v1_0": _TINY_T5,
    "t5_v1_1": dataclasses.replace(_TINY_T5, **_GATED, scale_decoder_outputs=False),
    "gpt2_tied": _TINY_GPT2,
    "gpt2_untied": dataclasses.replace(_TINY_GPT2, tie_word_embeddings=False),
    "granite_dense": _TINY_GRANITE,
    "granite_biased": dataclasses.replace(
        _TINY_GRANITE, tie_word_embeddings=False, attention_bias=True, mlp_bias=True
    ),
    "granite_experts": dataclasses.replace(_TINY_GRANITE, **EXPERTS),
}
_FAMILIES = {T5Config: t5, GPT2Config: gpt2, GraniteConfig: granite}


def torch_model(name: str, seed: int = 0, gain: float | None = None, **changes):
    """A random PyTorch model in float32, dropout off, no weight at 0 or 1."""
    torch = pytest.importorskip("torch")
    import transformers

    torch.manual_seed(seed)
    case = CASES[name]
    config = getattr(transformers, case.config)(**case.fields | changes)
    model = getattr(transformers, case.model)(config).eval()
    with torch.no_grad():
        if name in T5_CASES:
            _vary_t5(model, untie=name == "t5_v1_1")
            return model
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(case.gain if gain is None else gain)
            else:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def _vary_t5(model, *, untie: bool) -> None:
    import torch

    if untie:  # a head of its own, which the constructor has tied
        head = torch.randn(model.lm_head.weight.shape)
        model.lm_head.weight = torch.nn.Parameter(head)
    for name, parameter in model.named_parameters():
        if "norm" in name:  # all ones otherwise, which would hide a swap
            parameter.add_(0.3 * torch.randn_like(parameter))
        if "relative_attention_bias" in name:
            parameter.mul_(4)


_NAMES_IN_FILES = {
    "block_sparse_moe.router.weight": "block_sparse_moe.router.layer.weight",
    "block_sparse_moe.experts.gate_up_proj": "block_sparse_moe.input_linear.weight",
    "block_sparse_moe.experts.down_proj": "block_sparse_moe.output_linear.weight",
}


def _in_file(name: str) -> str:
    """A parameter's name as checkpoints have it."""
    for module_name, file_name in _NAMES_IN_FILES.items():
        name = name.replace(module_name, file_name)
    return name


def tensors(model) -> dict[str, np.ndarray]:
    """The model's distinct tensors by the names that files give them."""
    return {_in_file(k): v.detach().numpy() for k, v in model.named_parameters()}


def gradients(model) -> dict[str, np.ndarray]:
    """The gradients of the model's tensors, by the same names."""
    return {_in_file(k): v.grad.numpy() for k, v in model.named_parameters()}


def read_config(raw: dict, named: dict[str, np.ndarray], **changes):
    """Our config of a Hugging Face one."""
    family = granite if "granite" in raw["model_type"] else None
    family = family or {"t5": t5, "gpt2": gpt2}[raw["model_type"]]
    return family.read_config(raw, list(named), named.__getitem__, **changes)


def to_params(config, named: dict[str, np.ndarray]) -> Params:
    """Named tensors, weights or their gradients, as a parameter tree."""
    shapes = jax.eval_shape(partial(init_params, config), jax.random.key(0))
    table = _FAMILIES[type(config)].table(config)
    return read_params(table, list(named), named.__getitem__, shapes)


def ours(model, **changes):
    """Our config and parameters of a PyTorch model."""
    named = tensors(model)
    config = read_config(model.config.to_dict(), named, **changes)
    return config, to_params(config, named)


def t5_batch(seed: int = 0, rows: int = 3, source: int = 40, target: int = 9) -> dict:
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


def batches(name: str, padding: str) -> list[dict]:
    """A usual batch of a case, one of single tokens, and one of long rows."""
    long = CASES[name].long
    if name in T5_CASES:
        one = t5_batch(1, rows=1, source=1, target=1)
        return [t5_batch(), one, t5_batch(2, source=long)]
    one = batch("none", 1, rows=1, length=1)
    return [batch(padding), one, batch(padding, 2, length=long)]


def padded():
    """Every padding of every case; slow, that of no masks where biases are all new."""
    for name in CASES:
        for padding in ("both",) if name in T5_CASES else PADDINGS:
            few = name == "granite_biased" and padding == "none"
            yield pytest.param(name, padding, marks=pytest.mark.slow if few else ())


def run_torch(model, data, **options):
    """What the PyTorch model gives, with positions that do not count padding."""
    import torch

    tensor = {k: torch.from_numpy(v).long() for k, v in data.items()}
    if "attention_mask" in tensor and not model.config.is_encoder_decoder:
        positions = tensor["attention_mask"].cumsum(1) - 1
        tensor["position_ids"] = positions.clamp(min=0)
    if getattr(model.config, "num_local_experts", 0):
        options = {"output_router_logits": True} | options
    return model(**tensor, **options)


def torch_logits(model, data) -> np.ndarray:
    """The PyTorch model's logits."""
    return run_torch(model, data).logits.detach().numpy()


def real(data) -> np.ndarray:
    """Bool, of the labels' shape: positions of a decoder-only batch without padding."""
    shape = data["labels" if "labels" in data else "input_ids"].shape
    mask = data.get("attention_mask")
    if mask is None or mask.shape != shape:
        return np.ones(shape, bool)
    return mask.astype(bool)


def perturbed(params: Params, path: str) -> Params:
    """The parameters with one weight of one leaf changed."""
    flat = dict(flatten(params))
    leaf = np.array(flat[path])
    leaf[(0,) * leaf.ndim] += 1.0
    flat[path] = leaf
    return unflatten(flat)

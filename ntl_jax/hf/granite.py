"""Granite's weight table and config.json, dense and mixture of experts, both ways."""

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from ntl_jax.hf.blocks import StoredTensor
from ntl_jax.hf.rules import Rule, Table
from ntl_jax.models.granite.config import GraniteConfig

NAMES = ("granite", "granitemoe")
_PREFIX = "model."
_TABLE, _HEAD = f"{_PREFIX}embed_tokens.weight", "lm_head.weight"
# Fields with one meaning and one name in both configs, and what a config.json without
# them means. rope_theta and num_key_value_heads are read apart.
_PLAIN = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "attention_multiplier": 1.0,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "logits_scaling": 1.0,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_DENSE = {"mlp_bias": False}
_EXPERTS = {
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
}
_MAY_BE_NULL = ("pad_token_id", "bos_token_id", "eos_token_id")
_DENSE_KIND, _EXPERTS_KIND = "granite", "granitemoe"

logger = logging.getLogger(__name__)


def table(config: GraniteConfig) -> Table:
    """The weight table of GraniteForCausalLM or GraniteMoeForCausalLM."""
    rows = config.vocab_size
    layers = config.num_hidden_layers
    rules = [
        Rule("embed/embedding", _TABLE, rows=rows),
        Rule("final_norm/scale", f"{_PREFIX}norm.weight"),
    ]

    def rule(path: str, key: str, **more: Any) -> None:
        key = f"{_PREFIX}layers.{{}}.{key}"
        rules.append(Rule(f"layers/{path}", key, layers, **more))

    def linear(path: str, key: str, bias: bool) -> None:
        rule(f"{path}/kernel", f"{key}.weight", transpose=True)
        if bias:
            rule(f"{path}/bias", f"{key}.bias")

    rule("attention/norm/scale", "input_layernorm.weight")
    rule("mlp/norm/scale", "post_attention_layernorm.weight")
    for name in ("q", "k", "v", "o"):
        linear(f"attention/{name}", f"self_attn.{name}_proj", config.attention_bias)
    if config.num_local_experts:
        experts, inner = config.num_local_experts, config.intermediate_size
        fused, block = (experts, 2 * inner, config.hidden_size), "block_sparse_moe"
        linear("mlp/router", f"{block}.router.layer", False)
        rule("mlp/gate_up", f"{block}.input_linear.weight", shape=fused)
        rule("mlp/down", f"{block}.output_linear.weight")
    else:
        for name in ("gate", "up", "down"):
            linear(f"mlp/{name}", f"mlp.{name}_proj", config.mlp_bias)
    copies = {}
    if config.tie_word_embeddings:
        copies[_HEAD] = _TABLE
    else:
        rules.append(Rule("lm_head/kernel", _HEAD, transpose=True, rows=rows))
    # Angular speeds that early releases kept beside the weights.
    ignored = (r"(model\.)?(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",)
    return Table(tuple(rules), copies, ignored, _PREFIX)


def read_config(
    raw: dict[str, Any],
    names: list[str],
    read: Callable[[str], StoredTensor],
    **changes: Any,
) -> GraniteConfig:
    """A GraniteConfig from config.json as transformers 4 or 5 writes it.

    transformers 4 has `rope_theta` and `rope_scaling`, transformers 5 has both in
    `rope_parameters`.

    Args:
        raw: the parsed config.json.
        names: the checkpoint's tensor names, which add nothing for Granite.
        read: gives a tensor by its name; not called.
        **changes: GraniteConfig fields to set otherwise, such as `attention_dropout`,
            or `vocab_rows` for a table with more rows than the file's.

    Returns:
        The config.

    Raises:
        ValueError: a field has a value that the model does not have.
    """
    has_experts = raw.get("model_type") == _EXPERTS_KIND
    known = _PLAIN | (_EXPERTS if has_experts else _DENSE)
    fields: dict[str, Any] = {
        name: raw.get(name, default)
        if name in _MAY_BE_NULL or raw.get(name) is not None
        else default
        for name, default in known.items()
    }
    fields["rope_theta"] = _rope_theta(raw)
    heads = raw.get("num_key_value_heads")
    fields["num_key_value_heads"] = heads or fields["num_attention_heads"]
    if not has_experts:
        fields["router_aux_loss_coef"] = 0.0
    fields |= changes
    config = GraniteConfig(**fields)
    for name, value in (("hidden_act", "silu"), ("head_dim", config.head_dim)):
        if raw.get(name) not in (None, value):
            raise ValueError(
                f"{name} is {raw[name]!r}, but this Granite knows only {value!r}"
            )
    if not isinstance(config.eos_token_id, int | None):
        raise ValueError(
            f"eos_token_id is {config.eos_token_id}, but one number is needed; "
            "pass eos_token_id=... to choose it"
        )
    if config.rows != config.vocab_size:
        logger.info(
            "vocabulary padded from %d to %d rows", config.vocab_size, config.rows
        )
    return config


def _rope_theta(raw: dict[str, Any]) -> float:
    rope = raw.get("rope_parameters") or {}
    scaling = raw.get("rope_scaling") or rope
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind != "default" or rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(
            f"rotary positions are {scaling}, but this Granite knows only the plain "
            "kind, rope_type 'default' over whole heads"
        )
    return float(rope.get("rope_theta", raw.get("rope_theta", 10000.0)))


def write_config(config: GraniteConfig) -> dict[str, Any]:
    """A config.json that transformers 4 and 5 both read as `config` means it.

    Rows that pad the vocabulary are left out, here as in the tensors.
    """
    fields = dataclasses.asdict(config)
    has_experts = config.num_local_experts > 0
    known = _PLAIN | (_EXPERTS if has_experts else _DENSE)
    kind = "GraniteMoeForCausalLM" if has_experts else "GraniteForCausalLM"
    return {name: fields[name] for name in known} | {
        "architectures": [kind],
        "model_type": _EXPERTS_KIND if has_experts else _DENSE_KIND,
        "num_key_value_heads": config.num_key_value_heads,
        "hidden_act": "silu",
        "rope_theta": config.rope_theta,
        "rope_scaling": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
    }


def written_copies(
    config: GraniteConfig, tensors: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Tensors that a file repeats for old versions of transformers: none."""
    return {}

"""T5's weight table and config.json, both ways."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from ntl_jax.hf.blocks import StoredTensor
from ntl_jax.hf.mapping import same_values
from ntl_jax.hf.rules import Rule, Table
from ntl_jax.models.t5.config import T5Config

NAMES = ("t5",)
_BLOCK = "{stack}.block.{{}}.layer.{place}."
_SHARED, _HEAD = "shared.weight", "lm_head.weight"
# Fields with one meaning and one name in both configs.
_PLAIN = (
    "vocab_size",
    "d_model",
    "d_kv",
    "d_ff",
    "num_layers",
    "num_decoder_layers",
    "num_heads",
    "relative_attention_num_buckets",
    "relative_attention_max_distance",
    "dropout_rate",
    "layer_norm_epsilon",
    "initializer_factor",
    "feed_forward_proj",
    "pad_token_id",
    "eos_token_id",
    "decoder_start_token_id",
)


def table(config: T5Config) -> Table:
    """The weight table of T5ForConditionalGeneration for a config."""
    rules = [Rule("shared/embedding", _SHARED, rows=config.vocab_size)]
    rules += _stack_rules("encoder", config.num_layers, config.gated)
    rules += _stack_rules("decoder", config.num_decoder_layers, config.gated)
    copies: dict[str, str] = {
        "encoder.embed_tokens.weight": _SHARED,
        "decoder.embed_tokens.weight": _SHARED,
    }
    if config.tie_word_embeddings:
        copies[_HEAD] = _SHARED
    else:
        rows = config.vocab_size
        rules.append(Rule("lm_head/kernel", _HEAD, transpose=True, rows=rows))
    # Early releases gave cross-attention a bias table that no version reads.
    ignored = (
        r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
    )
    return Table(tuple(rules), copies, ignored)


def _stack_rules(stack: str, layers: int, gated: bool) -> list[Rule]:
    attentions = [("attention", 0, "SelfAttention")]
    if stack == "decoder":
        attentions.append(("cross_attention", 1, "EncDecAttention"))
    inputs = ("wi_0", "wi_1") if gated else ("wi",)
    last = len(attentions)
    rules = []
    for name, place, hf_name in attentions:
        block = _BLOCK.format(stack=stack, place=place)
        path = f"{stack}/layers/{name}"
        rules.append(Rule(f"{path}/norm/scale", f"{block}layer_norm.weight", layers))
        for matrix in ("q", "k", "v", "o"):
            key = f"{block}{hf_name}.{matrix}.weight"
            rules.append(Rule(f"{path}/{matrix}/kernel", key, layers, transpose=True))
    block, path = _BLOCK.format(stack=stack, place=last), f"{stack}/layers/mlp"
    rules.append(Rule(f"{path}/norm/scale", f"{block}layer_norm.weight", layers))
    for matrix in (*inputs, "wo"):
        key = f"{block}DenseReluDense.{matrix}.weight"
        rules.append(Rule(f"{path}/{matrix}/kernel", key, layers, transpose=True))
    bias = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    rules.append(Rule(f"{stack}/relative_bias/embedding", bias))
    rules.append(Rule(f"{stack}/final_norm/scale", f"{stack}.final_layer_norm.weight"))
    return rules


def read_config(
    raw: dict[str, Any],
    names: list[str],
    read: Callable[[str], StoredTensor],
    **changes: Any,
) -> T5Config:
    """A T5Config from config.json as transformers 4 or 5 writes it.

    transformers 4 says by `tie_word_embeddings` whether the head is the table, and
    scales the decoder's output exactly where it is. transformers 5 always writes
    `tie_word_embeddings: true` for T5, keeps the scaling as `scale_decoder_outputs`,
    and leaves it to the weights whether the head is another matrix.

    Args:
        raw: the parsed config.json.
        names: the checkpoint's tensor names.
        read: gives a tensor by its name.
        **changes: T5Config fields to set otherwise, such as `dropout_rate`.

    Returns:
        The config.

    Raises:
        ValueError: a field has a value that the model does not have.
    """
    fields = {name: raw[name] for name in _PLAIN if raw.get(name) is not None}
    layers = fields.setdefault("num_layers", T5Config.num_layers)
    fields.setdefault("num_decoder_layers", layers)
    if "scale_decoder_outputs" in raw:
        tied = not (
            {_HEAD, _SHARED} <= set(names)
            and not same_values(read(_HEAD), read(_SHARED))
        )
        scaled = raw["scale_decoder_outputs"]
    else:
        tied = scaled = raw.get("tie_word_embeddings", True)
    fields |= {"tie_word_embeddings": tied, "scale_decoder_outputs": scaled} | changes
    if not isinstance(fields.get("eos_token_id", 1), int):
        raise ValueError(
            f"eos_token_id is {fields['eos_token_id']}, but one number is needed; "
            "pass eos_token_id=... to choose it"
        )
    return T5Config(**fields)


def write_config(config: T5Config) -> dict[str, Any]:
    """A config.json that transformers 4 and 5 both read as `config` means it.

    Raises:
        ValueError: an untied head after a scaled decoder, which transformers 4 has no
            words for and would read as tied.
    """
    if config.scale_decoder_outputs and not config.tie_word_embeddings:
        raise ValueError(
            "an untied head with scale_decoder_outputs=True has no form in Hugging "
            "Face's T5 config: multiply the head by d_model**-0.5 and set "
            "scale_decoder_outputs=False"
        )
    fields = dataclasses.asdict(config)
    return {name: fields[name] for name in _PLAIN} | {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "is_encoder_decoder": True,
        # In transformers 4 this also means "scaled"; a tied head that is not scaled
        # is written out as a head of its own.
        "tie_word_embeddings": config.scale_decoder_outputs,
        "scale_decoder_outputs": config.scale_decoder_outputs,
    }


def written_copies(
    config: T5Config, tensors: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Tensors that a file repeats so that every version of transformers reads it."""
    if config.tie_word_embeddings and not config.scale_decoder_outputs:
        return {_HEAD: tensors[_SHARED].copy()}
    return {}

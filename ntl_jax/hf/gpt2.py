"""GPT-2's weight table and config.json, both ways."""

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from ntl_jax.hf.blocks import StoredTensor
from ntl_jax.hf.rules import Rule, Table
from ntl_jax.models.gpt2.config import GPT2Config

NAMES = ("gpt2",)
_PREFIX = "transformer."
_TABLE, _HEAD = f"{_PREFIX}wte.weight", "lm_head.weight"
# Fields with one meaning and one name in both configs.
_PLAIN = (
    "vocab_size",
    "n_positions",
    "n_embd",
    "n_layer",
    "n_head",
    "n_inner",
    "activation_function",
    "resid_pdrop",
    "embd_pdrop",
    "attn_pdrop",
    "layer_norm_epsilon",
    "initializer_range",
    "tie_word_embeddings",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
)
_MUST_BE = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}

logger = logging.getLogger(__name__)


def table(config: GPT2Config) -> Table:
    """The weight table of GPT2LMHeadModel for a config.

    Matrices lie as [in, out] in the files, as they do here.
    """
    width, rows = config.n_embd, config.vocab_size
    rules = [
        Rule("wte/embedding", _TABLE, rows=rows),
        Rule("wpe/embedding", f"{_PREFIX}wpe.weight"),
        *_norm("final_norm", "ln_f", None),
        *_norm("layers/attention/norm", "h.{}.ln_1", config.n_layer),
        *_norm("layers/mlp/norm", "h.{}.ln_2", config.n_layer),
    ]
    for path, key, kernel, bias in (
        ("attention/qkv", "attn.c_attn", (width, 3 * width), (3 * width,)),
        ("attention/o", "attn.c_proj", None, None),
        ("mlp/wi", "mlp.c_fc", None, None),
        ("mlp/wo", "mlp.c_proj", None, None),
    ):
        path, key = f"layers/{path}", f"{_PREFIX}h.{{}}.{key}"
        layers = config.n_layer
        rules.append(Rule(f"{path}/kernel", f"{key}.weight", layers, shape=kernel))
        rules.append(Rule(f"{path}/bias", f"{key}.bias", layers, shape=bias))
    copies = {}
    if config.tie_word_embeddings:
        copies[_HEAD] = _TABLE
    else:
        rules.append(Rule("lm_head/kernel", _HEAD, transpose=True, rows=rows))
    # Causal masks that early releases kept beside the weights.
    ignored = (r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)",)
    return Table(tuple(rules), copies, ignored, _PREFIX)


def _norm(path: str, key: str, layers: int | None) -> list[Rule]:
    return [
        Rule(f"{path}/scale", f"{_PREFIX}{key}.weight", layers),
        Rule(f"{path}/bias", f"{_PREFIX}{key}.bias", layers),
    ]


def read_config(
    raw: dict[str, Any],
    names: list[str],
    read: Callable[[str], StoredTensor],
    **changes: Any,
) -> GPT2Config:
    """A GPT2Config from config.json as transformers 4 or 5 writes it.

    Args:
        raw: the parsed config.json.
        names: the checkpoint's tensor names, which add nothing for GPT-2.
        read: gives a tensor by its name; not called.
        **changes: GPT2Config fields to set otherwise, such as `attn_pdrop`, or
            `vocab_rows` for a table with more rows than the file's.

    Returns:
        The config. Without a pad token, the end token takes its place.

    Raises:
        ValueError: a field has a value that the model does not have.
    """
    for name, value in _MUST_BE.items():
        if raw.get(name, value) != value:
            raise ValueError(
                f"{name} is {raw[name]}, but this GPT-2 knows only {value}"
            )
    fields = {name: raw[name] for name in _PLAIN if raw.get(name) is not None}
    fields |= changes
    end = fields.get("eos_token_id", GPT2Config.eos_token_id)
    if not isinstance(end, int):
        raise ValueError(
            f"eos_token_id is {end}, but one number is needed; "
            "pass eos_token_id=... to choose it"
        )
    fields.setdefault("pad_token_id", end)
    config = GPT2Config(**fields)
    if config.rows != config.vocab_size:
        logger.info(
            "vocabulary padded from %d to %d rows", config.vocab_size, config.rows
        )
    return config


def write_config(config: GPT2Config) -> dict[str, Any]:
    """A config.json that transformers 4 and 5 both read as `config` means it.

    Rows that pad the vocabulary are left out, here as in the tensors.
    """
    fields = dataclasses.asdict(config)
    return {name: fields[name] for name in _PLAIN} | {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
    }


def written_copies(
    config: GPT2Config, tensors: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Tensors that a file repeats for old versions of transformers: none."""
    return {}

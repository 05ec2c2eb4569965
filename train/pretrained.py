"""Starting from a Hugging Face checkpoint: its config, its vocabulary, its weights."""

import dataclasses
import logging
import math
from typing import Any

from ntl_jax.hf import load_config
from ntl_jax.models import Config
from train.config import ConfigError, TrainConfig
from train.heads import head_of
from train.state import Params, Task

logger = logging.getLogger("train")

_OF_PRESET = ("dtype", "unroll_layers", "remat", "attention")
"""Fields that, beside rates of dropout, stay the preset's under a checkpoint."""
_FREE = (
    *_OF_PRESET,
    "vocab_rows",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "decoder_start_token_id",
    "initializer_factor",
    "initializer_range",
    "output_router_logits",
    "router_aux_loss_coef",
)
"""Fields that may differ from the checkpoint's: its weights mean the same with them."""
_MULTIPLE = 128  # of rows, where they are padded: suits GPUs and TPUs


def adopt_checkpoint(config: TrainConfig, init_from: str) -> TrainConfig:
    """The config with a checkpoint's model, whatever the family, in place of its own.

    Dropout, dtype and the ways to run layers stay as they are, where the checkpoint's
    kind of model has such fields.

    Args:
        config: a preset.
        init_from: a folder or a hub id.

    Raises:
        ConfigError: the checkpoint cannot be read.
    """
    model = _model_of(init_from, config.model.dtype)
    rates = set(model.dropout_fields) & set(config.model.dropout_fields)
    kept = {name: getattr(config.model, name) for name in (*_OF_PRESET, *rates)}
    model = dataclasses.replace(model, **kept)
    return dataclasses.replace(config, init_from=init_from, model=model)


def _model_of(init_from: str, dtype: str) -> Config:
    try:
        return load_config(init_from, dtype=dtype)
    except (ValueError, OSError) as error:
        raise ConfigError(f"--init-from {init_from}: {error}") from error


def check_model(config: TrainConfig) -> None:
    """Refuses a model that the weights of `init_from` do not fit.

    Raises:
        ConfigError: names every field that differs, with both values.
    """
    if config.init_from is None:
        return
    asked, own = config.model, _model_of(config.init_from, config.model.dtype)
    if type(asked) is not type(own):
        raise ConfigError(
            f"--init-from {config.init_from} holds a {type(own).__name__}, but the "
            f"run's model is a {type(asked).__name__}: take the checkpoint's own with "
            "train.pretrained.adopt_checkpoint."
        )
    differing = []
    for field in dataclasses.fields(own):
        name = field.name
        there, here = getattr(own, name), getattr(asked, name)
        grown = name == "vocab_size" and here > there
        free = name in (*_FREE, *own.dropout_fields)
        if not free and here != there and not grown:
            flag = f"--model.{name.replace('_', '-')}"
            differing.append(f"{flag}: {there!r} there, {here!r} asked for")
    if differing:
        raise ConfigError(
            f"the weights of --init-from {config.init_from} are of another model than "
            "asked for:\n  " + "\n  ".join(differing) + "\nLeave these flags out."
        )


def fit_vocabulary(model: Any, tokens: int, tensor: int, *, grow: bool) -> Any:
    """A model whose vocabulary has a row for every token, and suits the mesh.

    The rules, each of which is logged when it applies: with `grow`, a tokenizer with
    more tokens than the model gives it as many (T5 and Numformer, whose rows are all
    tokens: the next multiple of 128). Rows of GPT-2 and Granite that the `tensor` axis
    does not divide are padded to a multiple of 128 and of the axis; padding is masked,
    and left out of exports.

    Args:
        model: the model's config.
        tokens: how many tokens the tokenizer has.
        tensor: how many devices the mesh's `tensor` axis has.
        grow: whether the model may get more tokens.
    """
    padded_kind = model.decoder_only
    if grow and tokens > model.vocab_size:
        size = tokens if padded_kind else -(-tokens // _MULTIPLE) * _MULTIPLE
        logger.info(
            "vocabulary grown from %d to %d tokens, because the tokenizer has %d: the "
            "rows of new ones start as the mean of the others",
            model.vocab_size,
            size,
            tokens,
        )
        rows = {"vocab_rows": None} if padded_kind else {}
        model = dataclasses.replace(model, vocab_size=size, **rows)
    if padded_kind and model.rows % tensor:
        padded = model.pad_vocab(math.lcm(_MULTIPLE, tensor))
        logger.info(
            "vocabulary padded from %d to %d rows for %d devices of the tensor axis",
            model.vocab_size,
            padded.rows,
            tensor,
        )
        model = padded
    return model


def pretrained_params(task: Task) -> Params | None:
    """The weights of `init_from`, read into the shards of the task's mesh.

    Returns:
        None without `init_from`.

    Raises:
        ConfigError: the weights are not those of the model.
    """
    source = task.config.init_from
    if source is None:
        return None
    try:
        return head_of(task.model).load_params(source, task)
    except (ValueError, OSError) as error:
        raise ConfigError(f"--init-from {source}: {error}") from error

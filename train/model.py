"""Models of every family, as the trainer meets them."""

import dataclasses
from typing import Any

import jax
from jaxtyping import Array, Float, Float32, Int

from ntl_jax.losses import shift_labels
from ntl_jax.models import (
    Config,
    GPT2Config,
    GraniteConfig,
    Params,
    RegressionTransformerConfig,
    T5Config,
    T5RegressionConfig,
    bind,
    shift_right,
)
from ntl_jax.tokenization import RegressionTransformerTokenizer, Tokenizer
from train.config import ConfigError

_CONFIGS: dict[str, type[Config]] = {
    config.__name__: config
    for config in (
        GPT2Config,
        GraniteConfig,
        RegressionTransformerConfig,
        T5Config,
        T5RegressionConfig,
    )
}
DROPOUT_RATES = (
    "dropout_rate",
    "resid_pdrop",
    "embd_pdrop",
    "attn_pdrop",
    "attention_dropout",
)
"""Fields of the configs, of one family or another."""


def is_decoder_only(model: Config) -> bool:
    """Whether question and answer are one sequence."""
    return not isinstance(model, T5Config)


def with_tokenizer(model: Config, tokenizer: Tokenizer) -> Config:
    """The model as its tokenizer makes it: numbers with places have encodings.

    Args:
        model: the model's config, with a row for every token.
        tokenizer: what its texts are read with.
    """
    if not isinstance(tokenizer, RegressionTransformerTokenizer):
        return model
    if not isinstance(model, T5Config):
        raise ConfigError(f"a {type(model).__name__} has no number encodings.")
    first = tokenizer.first_number_id
    return RegressionTransformerConfig.from_t5(model, first_number_id=first)


def with_head(model: Config, head: str) -> Config:
    """The model with the head that the run asks for."""
    if head == "lm" or isinstance(model, T5RegressionConfig):
        return model
    if not isinstance(model, T5Config):
        raise ConfigError(f"a {type(model).__name__} has no regression head.")
    return T5RegressionConfig.from_t5(model)


def model_dict(model: Config) -> dict[str, Any]:
    """A model's config as JSON holds it, with its class."""
    return {"class": type(model).__name__, **dataclasses.asdict(model)}


def model_of_dict(fields: dict[str, Any]) -> Config:
    """The inverse of `model_dict`; a dict without a class is a T5's.

    Raises:
        ConfigError: no such class, or other fields than it has.
    """
    fields = dict(fields)
    name = fields.pop("class", T5Config.__name__)
    if name not in _CONFIGS:
        raise ConfigError(
            f"a run of a {name}, which is none of {', '.join(_CONFIGS)}: it was "
            "trained by another version."
        )
    known = {field.name for field in dataclasses.fields(_CONFIGS[name])}
    if fields.keys() != known:
        raise ConfigError(
            f"a run of a {name} with other fields, {sorted(fields.keys() ^ known)}: it "
            "was trained by another version."
        )
    return _CONFIGS[name](**fields)


def answer_logits(
    model: Config,
    params: Params,
    batch: dict[str, Array],
    dropout_key: jax.Array | None = None,
) -> tuple[Float[Array, "B T V"], Int[Array, "B T"], Float32[Array, ""] | None]:
    """Teacher-forced logits, the labels that stand for them, and a router's loss.

    Args:
        model: the model's config.
        params: its parameters.
        batch: input_ids, attention_mask and labels, and segment_ids where several
            texts share a row; see `train.data`.
        dropout_key: None for no dropout.

    Returns:
        Logits; labels of the same positions, -100 where nothing is asked; and the loss
        that balances experts, None for models without.
    """
    labels = batch["labels"]
    inputs, mask = batch["input_ids"], batch["attention_mask"]
    options: dict[str, Any] = {"attention_mask": mask, "dropout_key": dropout_key}
    options["segment_ids"] = batch.get("segment_ids")
    if isinstance(model, T5Config):
        segments = batch.get("target_segment_ids")
        shifted = shift_right(
            labels,
            start_id=model.decoder_start_token_id,
            pad_id=model.pad_token_id,
            segment_ids=segments,
        )
        options["target_segment_ids"] = segments
        return bind(model, params)(inputs, shifted, **options), labels, None
    labels = shift_labels(labels)
    if isinstance(model, GraniteConfig) and model.num_local_experts:
        granite = bind(model, params)
        hidden, router_loss = granite.hidden_and_router_loss(inputs, **options)
        return granite.logits(hidden), labels, router_loss
    return bind(model, params)(inputs, **options), labels, None


def label_segments(model: Config, batch: dict[str, Array]) -> Int[Array, "B T"] | None:
    """Which text of its row each of `answer_logits`' labels is of; None: of one."""
    if isinstance(model, T5Config):
        return batch.get("target_segment_ids")
    segments = batch.get("segment_ids")
    return None if segments is None else shift_labels(segments, ignore_index=0)

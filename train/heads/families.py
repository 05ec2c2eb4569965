"""Models of every family, as the trainer meets them."""

import dataclasses
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Float, Float32, Int

from ntl_jax.losses import shift_labels
from ntl_jax.models import (
    T5,
    AnyConfig,
    Config,
    GPT2Config,
    GraniteConfig,
    NumformerConfig,
    Params,
    RegressionTransformerConfig,
    T5Config,
    T5RegressionConfig,
    bind,
    shift_right,
)
from ntl_jax.models.decoder_only import DecoderOnly
from ntl_jax.tokenization import (
    RegressionTransformerTokenizer,
    Tokenizer,
    XvalTokenizer,
)
from train.config import ConfigError

_CONFIGS: dict[str, type[AnyConfig]] = {
    config.__name__: config
    for config in (
        GPT2Config,
        GraniteConfig,
        NumformerConfig,
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


def is_decoder_only(model: AnyConfig) -> bool:
    """Whether an answer is written behind its question, in one sequence."""
    return isinstance(model, GPT2Config | GraniteConfig)


def with_tokenizer(model: AnyConfig, tokenizer: Tokenizer) -> AnyConfig:
    """The model as its tokenizer makes it: numbers with places have encodings, and
    numbers with values are read by a Numformer of the model's sizes.

    Args:
        model: the model's config, with a row for every token.
        tokenizer: what its texts are read with.
    """
    if isinstance(tokenizer, XvalTokenizer):
        return _numformer(model, tokenizer.num_id)
    if not isinstance(tokenizer, RegressionTransformerTokenizer):
        return model
    if not isinstance(model, T5Config):
        raise ConfigError(f"a {type(model).__name__} has no number encodings.")
    first = tokenizer.first_number_id
    return RegressionTransformerConfig.from_t5(model, first_number_id=first)


def _numformer(model: AnyConfig, num_id: int) -> NumformerConfig:
    if isinstance(model, NumformerConfig):
        return dataclasses.replace(model, num_id=num_id)
    if not isinstance(model, T5Config):
        raise ConfigError(f"a {type(model).__name__} cannot be made a Numformer.")
    shared = {field.name for field in dataclasses.fields(NumformerConfig)}
    shared.remove("layer_norm_epsilon")  # of another norm
    fields = {
        field.name: getattr(model, field.name)
        for field in dataclasses.fields(model)
        if field.name in shared
    }
    try:
        return NumformerConfig(**fields, num_id=num_id)
    except ValueError as error:
        raise ConfigError(f"--head numformer, sizes of --model: {error}.") from error


def with_head(model: AnyConfig, head: str) -> AnyConfig:
    """The model with the head that the run asks for."""
    if head != "regression" or isinstance(model, T5RegressionConfig):
        return model
    if not isinstance(model, T5Config):
        raise ConfigError(f"a {type(model).__name__} has no regression head.")
    return T5RegressionConfig.from_t5(model)


def model_dict(model: AnyConfig) -> dict[str, Any]:
    """A model's config as JSON holds it, with its class."""
    return {"class": type(model).__name__, **dataclasses.asdict(model)}


_LATER = {"attention"}
"""Fields that runs of earlier versions lack; they keep their defaults."""


def model_of_dict(fields: dict[str, Any]) -> AnyConfig:
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
    if fields.keys() | _LATER != known:
        raise ConfigError(
            f"a run of a {name} with other fields, {sorted(fields.keys() ^ known)}: it "
            "was trained by another version."
        )
    return _CONFIGS[name](**fields)


def run_as(model: AnyConfig, asked: AnyConfig) -> AnyConfig:
    """A model whose layers are run as another config asks, the numbers the same."""
    return dataclasses.replace(
        model,
        attention=asked.attention,
        remat=asked.remat,
        unroll_layers=asked.unroll_layers,
    )


class Answer(NamedTuple):
    """What a model makes of a batch with the right answers fed, before its head.

    Attributes:
        model: the model, bound; ``model.logits(hidden)`` or ``model.head``.
        hidden: [B, T, D] in the model's dtype.
        labels: i32[B, T] of the same positions, -100 where nothing is asked.
        router_loss: the loss that balances experts, None for models without.
    """

    model: T5 | DecoderOnly
    hidden: Float[Array, "B T D"]
    labels: Int[Array, "B T"]
    router_loss: Float32[Array, ""] | None


def answer_hidden(
    model: Config,
    params: Params,
    batch: dict[str, Array],
    dropout_key: jax.Array | None = None,
    row_offset: Int[Array, "B"] | int = 0,
) -> Answer:
    """Teacher-forced hidden states, and the labels that stand for them.

    Args:
        model: the model's config.
        params: its parameters.
        batch: input_ids, attention_mask and labels, and segment_ids where several
            texts share a row; see `train.data`.
        dropout_key: None for no dropout.
        row_offset: what to add to a row's place for its number in the whole batch.
    """
    inputs, labels = batch["input_ids"], answer_labels(model, batch)
    options: dict[str, Any] = {
        "attention_mask": batch["attention_mask"],
        "segment_ids": batch.get("segment_ids"),
        "dropout_key": dropout_key,
        "row_offset": row_offset,
    }
    if isinstance(model, T5Config):
        segments = batch.get("target_segment_ids")
        shifted = shift_right(
            labels,
            start_id=model.decoder_start_token_id,
            pad_id=model.pad_token_id,
            segment_ids=segments,
        )
        bound = bind(model, params)
        if type(bound) is T5:  # others read the table in float32
            bound.share_table()
        hidden = bound.hidden(inputs, shifted, target_segment_ids=segments, **options)
        return Answer(bound, hidden, labels, None)
    if isinstance(model, GraniteConfig) and model.num_local_experts:
        granite = bind(model, params)
        hidden, router_loss = granite.hidden_and_router_loss(inputs, **options)
        return Answer(granite, hidden, labels, router_loss)
    bound = bind(model, params)
    return Answer(bound, bound.hidden(inputs, **options), labels, None)


def answer_logits(
    model: Config,
    params: Params,
    batch: dict[str, Array],
    dropout_key: jax.Array | None = None,
) -> tuple[Float32[Array, "B T V"], Int[Array, "B T"], Float32[Array, ""] | None]:
    """Logits in the place of `answer_hidden`'s states, the labels, a router's loss."""
    answer = answer_hidden(model, params, batch, dropout_key)
    return answer.model.logits(answer.hidden), answer.labels, answer.router_loss


def answer_labels(model: Config, batch: dict[str, Array]) -> Int[Array, "B T"]:
    """Labels of the positions that answer: a decoder-only model's come one earlier."""
    labels = batch["labels"]
    return labels if isinstance(model, T5Config) else shift_labels(labels)


def label_segments(model: Config, batch: dict[str, Array]) -> Int[Array, "B T"] | None:
    """Which text of its row each of `answer_labels` is of; None: of one."""
    if isinstance(model, T5Config):
        return batch.get("target_segment_ids")
    segments = batch.get("segment_ids")
    return None if segments is None else shift_labels(segments, ignore_index=0)

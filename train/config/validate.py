"""Checks of the fields of a run, alone and together."""

import dataclasses

from ntl_jax.kernels.attention.dispatch import check_trainable
from ntl_jax.models import AnyConfig
from train.config.loss import NUMBER_TERMS, PER_ROW_TERMS, LossConfig
from train.config.mesh import mesh_shape
from train.config.ranges import (
    NOT_NEGATIVE,
    ConfigError,
    check,
    check_range,
    check_ranges,
)
from train.config.run import TrainConfig


def validate(
    config: TrainConfig, num_devices: int, platform: str | None = None
) -> None:
    """Refuses fields that contradict each other or the machine.

    Args:
        config: of a run.
        num_devices: of the machine.
        platform: of these devices: "cpu", "gpu" or "tpu"; None: of the current ones.

    Raises:
        ConfigError: names the flags, and what to do.
    """
    terms = {name: getattr(config.loss, name) for name in ("ce", *NUMBER_TERMS)}
    check(
        any(value is not None for value in terms.values()),
        f"every loss term is None ({', '.join(terms)}): set one, e.g. --loss.ce 1.",
    )
    validate_data(config)
    check(
        config.number_tokens == "digits" or config.model.number_encodings,
        "--number-tokens places is a T5's: take one, or --number-tokens digits.",
    )
    check(
        config.evaluation.beams == 1 or config.evaluation.numbers == "argmax",
        f"--evaluation.numbers {config.evaluation.numbers} is for greedy decoding: "
        "leave out --evaluation.beams, or it.",
    )
    check(
        not (config.loss.reweigh and config.loss.support == "full"),
        "--loss.reweigh needs --loss.support numbers: under full the number mass "
        "scales the loss already.",
    )
    check(
        config.optimizer.schedule != "plateau" or config.evaluation.every is not None,
        "--optimizer.schedule plateau follows the evaluation loss: set "
        "--evaluation.every too.",
    )
    check(
        config.optimizer.mu_dtype == "float32" or config.optimizer.name == "adamw",
        f"--optimizer.mu-dtype {config.optimizer.mu_dtype} is for adamw: "
        f"{config.optimizer.name} keeps no first moment, so leave it out.",
    )
    check(
        config.optimizer.warmup_steps < config.steps,
        f"--optimizer.warmup-steps {config.optimizer.warmup_steps} leaves nothing of "
        f"--steps {config.steps}.",
    )
    _check_mesh(config, num_devices)
    check_attention(config.model, platform)


def validate_data(config: TrainConfig) -> None:
    """The part of `validate` that needs neither a machine nor a whole run.

    Raises:
        ConfigError: a number is out of its range, or the head, packing and buckets
            contradict each other.
    """
    check(
        config.name not in ("", ".", "..") and not set(config.name) & set("/\\"),
        f"--name {config.name!r} cannot be a folder: take a word without slashes, "
        "and name a path with --run-dir.",
    )
    check_ranges(config)
    for name in ("ce", *NUMBER_TERMS):
        flag = f"--loss.{name.replace('_', '-')}"
        check_range(flag, getattr(config.loss, name), NOT_NEGATIVE)
    _check_token_ids(config)
    _check_head(config)
    _check_packing(config)


def _check_token_ids(config: TrainConfig) -> None:
    """Checks the ids that a model embeds itself; others are the tokenizer's."""
    model = config.model
    for name in model.embedded_ids:
        token = getattr(model, name)
        check(
            0 <= token < model.vocab_size,
            f"--model.{name.replace('_', '-')} is {token}, and the model has rows 0 to "
            f"{model.vocab_size - 1}: give one of them.",
        )


def _check_packing(config: TrainConfig) -> None:
    check(
        not config.data.packing or config.data.buckets == 1,
        "--data.packing makes all rows equally long: leave out --data.buckets.",
    )
    check(
        config.data.packing or config.data.packed_length is None,
        f"--data.packed-length {config.data.packed_length} needs --data.packing.",
    )
    by_row = [name for name in PER_ROW_TERMS if getattr(config.loss, name) is not None]
    check(
        not config.data.packing or not by_row,
        f"--loss.{' and --loss.'.join(by_row)} has one value per answer, "
        "and packed rows hold several: leave out --data.packing.",
    )


def _check_head(config: TrainConfig) -> None:
    numformer = config.head == "numformer"
    check(
        numformer or config.model.head != "numformer",
        "a Numformer writes no text: give --head numformer.",
    )
    check(
        numformer or config.mask_rate is None,
        f"--mask-rate {config.mask_rate} is for --head numformer: leave one out.",
    )
    check(
        config.head != "lm" or config.value_scale == "none",
        f"--value-scale {config.value_scale} is for --head regression or numformer.",
    )
    if config.head == "lm":
        return
    fit = config.head in config.model.heads
    others = "no T5" + (" and no Numformer" if numformer else "")
    for fits, what in (
        (fit, f"a model that is {others}"),
        (config.number_tokens == "digits", "--number-tokens places"),
        (not config.data.packing, "--data.packing"),
        (not config.cross_entropy_baseline, "--cross-entropy-baseline"),
        (not config.fused_head, "--fused-head"),
        (config.evaluation.beams == 1, "--evaluation.beams, as no text is searched"),
        (
            not numformer or config.init_from is None,
            "--init-from, as there are no weights of it",
        ),
    ):
        check(fits, f"--head {config.head} does not go with {what}: leave one out.")
    if numformer:
        _check_no_other_loss(config.loss)


def _check_no_other_loss(loss: LossConfig) -> None:
    """A Numformer's loss is only cross entropy and squared error."""
    for field in dataclasses.fields(LossConfig):
        value = getattr(loss, field.name)
        flag = f"--loss.{field.name.replace('_', '-')}"
        check(
            value == field.default,
            f"--head numformer learns by xVal's own loss, in which {flag} {value} has "
            f"no part: give {flag} {field.default}, or --head lm.",
        )


def _check_mesh(config: TrainConfig, num_devices: int) -> None:
    shape = mesh_shape(config.mesh, num_devices)
    rows = shape["data"] * shape["fsdp"]
    for flag, size in (
        ("--data.batch-size", config.data.batch_size),
        ("--evaluation.batch-size", config.evaluation.batch_size),
    ):
        check(
            size >= 1 and size % rows == 0,
            f"{flag} {size} does not divide over data x fsdp = "
            f"{shape['data']} x {shape['fsdp']} devices: "
            f"take a multiple of {rows}.",
        )
    share = config.data.batch_size // rows
    check(
        share % config.accumulate == 0,
        f"--accumulate {config.accumulate} does not divide the {share} rows that "
        f"each of data x fsdp = {rows} devices has of --data.batch-size "
        f"{config.data.batch_size}: take a divisor of {share}.",
    )


def check_attention(model: AnyConfig, platform: str | None = None) -> None:
    """Raises ConfigError if a model's attention cannot run with its fields."""
    try:
        check_trainable(
            model.attention,
            width=model.head_dim,
            dtype=model.dtype,
            dropout=model.attention_dropout,
            platform=platform,
        )
    except ValueError as error:
        raise ConfigError(f"--model.{error}.") from error

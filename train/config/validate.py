"""What the fields of a run must be, alone and together."""

import dataclasses
import math

from ntl_jax.kernels.attention.dispatch import check_trainable
from ntl_jax.models import (
    AnyConfig,
    GPT2Config,
    GraniteConfig,
    NumformerConfig,
    T5Config,
)
from train.config.loss import NUMBER_TERMS, PER_ROW_TERMS, LossConfig
from train.config.mesh import ConfigError, check, mesh_shape
from train.config.run import TrainConfig

_NOT_NEGATIVE = (0, math.inf, True)  # low, high, whether low itself is allowed
_POSITIVE = (0, math.inf, False)
_AT_LEAST_1 = (1, math.inf, True)
_SIZE = (1, 2**31, True)  # of an array's axis, or a count in int32
_SHARE = (0, 1, True)
_RANGES = {
    "": {
        "seed": (0, 2**32, True),  # JAX reads no more bits of it
        "steps": _SIZE,
        "accumulate": _AT_LEAST_1,
        "profile_at": _AT_LEAST_1,
        "mask_rate": (0, 1, False),
    },
    "data": {
        "seed": _NOT_NEGATIVE,
        "batch_size": _SIZE,
        "digits": (1, 9, True),  # extrapolation adds one, and ends at nine
        "train_size": _SIZE,
        "eval_size": _SIZE,
        "max_source_length": _SIZE,
        "max_target_length": _SIZE,
        "packed_length": _SIZE,
        "buckets": (1, 65, True),
        "validation_fraction": _SHARE,
    },
    "loss": dict.fromkeys(("ce", *NUMBER_TERMS, "z_loss"), _NOT_NEGATIVE)
    | {"huber_delta": _POSITIVE, "label_smoothing": _SHARE}
    | {"sigma": _NOT_NEGATIVE, "tau": _POSITIVE}
    | {"squash": _AT_LEAST_1, "place_base": _POSITIVE},
    "optimizer": {
        "learning_rate": _POSITIVE,
        "warmup_steps": _NOT_NEGATIVE,
        "final_fraction": _NOT_NEGATIVE,
        "plateau_factor": (0, 1, False),
        "plateau_patience": (0, 2**31 - 1, True),
        "b1": _SHARE,
        "b2": _SHARE,
        "eps": _POSITIVE,
        "weight_decay": _NOT_NEGATIVE,
        "clip_norm": _POSITIVE,
    },
    "evaluation": dict.fromkeys(("batch_size", "max_new_tokens", "beams"), _SIZE),
    "hosts": dict.fromkeys(("timeout", "heartbeat_timeout", "stall_timeout"), _SIZE)
    | {"count": _SIZE, "index": _NOT_NEGATIVE},
}
"""What each number may be; None is always allowed."""


def validate(
    config: TrainConfig, num_devices: int, platform: str | None = None
) -> None:
    """Refuses fields that contradict each other or the machine.

    Args:
        config: of a run.
        num_devices: that it has.
        platform: of these devices: "cpu", "gpu" or "tpu"; None: of those here.

    Raises:
        ConfigError: names the flags, and what to do.
    """
    check(config.log_every >= 1, f"--log-every is {config.log_every}: at least 1.")
    for flag, every in (
        ("--checkpoint-every", config.checkpoint_every),
        ("--evaluation.every", config.evaluation.every),
    ):
        check(every is None or every >= 1, f"{flag} is {every}: give 1 or more.")
    check(
        config.keep_checkpoints >= 1,
        f"--keep-checkpoints is {config.keep_checkpoints}: at least one is needed.",
    )
    terms = {name: getattr(config.loss, name) for name in ("ce", *NUMBER_TERMS)}
    check(
        any(value is not None for value in terms.values()),
        f"every loss term is None ({', '.join(terms)}): set one, e.g. --loss.ce 1.",
    )
    validate_data(config)
    check(
        config.number_tokens == "digits" or isinstance(config.model, T5Config),
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
    """The part of `validate` that asks neither for a machine nor for a whole run.

    Raises:
        ConfigError: a number is out of its range, or the head, packing and buckets do
            not go together.
    """
    _check_ranges(config)
    _check_token_ids(config)
    _check_head(config)
    _check_packing(config)


def _check_token_ids(config: TrainConfig) -> None:
    """Of a T5, which embeds these; elsewhere the tokenizer's ids are taken."""
    model = config.model
    if not isinstance(model, T5Config):
        return
    for name in ("pad_token_id", "decoder_start_token_id"):
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
        f"--loss.{' and --loss.'.join(by_row)} looks at rows as whole answers, "
        "which packed rows are not: leave out --data.packing.",
    )


def _check_head(config: TrainConfig) -> None:
    numformer = config.head == "numformer"
    check(
        numformer or not isinstance(config.model, NumformerConfig),
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
    fit = isinstance(config.model, T5Config)
    fit = fit or (numformer and isinstance(config.model, NumformerConfig))
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
    """A Numformer's loss is cross entropy and squared error, and nothing else."""
    for field in dataclasses.fields(LossConfig):
        value = getattr(loss, field.name)
        flag = f"--loss.{field.name.replace('_', '-')}"
        check(
            value == field.default,
            f"--head numformer learns by xVal's own loss, in which {flag} {value} has "
            f"no part: give {flag} {field.default}, or --head lm.",
        )


def _check_ranges(config: TrainConfig) -> None:
    """Every number of the data, the loss and the optimizer; NaN is in no range."""
    check(
        config.name not in ("", ".", "..") and not set(config.name) & set("/\\"),
        f"--name {config.name!r} cannot be a folder: take a word without slashes, "
        "and name a path with --run-dir.",
    )
    for section, ranges in _RANGES.items():
        fields = config if section == "" else getattr(config, section)
        for name, (low, high, closed) in ranges.items():
            value = getattr(fields, name)
            inside = value is None or (
                (low <= value if closed else low < value) and value < high
            )
            flag = ".".join(filter(None, (section, name))).replace("_", "-")
            bounds = f"{'at least' if closed else 'above'} {low:g}"
            bounds += " and finite" if high == math.inf else f" and below {high:,}"
            check(inside, f"--{flag} is {value}: it must be {bounds}.")


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
    """Raises ConfigError where a model's attention cannot be computed as it says."""
    if isinstance(model, GPT2Config):
        width, dropout = model.n_embd // model.n_head, model.attn_pdrop
    elif isinstance(model, GraniteConfig):
        width, dropout = model.head_dim, model.attention_dropout
    elif isinstance(model, NumformerConfig):
        width, dropout = model.d_model // model.num_heads, model.dropout_rate
    else:
        width, dropout = model.d_kv, model.dropout_rate
    try:
        check_trainable(
            model.attention,
            width=width,
            dtype=model.dtype,
            dropout=dropout,
            platform=platform,
        )
    except ValueError as error:
        raise ConfigError(f"--model.{error}.") from error

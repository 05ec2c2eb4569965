"""Frozen dataclasses that describe a run; every field is a command-line flag."""

import dataclasses
import math
from typing import Annotated, Literal

import tyro

from ntl_jax.losses import Objective
from ntl_jax.models import Config, T5Config
from train.data_config import DataConfig as DataConfig


@dataclasses.dataclass(frozen=True)
class LossConfig:
    """Coefficients of the objective; a term that is None costs nothing."""

    ce: float | None = 1.0
    """Cross entropy."""
    gce: float | None = None
    """Cross entropy with Gaussian targets of numbers; in the place of ce."""
    was: float | None = None
    """Number token loss, Wasserstein form (the paper's lambda is 0.3)."""
    cdf: float | None = None
    """Number token loss, Wasserstein form by cumulative sums; see cdf_target."""
    mse: float | None = None
    """Number token loss, squared error of the expected value."""
    mae: float | None = None
    """Number token loss, absolute error of the expected value."""
    huber: float | None = None
    """Number token loss, Huber error of the expected value."""
    number_level: float | None = None
    """Error of whole numbers, signs and decimals included."""
    dist2: float | None = None
    """DIST2Loss (its paper: 0.1)."""
    smmd: float | None = None
    """Smoothed maximum mean discrepancy."""
    digit_entropy: float | None = None
    """DEL, the digit entropy loss."""
    ntil: float | None = None
    """Numerical token integrity loss."""
    raft: float | None = None
    """RAFT: squared error of one score an answer, in the place of its ce."""
    sigma: float = 0.5
    """Width of the Gaussian targets of gce and cdf [number value]."""
    cdf_target: Literal["label", "gaussian"] = "label"
    """What cdf is the distance to."""
    squash: float | None = None
    """was: squash distances into 1..squash (ntloss's squash_factor)."""
    huber_delta: float = 1.0
    """Where Huber's quadratic part ends [number value]."""
    log_space: bool = False
    """number_level: compare logarithms."""
    tau: float = 1.0
    """dist2: temperature [squared number value]."""
    ntil_digits: Literal["straight_through", "expected"] = "straight_through"
    """ntil: numbers from the likeliest digits, as released, or the expected."""
    ce_on_score: bool = False
    """raft: cross entropy trains the score too."""
    place_base: float | None = None
    """Weigh each digit by place_base^(digits to its right) in token losses."""
    reweigh: bool = False
    """Charge number losses for mass off the number tokens, as ntloss does."""
    support: Literal["numbers", "full"] = "numbers"
    """Softmax of the number losses: over number tokens, or over all tokens."""
    denominator: Literal["numbers", "all"] = "numbers"
    """What number losses are averaged over: number labels, or all labels."""
    label_smoothing: float = 0.0
    """Share of the cross entropy's target spread over the vocabulary."""
    z_loss: float = 0.0
    """Coefficient of the squared log-normaliser."""

    def objective(self) -> Objective:
        """The objective that these coefficients describe."""
        return Objective(**dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer and its learning rate (the paper's by default)."""

    name: Literal["adamw", "adafactor"] = "adamw"
    """adafactor: T5's own, whose steps are relative to each parameter's size; from
    scratch it takes learning rates near 0.01."""
    learning_rate: float = 1e-4
    """Peak learning rate."""
    schedule: Literal["constant", "cosine", "linear", "plateau"] = "constant"
    """After warm-up. plateau: multiplied by plateau_factor when the evaluation loss
    has not improved for plateau_patience evaluations."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises linearly from 0."""
    final_fraction: float = 0.0
    """cosine, linear: the last learning rate as a share of the peak."""
    plateau_factor: float = 0.5
    """plateau: what the learning rate is multiplied by."""
    plateau_patience: int = 5
    """plateau: evaluations without improvement that are borne, as in PyTorch."""
    b1: float = 0.9
    """Decay of the first moment."""
    b2: float = 0.999
    """Decay of the second moment."""
    eps: float = 1e-8
    """Added to the root of the second moment."""
    weight_decay: float = 0.01
    """Decoupled weight decay; never on norms, biases and relative-position biases."""
    clip_norm: float | None = 1.0
    """Largest global gradient norm; None does not clip."""


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """How many devices each mesh axis takes; -1 takes all that are left."""

    data: int = -1
    """Replicas of the parameters, each with its share of the batch."""
    fsdp: int = 1
    """Shards of parameters and optimizer state that also share out the batch."""
    tensor: int = 1
    """Shards of heads, feed-forward units and vocabulary."""


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    """Evaluation: teacher-forced losses, then generated answers and their metrics."""

    every: int | None = None
    """Steps between evaluations; None evaluates only at the end."""
    batch_size: int = 64
    """Questions a decoding step, over all devices."""
    max_new_tokens: int = 32
    """Longest answer that is generated [tokens]."""
    beams: int = 1
    """Beams that decoding searches with (the paper: 4); 1 decodes greedily."""
    numbers: Literal["argmax", "expected", "median"] = "argmax"
    """Which number token greedy decoding writes where the likeliest token is one: this
    one, or the one nearest to the mean or median of their distribution."""
    paper_compat: bool = False
    """Count as the paper's code does: its grammar of numbers, answers within 0.001% as
    right, predictions clipped to 1e10, means over batches, padding as right tokens."""


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """A whole run: `python -m train PRESET --field value`."""

    name: str
    """Names the run folder."""
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    model: Annotated[Config, tyro.conf.AvoidSubcommands] = dataclasses.field(
        default_factory=T5Config.small
    )
    loss: LossConfig = LossConfig(was=0.3)
    optimizer: OptimizerConfig = OptimizerConfig()
    mesh: MeshConfig = MeshConfig()
    evaluation: EvalConfig = EvalConfig()
    tokenizer: str = "builtin"
    """builtin, a folder, or a Hugging Face hub id."""
    split_digits: bool = True
    """Split every multi-digit piece into single digits."""
    number_policy: Literal["digits", "numbers", "ntloss"] = "digits"
    """Which tokens count as numbers."""
    number_tokens: Literal["digits", "places"] = "digits"
    """How numbers are written. places: digits that name their decimal place, which a T5
    reads with number encodings (the Regression Transformer); each counts as its digit,
    whatever number_policy says."""
    head: Literal["lm", "regression"] = "lm"
    """What answers. regression: a T5 with a regression head, which learns the last
    number of each answer by squared error, and writes no text; --loss has no part."""
    value_scale: Literal["none", "log1p"] = "none"
    """regression: what numbers go through before the head learns them."""
    allow_low_coverage: bool = False
    """Train although under half of the digits in the answers land on number tokens."""
    init_from: str | None = None
    """Start from this Hugging Face checkpoint (folder or hub id) of any family. Its
    config takes the place of the preset's model, but for dropout and compute dtype;
    its tokenizer is used where `tokenizer` is builtin."""
    cross_entropy_baseline: bool = False
    """Train a second model with cross entropy alone, on the same data, seed and
    tokenizer, and print both side by side."""
    steps: int = 1000
    """Optimizer steps."""
    log_every: int = 50
    """Steps between rows of metrics.jsonl."""
    checkpoint_every: int | None = None
    """Steps between checkpoints; None saves only the last step."""
    keep_checkpoints: int = 2
    """Checkpoints kept on disk."""
    seed: int = 0
    """Initialisation and dropout."""
    run_dir: str | None = None
    """Where everything is written (default: runs/NAME, numbered if it exists)."""
    resume: bool = False
    """Continue the newest run of this name, or the one in run_dir, to the last bit."""

    def validate(self, num_devices: int) -> None:
        """Raises ConfigError where fields contradict each other or the machine."""
        _check(self.steps >= 1, f"--steps is {self.steps}: give at least 1.")
        _check(self.log_every >= 1, f"--log-every is {self.log_every}: at least 1.")
        for flag, every in (
            ("--checkpoint-every", self.checkpoint_every),
            ("--evaluation.every", self.evaluation.every),
        ):
            _check(every is None or every >= 1, f"{flag} is {every}: give 1 or more.")
        _check(
            self.keep_checkpoints >= 1,
            f"--keep-checkpoints is {self.keep_checkpoints}: at least one is needed.",
        )
        terms = {name: getattr(self.loss, name) for name in ("ce", *NUMBER_TERMS)}
        _check(
            any(value is not None for value in terms.values()),
            f"every loss term is None ({', '.join(terms)}): set one, e.g. --loss.ce 1.",
        )
        self._validate_ranges()
        self._validate_head()
        _check(
            self.number_tokens == "digits" or isinstance(self.model, T5Config),
            "--number-tokens places is a T5's: take one, or --number-tokens digits.",
        )
        _check(
            self.evaluation.beams == 1 or self.evaluation.numbers == "argmax",
            f"--evaluation.numbers {self.evaluation.numbers} is for greedy decoding: "
            "leave out --evaluation.beams, or it.",
        )
        _check(
            not (self.loss.reweigh and self.loss.support == "full"),
            "--loss.reweigh needs --loss.support numbers: under full the number mass "
            "scales the loss already.",
        )
        _check(
            self.optimizer.schedule != "plateau" or self.evaluation.every is not None,
            "--optimizer.schedule plateau follows the evaluation loss: set "
            "--evaluation.every too.",
        )
        _check(
            self.optimizer.warmup_steps < self.steps,
            f"--optimizer.warmup-steps {self.optimizer.warmup_steps} leaves nothing of "
            f"--steps {self.steps}.",
        )
        self._validate_packing()
        self._validate_mesh(num_devices)

    def _validate_packing(self) -> None:
        _check(
            not self.data.packing or self.data.buckets == 1,
            "--data.packing makes all rows equally long: leave out --data.buckets.",
        )
        _check(
            self.data.packing or self.data.packed_length is None,
            f"--data.packed-length {self.data.packed_length} needs --data.packing.",
        )
        by_row = [
            name for name in PER_ROW_TERMS if getattr(self.loss, name) is not None
        ]
        _check(
            not self.data.packing or not by_row,
            f"--loss.{' and --loss.'.join(by_row)} looks at rows as whole answers, "
            "which packed rows are not: leave out --data.packing.",
        )

    def _validate_head(self) -> None:
        if self.head == "lm":
            return
        for fits, what in (
            (isinstance(self.model, T5Config), "a model that is no T5"),
            (self.number_tokens == "digits", "--number-tokens places"),
            (not self.data.packing, "--data.packing"),
            (not self.cross_entropy_baseline, "--cross-entropy-baseline"),
        ):
            _check(fits, f"--head regression does not go with {what}: leave one out.")

    def _validate_ranges(self) -> None:
        """Every number of the data, the loss and the optimizer; NaN is in no range."""
        _check(
            self.name not in ("", ".", "..") and not set(self.name) & set("/\\"),
            f"--name {self.name!r} cannot be a folder: take a word without slashes, "
            "and name a path with --run-dir.",
        )
        for section, ranges in _RANGES.items():
            fields = self if section == "" else getattr(self, section)
            for name, (low, high, closed) in ranges.items():
                value = getattr(fields, name)
                inside = value is None or (
                    (low <= value if closed else low < value) and value < high
                )
                flag = ".".join(filter(None, (section, name))).replace("_", "-")
                bounds = f"{'at least' if closed else 'above'} {low:g}"
                bounds += " and finite" if high == math.inf else f" and below {high:g}"
                _check(inside, f"--{flag} is {value}: it must be {bounds}.")

    def _validate_mesh(self, num_devices: int) -> None:
        shape = mesh_shape(self.mesh, num_devices)
        rows = shape["data"] * shape["fsdp"]
        for flag, size in (
            ("--data.batch-size", self.data.batch_size),
            ("--evaluation.batch-size", self.evaluation.batch_size),
        ):
            _check(
                size >= 1 and size % rows == 0,
                f"{flag} {size} does not divide over data x fsdp = "
                f"{shape['data']} x {shape['fsdp']} devices: "
                f"take a multiple of {rows}.",
            )


NUMBER_TERMS = ("was", "cdf", "mse", "mae", "huber", "number_level")
NUMBER_TERMS += ("dist2", "smmd", "digit_entropy", "ntil", "raft", "gce")

PER_ROW_TERMS = ("ntil", "raft")
"""Losses that are one number a row, and not a sum over its tokens or numbers."""

_NOT_NEGATIVE = (0, math.inf, True)  # low, high, whether low itself is allowed
_POSITIVE = (0, math.inf, False)
_AT_LEAST_1 = (1, math.inf, True)
_SHARE = (0, 1, True)
_RANGES = {
    "": {"seed": _NOT_NEGATIVE},
    "data": {
        "seed": _NOT_NEGATIVE,
        "digits": (1, 10, True),
        "train_size": _AT_LEAST_1,
        "eval_size": _AT_LEAST_1,
        "max_source_length": _AT_LEAST_1,
        "max_target_length": _AT_LEAST_1,
        "packed_length": _AT_LEAST_1,
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
        "plateau_patience": _NOT_NEGATIVE,
        "b1": _SHARE,
        "b2": _SHARE,
        "eps": _POSITIVE,
        "weight_decay": _NOT_NEGATIVE,
        "clip_norm": _POSITIVE,
    },
    "evaluation": dict.fromkeys(("max_new_tokens", "beams"), _AT_LEAST_1),
}
"""What each number may be; None is always allowed."""


class ConfigError(ValueError):
    """A run that cannot be what its flags say; the message is for the user."""


def mesh_shape(mesh: MeshConfig, num_devices: int) -> dict[str, int]:
    """Axis sizes with -1 filled in. Raises ConfigError where they do not fit."""
    shape = dataclasses.asdict(mesh)
    free = [axis for axis, size in shape.items() if size == -1]
    _check(len(free) <= 1, f"only one mesh axis can be -1, not {' and '.join(free)}.")
    fixed = math.prod(size for size in shape.values() if size != -1)
    _check(
        fixed >= 1 and (num_devices % fixed == 0 if free else fixed == num_devices),
        f"the mesh {shape} does not fill {num_devices} device(s): the product of the "
        f"sizes must be {num_devices}; -1 takes what is left.",
    )
    return shape | {axis: num_devices // fixed for axis in free}


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)

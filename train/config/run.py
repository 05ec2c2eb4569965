"""Frozen dataclasses that describe a run; every field is a command-line flag."""

import dataclasses
from typing import Annotated, Literal

import tyro

from ntl_jax.models import AnyConfig, T5Config
from train.config.data import DataConfig
from train.config.loss import LossConfig
from train.config.mesh import HostsConfig, MeshConfig
from train.config.ranges import (
    AT_LEAST_1,
    FRACTION,
    NOT_NEGATIVE,
    POSITIVE,
    SIZE,
    Range,
)


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer and its learning rate (the paper's by default)."""

    name: Literal["adamw", "adafactor"] = "adamw"
    """adafactor: T5's own, whose updates are relative to each parameter's size; from
    scratch it needs learning rates near 0.01."""
    learning_rate: Annotated[float, POSITIVE] = 1e-4
    """Peak learning rate."""
    schedule: Literal["constant", "cosine", "linear", "plateau"] = "constant"
    """After warm-up. plateau: multiplied by plateau_factor when the loss of the first
    evaluation set has not improved for plateau_patience evaluations."""
    warmup_steps: Annotated[int, NOT_NEGATIVE] = 0
    """Steps over which the learning rate rises linearly from 0."""
    final_fraction: Annotated[float, NOT_NEGATIVE] = 0.0
    """cosine, linear: the last learning rate as a fraction of the peak."""
    plateau_factor: Annotated[float, Range(0, 1, closed=False)] = 0.5
    """plateau: factor of the learning rate."""
    plateau_patience: Annotated[int, Range(0, 2**31 - 1)] = 5
    """plateau: evaluations without improvement that are tolerated, as in PyTorch."""
    b1: Annotated[float, FRACTION] = 0.9
    """Decay of the first moment."""
    b2: Annotated[float, FRACTION] = 0.999
    """Decay of the second moment."""
    eps: Annotated[float, POSITIVE] = 1e-8
    """Added to the root of the second moment."""
    weight_decay: Annotated[float, NOT_NEGATIVE] = 0.01
    """Decoupled weight decay; never on norms, biases and relative-position biases."""
    mu_dtype: Literal["float32", "bfloat16"] = "float32"
    """adamw: dtype of the first moment; bfloat16 saves 2 bytes per parameter."""
    clip_norm: Annotated[float | None, POSITIVE] = 1.0
    """Largest global gradient norm; None does not clip."""


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    """Evaluation: teacher-forced losses, then generated answers and their metrics."""

    every: Annotated[int | None, AT_LEAST_1] = None
    """Steps between evaluations; None evaluates only at the end."""
    batch_size: Annotated[int, SIZE] = 64
    """Questions that are decoded at once, over all devices."""
    max_new_tokens: Annotated[int, SIZE] = 32
    """Longest generated answer [tokens]."""
    beams: Annotated[int, SIZE] = 1
    """Beams of the search (the paper: 4); 1 decodes greedily."""
    numbers: Literal["argmax", "expected", "median"] = "argmax"
    """Which number token greedy decoding writes where the most likely token is one:
    this one, or the one nearest to the mean or median of their distribution."""
    paper_compat: bool = False
    """Count as the paper's code does: its grammar of numbers, answers within 0.001% as
    right, predictions clipped to 1e10, means over batches, padding as right tokens."""


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """A whole run: `python -m train PRESET --field value`."""

    name: str
    """Names the run folder."""
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    model: Annotated[AnyConfig, tyro.conf.AvoidSubcommands] = dataclasses.field(
        default_factory=T5Config.small
    )
    loss: LossConfig = dataclasses.field(default_factory=lambda: LossConfig(was=0.3))
    optimizer: OptimizerConfig = OptimizerConfig()
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    evaluation: EvalConfig = EvalConfig()
    hosts: HostsConfig = dataclasses.field(default_factory=HostsConfig)
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
    head: Literal["lm", "regression", "numformer"] = "lm"
    """How the model answers; only lm writes text. regression: a T5 with a regression
    head, which learns the last number of each answer by squared error; --loss has no
    part. numformer: xVal's encoder, of the model's sizes, which reads numbers as values
    and fills in the last number of the answer."""
    value_scale: Literal["none", "log1p", "minmax5"] = "none"
    """regression, numformer: what numbers go through before the model reads or learns
    them. minmax5: the training rows' range becomes -5 to 5, as in xVal."""
    mask_rate: Annotated[float | None, Range(0, 1, closed=False)] = None
    """numformer: training hides this fraction of all tokens at random, as xVal does;
    None hides only the answer's number, as the paper's baseline and evaluation do."""
    allow_low_coverage: bool = False
    """Train although under half of the answers' digits become number tokens."""
    init_from: str | None = None
    """Start from this Hugging Face checkpoint (folder or hub id) of any family. Its
    config takes the place of the preset's model, but for dropout and compute dtype;
    its tokenizer is used where `tokenizer` is builtin. None: the preset's model, from
    random weights."""
    cross_entropy_baseline: bool = False
    """Train a second model with cross entropy alone, on the same data, seed and
    tokenizer, and print both side by side."""
    steps: Annotated[int, SIZE] = 1000
    """Optimizer steps."""
    accumulate: Annotated[int, AT_LEAST_1] = 1
    """Microbatches per step, to need less memory; loss and gradient are those of the
    whole batch, except that the loss that balances experts is the microbatches'
    mean."""
    fused_head: bool = False
    """Compute the logits a few thousand tokens at a time and never store them: less
    memory for a large vocabulary, the same losses."""
    deterministic: bool = False
    """GPUs: bitwise equal runs on the same mesh, resumed ones included, at some cost in
    speed; CPUs and TPUs are deterministic anyway."""
    log_every: Annotated[int, AT_LEAST_1] = 50
    """Steps between rows of metrics.jsonl, each the mean since the previous row;
    checkpoints and evaluations end a row too."""
    profile_at: Annotated[int | None, AT_LEAST_1] = None
    """Write a profile of three steps, from this one on, to profile/ in the run's
    folder, for xprof or Perfetto; None writes none."""
    checkpoint_every: Annotated[int | None, AT_LEAST_1] = None
    """Steps between checkpoints; None saves only the last step."""
    keep_checkpoints: Annotated[int, AT_LEAST_1] = 2
    """Checkpoints kept on disk."""
    seed: Annotated[int, Range(0, 2**32)] = 0
    """Initialisation and dropout."""
    run_dir: str | None = None
    """Where everything is written: a folder, or gs://BUCKET/FOLDER (default: runs/NAME,
    numbered if it exists)."""
    resume: bool = False
    """Continue the newest run of this name, or the one in run_dir, to the last bit."""
    token_cache: str | None = None
    """Folder that keeps token ids between runs, for data of many rows; None tokenizes
    at every start."""
    compilation_cache: str | None = None
    """Folder that keeps compiled programs between runs; None compiles in every run."""

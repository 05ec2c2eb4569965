"""Evaluates finished runs: with beams, other rules for numbers, or other devices."""

import dataclasses
import logging
from collections.abc import Sequence

import jax
import tyro

from train.checkpointing.restore import (
    fitting_mesh,
    open_mesh,
    refuse_several_hosts,
    restored_params,
    runnable,
)
from train.checkpointing.rundir import (
    read_config,
    read_train_config,
    trained_runs,
    value_scale_of,
)
from train.checkpointing.storage import AnyPath, any_path
from train.config import (
    ConfigError,
    EvalConfig,
    MeshConfig,
    TrainConfig,
    mesh_shape,
    validate,
)
from train.data import OWN_FILES, Row, load_splits
from train.data.inputs import open_tokenizer, tokenized_sets
from train.data.number_tokens import number_vocab
from train.evaluation.evaluator import Evaluator, write_predictions
from train.reporting.report import report
from train.state import make_task

logger = logging.getLogger("train")


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Evaluates a finished run, or every run of a comparison, from its checkpoint."""

    evaluation: EvalConfig
    """How to decode and score."""
    mesh: MeshConfig
    """Devices per mesh axis; by default as in training, or what fits the devices of
    this machine."""
    sets: tuple[str, ...] = ()
    """The evaluation sets; by default all."""
    eval_size: int | None = None
    """Rows of each set; by default as in training."""
    eval_file: str | None = None
    """jsonl, tsv: rows to evaluate on instead of those of the run."""
    raw_dir: str | None = None
    """Folder of raw files, if it is not that of the run."""
    out: str | None = None
    """Folder for evaluation.json, predictions.jsonl and comparison.md (default: in
    the run's folder, named by the kind of decoding). The run's own files do not
    change."""


def evaluate(path: AnyPath, arguments: Sequence[str]) -> str:
    """Evaluates every run in `path` from its newest checkpoint.

    Args:
        path: a run, or a folder of runs.
        arguments: flags of `Evaluation`; its defaults are those of the first run.

    Returns:
        The report.

    Raises:
        ConfigError: no run, flags that contradict each other or the machine, a set that
            the run does not have, or a folder that is not empty.
    """
    refuse_several_hosts("evaluate")
    runs = trained_runs(path)
    configs = {name: read_train_config(run) for name, run in runs.items()}
    first = next(iter(configs.values()))
    mesh = fitting_mesh(first.mesh, first.model)
    options = tyro.cli(
        Evaluation,
        default=Evaluation(first.evaluation, mesh),
        args=list(arguments),
        prog=f"python -m train evaluate {path}",
    )
    folder = _output_folder(path, options)
    run_dirs = {}
    for name, run in runs.items():
        config = _changed(configs[name], options)
        run_dirs[name] = folder if len(runs) == 1 else folder / name
        logger.info("evaluating %s", run)
        _evaluate(run, config, options.sets, run_dirs[name])
    return report(run_dirs, folder)


def _output_folder(path: AnyPath, options: Evaluation) -> AnyPath:
    """The folder to write to, which must be empty."""
    decoding = options.evaluation
    words = ["evaluation", f"beams{decoding.beams}" if decoding.beams > 1 else "greedy"]
    words += [decoding.numbers] if decoding.numbers != "argmax" else []
    words += ["paper"] if decoding.paper_compat else []
    folder = any_path(options.out) if options.out else path / "-".join(words)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ConfigError(
            f"{folder} is a file or is not empty: name a new folder with --out."
        )
    return folder


def _changed(config: TrainConfig, options: Evaluation) -> TrainConfig:
    """The run's config with the requested changes, validated for this machine."""
    if options.eval_file is not None and config.data.name not in OWN_FILES:
        raise ConfigError(
            f"--eval-file is for runs of {' or '.join(OWN_FILES)}, not of "
            f"{config.data.name}: leave it out."
        )
    changes = {
        name: getattr(options, name)
        for name in ("eval_size", "eval_file", "raw_dir")
        if getattr(options, name) is not None
    }
    # The batch size of training need not fit this mesh.
    sizes = mesh_shape(options.mesh, jax.device_count())
    changes["batch_size"] = sizes["data"] * sizes["fsdp"]
    data = dataclasses.replace(config.data, **changes)
    config = dataclasses.replace(
        config,
        model=runnable(config.model),
        evaluation=options.evaluation,
        mesh=options.mesh,
        data=data,
        accumulate=1,
    )
    validate(config, jax.device_count())
    return config


def _evaluate(
    run_dir: AnyPath,
    config: TrainConfig,
    sets: Sequence[str],
    folder: AnyPath,
) -> None:
    rows = _rows(config, sets)
    tokenizer = open_tokenizer(
        config.tokenizer, config.split_digits, config.number_tokens, config.head
    )
    scale = value_scale_of(read_config(run_dir))
    vocab = number_vocab(tokenizer, config.model.vocab_size, config.number_policy)
    datasets = tokenized_sets(rows, config, config.model, tokenizer, scale)
    mesh = open_mesh(config.mesh, config.model)
    task = make_task(config, config.model, vocab, mesh, scale)
    evaluator = Evaluator(task, tokenizer, datasets, rows)
    results = evaluator(restored_params(run_dir, config.model, mesh))
    folder.mkdir(parents=True, exist_ok=True)
    write_predictions(
        folder, results, rows, paper_compat=config.evaluation.paper_compat
    )


def _rows(config: TrainConfig, sets: Sequence[str]) -> dict[str, Sequence[Row]]:
    rows = load_splits(config.data).evaluation
    unknown = [name for name in sets if name not in rows]
    if unknown or not rows:
        raise ConfigError(
            f"the run has no evaluation set {', '.join(unknown) or 'at all'}: "
            f"its sets are {', '.join(rows) or 'none'}."
        )
    return {name: rows[name] for name in sets or rows}

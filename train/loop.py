"""The training loop, from a config to parameters, metrics and answers on disk."""

import contextlib
import dataclasses
import logging
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from ntl_jax.models import AnyConfig, count_parameters
from ntl_jax.numbers.value_scales import ValueScale
from ntl_jax.sharding.mesh import batch_sharding, make_mesh, tensor_size
from train.checkpointing.checkpointer import Checkpointer
from train.checkpointing.folder import has_checkpoint
from train.checkpointing.model_dict import model_dict, model_of_dict, run_as
from train.checkpointing.resume import check_same_run
from train.checkpointing.rundir import (
    CONFIG_FILE,
    config_dict,
    read_config,
    value_scale_of,
    write_config,
)
from train.checkpointing.storage import AnyPath, make_folder, storage_errors
from train.config import ConfigError, TrainConfig, mesh_shape, validate
from train.data import train_batches
from train.data.inputs import (
    Inputs,
    layout,
    load_inputs,
    open_tokenizer,
    tokenizer_name,
)
from train.data.number_tokens import make_vocab
from train.evaluation.evaluator import Evaluator, SetResult, write_predictions
from train.heads import HEADS
from train.multihost.hosts import (
    assert_all_hosts,
    broadcast_from_coordinator,
    global_batch,
    is_coordinator,
    local_rows,
    made_progress,
    several,
)
from train.pretrained import check_model, fit_vocabulary, pretrained_params
from train.reporting.metrics_writer import MetricWriter
from train.reporting.progress import CompileTimes, IntervalLog, StepProfile, StopSignal
from train.state import (
    Task,
    TrainState,
    abstract_state,
    check_layout,
    init_state,
    make_task,
)
from train.step import compile_train_step

logger = logging.getLogger("train")


class RunInterruptedError(Exception):
    """The run was asked to stop; its last step is saved.

    Attributes:
        by: the signal's number.
    """

    def __init__(self, message: str, by: int) -> None:
        super().__init__(message)
        self.by = by


@dataclasses.dataclass(frozen=True)
class RunResult:
    """A finished run; all of it is on disk too."""

    run_dir: AnyPath
    state: TrainState
    results: dict[str, SetResult]


@dataclasses.dataclass(frozen=True)
class _Parts:
    """What a run trains with, and what it writes to."""

    task: Task
    inputs: Inputs
    run_dir: AnyPath
    evaluator: Evaluator
    checkpointer: Checkpointer
    writer: MetricWriter


def run(config: TrainConfig, run_dir: AnyPath) -> RunResult:
    """Trains, evaluates and writes one run.

    Args:
        config: of the run.
        run_dir: where to write.

    Raises:
        ConfigError: the config does not fit the machine, the data or the old run.
        NonFiniteError: training diverged.
        RunInterruptedError: a signal stopped it; `--resume` continues.
    """
    validate(config, jax.device_count())
    sizes = mesh_shape(config.mesh, jax.device_count())
    mesh = make_mesh(sizes["data"], sizes["fsdp"], sizes["tensor"])
    old = broadcast_from_coordinator(lambda: _resolved_before(run_dir, config))
    task, inputs = _prepare(config, mesh, old)
    broadcast_from_coordinator(
        lambda: _open_folder(run_dir, config, task.model, inputs.scale)
    )
    assert_all_hosts(
        (run_dir / CONFIG_FILE).exists(),
        f"{run_dir} is not the folder that host 0 writes to: name one on storage that "
        "all hosts share, with --run-dir.",
    )
    texts = inputs.splits.evaluation
    evaluator = Evaluator(task, inputs.tokenizer, inputs.evaluation, texts)
    with Checkpointer(run_dir, keep=config.keep_checkpoints) as checkpointer:
        state = _first_state(checkpointer, task, run_dir)
        made_progress()
        _log_start(state, task, inputs)
        writer = MetricWriter(run_dir, start_step=int(state.step))
        parts = _Parts(task, inputs, run_dir, evaluator, checkpointer, writer)
        with contextlib.closing(writer):
            state = _train(state, parts)
            _save(state, parts)
            results = evaluator(state.params)
            for name, result in results.items():
                writer.write(config.steps, f"final/{name}", result.metrics)
    if is_coordinator():
        compat = config.evaluation.paper_compat
        write_predictions(run_dir, results, texts, paper_compat=compat)
    return RunResult(run_dir, state, results)


def _prepare(
    config: TrainConfig,
    mesh: Mesh,
    old: dict[str, Any] | None,
) -> tuple[Task, Inputs]:
    """The model and the data, matched to each other or as the resumed run had them."""
    if old is None:
        check_model(config)
    tokenizer = open_tokenizer(
        tokenizer_name(config),
        config.split_digits,
        config.number_tokens,
        config.head,
    )
    scale = None
    if old is not None:
        model = run_as(model_of_dict(old["model"]), config.model)
        scale = ValueScale(**old["scale"])
    else:
        head = HEADS[config.head]
        grow = config.init_from is not None or head.adds_tokens(config)
        tensor = tensor_size(mesh)
        model = fit_vocabulary(config.model, len(tokenizer), tensor, grow=grow)
        model = head.fit_model(model, tokenizer)
    # Before the data, which take longer.
    check_layout(model, mesh, resume=config.resume)
    inputs = load_inputs(config, model, tokenizer, scale)
    made_progress()
    vocab = make_vocab(config, model, inputs)
    return make_task(config, model, vocab, mesh, inputs.scale), inputs


def _first_state(
    checkpointer: Checkpointer, task: Task, run_dir: AnyPath
) -> TrainState:
    """The newest checkpoint's state on `--resume`, else the initial one."""
    resume = task.config.resume
    if resume:
        abstract = abstract_state(task)
        found = checkpointer.newest(lambda at: checkpointer.restore(at, abstract))
        if found is not None:
            last, state = found
            checkpointer.quarantine_after(last)
            logger.info("resuming %s at step %d", run_dir, last)
            return state
    state = init_state(task, pretrained_params(task))
    if resume:
        logger.info("%s has no checkpoint yet: starting at step 0", run_dir)
    return state


def _train(state: TrainState, parts: _Parts) -> TrainState:
    config, inputs = parts.task.config, parts.inputs
    first = int(state.step)
    train_step = compile_train_step(parts.task)
    sharding, batch_size = batch_sharding(parts.task.mesh), config.data.batch_size
    rows = local_rows(sharding, batch_size)
    batches = train_batches(
        inputs.train,
        batch_size=batch_size,
        seed=config.data.seed,
        start_step=first,
        buckets=inputs.buckets,
        rows=rows,
    )
    log = IntervalLog(state.params, first, config.steps, parts.writer)
    profile = StepProfile(config.profile_at, parts.run_dir)
    compiling = CompileTimes(log)
    with StopSignal() as stop, log, contextlib.closing(batches), profile:
        for step in range(first + 1, config.steps + 1):
            host_batch = next(batches)
            batch = global_batch(host_batch, sharding, batch_size)
            profile.before(step, state)
            with compiling.first_of(batch):
                state, metrics = train_step(state, batch)
            tokens = inputs.train.count_tokens(host_batch) * batch_size / len(rows)
            log.add(step, tokens, metrics)
            made_progress()
            parts.checkpointer.check()
            stopping = stop.wanted(step)
            save = _due(step, config.checkpoint_every) or stopping
            evaluate = _due(step, config.evaluation.every) and step < config.steps
            if save or evaluate or _due(step, config.log_every) or step == config.steps:
                log.flush()  # raises before a state that is not finite could be saved
            if evaluate:
                state = _evaluate(step, state, parts)
                log.restart_clock()
            if save:
                _save(state, parts)
            if stopping:
                raise RunInterruptedError(
                    f"stopped at step {step}; --resume continues there.", stop.signal
                )
    return state


def _save(state: TrainState, parts: _Parts) -> None:
    parts.writer.flush()  # a resumed run takes the rows before this step from there
    parts.checkpointer.save(state, config_dict(parts.task.config))
    made_progress()


def _due(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0


def _evaluate(step: int, state: TrainState, parts: _Parts) -> TrainState:
    """Writes every set's metrics; `plateau` follows the first set's loss."""
    results, task = parts.evaluator(state.params), parts.task
    for name, result in results.items():
        parts.writer.write(step, f"evaluation/{name}", result.metrics)
        logger.info("step %d, %s: %s", step, name, brief(result.metrics))
    if task.config.optimizer.schedule != "plateau" or not results:
        return state
    loss = next(iter(results.values())).metrics["loss"]
    _, plateau = task.plateau.update({}, state.plateau, value=jnp.float32(loss))
    return dataclasses.replace(state, plateau=plateau)


def _resolved_before(run_dir: AnyPath, config: TrainConfig) -> dict[str, Any] | None:
    """What a run to resume had resolved: its model, whose vocabulary was padded for the
    mesh of that time, and its scale, fitted to its rows."""
    with storage_errors(run_dir):
        old = (run_dir / CONFIG_FILE).exists() or has_checkpoint(run_dir)
        if not (config.resume and old):
            return None
        check_same_run(run_dir, config)
        content = read_config(run_dir)
    if content.get("resolved_model") is None:
        raise ConfigError(f"{run_dir / CONFIG_FILE} lacks resolved_model.")
    scale = dataclasses.asdict(value_scale_of(content))
    return {"model": content["resolved_model"], "scale": scale}


def _open_folder(
    run_dir: AnyPath, config: TrainConfig, model: AnyConfig, scale: ValueScale
) -> None:
    make_folder(run_dir)
    write_config(
        run_dir,
        config,
        resolved_model=model_dict(model),
        resolved_tokenizer=tokenizer_name(config),
        resolved_value_scale=dataclasses.asdict(scale),
    )


def _log_start(state: TrainState, task: Task, inputs: Inputs) -> None:
    logger.info(
        "%s parameters on %d %s device(s)%s, mesh %s",
        f"{count_parameters(state.params, task.model):,}",
        jax.device_count(),
        jax.devices()[0].platform,
        f" of {jax.process_count()} hosts" if several() else "",
        dict(task.mesh.shape),
    )
    for line in layout(inputs):
        logger.info("%s", line)


def brief(metrics: dict[str, Any]) -> str:
    """The metrics that a log line shows."""
    shown = ("loss", "number_accuracy", "mae", "r2")
    return ", ".join(
        f"{name} {metrics[name]:.4g}" for name in shown if metrics.get(name) is not None
    )

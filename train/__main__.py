"""The one command line: `python -m train PRESET [--field value ...]`, and subcommands.

python -m train list                         presets, one per line
python -m train PRESET --help                every field of a preset
python -m train describe PRESET [--field value ...]   its data: rows, lengths, padding
python -m train PRESET --steps 100           train, evaluate, write runs/PRESET
python -m train aot PRESET --topology v5e:4x4   compile it for other devices: memory
python -m train predict RUN "What is 1 plus 2?" [--mesh.fsdp 2 ...]
python -m train export RUN FOLDER            write a Hugging Face checkpoint
python -m train evaluate RUN [--evaluation.beams 4 ...]   evaluate a finished run
python -m train report FOLDER RUN [RUN ...]  compare finished runs, table and figure
"""

import argparse
import errno
import logging
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Sequence

import jax
import tyro
from absl import flags
from tqdm.contrib.logging import logging_redirect_tqdm

from train.aot.compile import MORE_ROOM, compile_ahead, render
from train.aot.topology import first_line
from train.checkpointing.resume import check_same_flags
from train.checkpointing.rundir import CONFIG_FILE, resolve_run_dir
from train.checkpointing.storage import (
    AnyPath,
    any_path,
    is_remote,
    local_path,
    storage_errors,
)
from train.config import ConfigError, TrainConfig
from train.config.presets import load_preset, preset_names
from train.config.validate import validate_data
from train.data import DataError
from train.evaluation.evaluate_run import evaluate
from train.evaluation.predict import export, predict
from train.loop import RunInterruptedError, brief, run
from train.multihost.hosts import (
    broadcast_from_coordinator,
    is_coordinator,
    join,
    leave,
    stall_timer,
    sync_hosts,
)
from train.pretrained import adopt_checkpoint
from train.reporting.compare import run_comparison
from train.reporting.describe import describe
from train.reporting.progress import NonFiniteError
from train.reporting.report import report, scores_of_run

_FOLDER_ERRORS = {
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT),
    *(errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP),
}
"""Errors of a file or folder that the user named, and not a bug."""


EXPECTED = (
    *(ConfigError, DataError, NonFiniteError),
    *(OSError, jax.errors.JaxRuntimeError, KeyboardInterrupt),
)
"""Errors that `_explain` knows; of the last three kinds some are bugs."""


def main(arguments: list[str]) -> int:
    """Runs one command. Returns the exit status.

    Errors that the user can act on become one message and a status; any other is a bug
    and keeps its traceback.
    """
    flags.FLAGS.mark_as_parsed()  # grain reads absl flags, which tyro replaces
    _log_to_stderr()
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        say(__doc__)
        return 0
    command, *rest = arguments
    try:
        with logging_redirect_tqdm([logging.getLogger("train")]):
            return _run(command, rest)
    except RunInterruptedError as error:
        print(error, file=sys.stderr)
        # Schedulers send SIGTERM, and count another status as a failure.
        return 0 if error.by == signal.SIGTERM else 130
    except EXPECTED as error:
        explained = _explain(error)
        if explained is None:
            raise
        message, status = explained
        print(message, file=sys.stderr)
        leave(status)
        return status


def _run(command: str, rest: list[str]) -> int:
    if command not in COMMANDS:
        train(command, rest)
        return 0
    function, positional = COMMANDS[command]
    misplaced = bool(rest) and (rest[0].startswith("-") or not positional)
    if len(rest) < positional or misplaced:
        raise ConfigError(f"{command} takes other arguments:\n{__doc__}")
    return function(*rest) or 0


def _explain(error: BaseException) -> tuple[str, int] | None:
    """The message and exit status of an error that the user can act on."""
    match error:
        case KeyboardInterrupt():  # outside the steps, which catch the signal
            return "interrupted", 130
        case ConfigError() | DataError() | NonFiniteError():
            return f"error: {error}", 1
        case OSError(errno=number) if number in _FOLDER_ERRORS:
            where = f"{error.filename}: " if error.filename else ""
            return f"error: {where}{error.strerror}", 1
        case jax.errors.JaxRuntimeError() if "RESOURCE_EXHAUSTED" in str(error):
            return (
                f"error: a device's memory is full: {first_line(error)}\n{MORE_ROOM} "
                "In an evaluation: a smaller --evaluation.batch-size."
            ), 1
        case jax.errors.JaxRuntimeError() if jax.distributed.is_initialized():
            return (
                f"{traceback.format_exc()}error: if another host is gone (see its "
                "log), restart every host with --resume; nothing up to the last "
                "checkpoint is lost."
            ), 1
    return None


def say(text: object) -> None:
    """Prints a result; a reader such as `head` may have closed the pipe."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        _discard_stdout()


def _discard_stdout() -> None:
    """Keeps Python's own flush at exit from failing on a closed pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _log_to_stderr() -> None:
    """Shows the trainer's log; that of libraries only from warnings on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("train")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False


def describe_preset(preset: str, *overrides: str) -> None:
    """Prints a preset's data."""
    say(describe(parse_config(preset, overrides, "describe")))


def predict_answer(run_dir: str, question: str, *flags_: str) -> None:
    """Prints a run's answer to a question."""
    with storage_errors(path := any_path(run_dir)):
        say(predict(path, question, list(flags_)))


def export_run(run_dir: str, folder: str, *flags_: str) -> None:
    """Writes a run's parameters as a Hugging Face checkpoint."""
    with storage_errors(path := any_path(run_dir)):
        export(path, local_path(folder), list(flags_))


def evaluate_finished(run_dir: str, *flags_: str) -> None:
    """Evaluates a run, and prints its metrics."""
    with storage_errors(path := any_path(run_dir)):
        say(evaluate(path, list(flags_)))


def report_runs(folder: str, *paths: str) -> None:
    """Compares finished runs in a folder that is not one of them."""
    runs, path = named_runs(paths), any_path(folder)
    with storage_errors(path, *runs.values()):
        if (path / CONFIG_FILE).exists():
            raise ConfigError(
                f"{path} is a run itself: name a folder for the report first, then "
                "runs."
            )
        say(report(runs, path))


def named_runs(paths: Sequence[str]) -> dict[str, AnyPath]:
    """Runs by the last part of their path, or by all of it where names repeat."""
    runs = [any_path(path) for path in paths]
    whole = {str(run if is_remote(run) else run.resolve()) for run in runs}
    if len(whole) < len(runs):
        raise ConfigError(f"a run is named twice: {' '.join(paths)}.")
    last = [run.name for run in runs]
    names = last if len(set(last)) == len(last) else paths
    return dict(zip(names, runs, strict=True))


def list_presets() -> None:
    """Prints every preset with the first line of its docstring."""
    names = preset_names()
    width = max(map(len, names))
    say(
        "\n".join(
            f"{name:<{width}}  {load_preset(name)[1].splitlines()[0]}" for name in names
        )
    )


def parse_config(
    preset: str, overrides: Sequence[str], command: str | None = None
) -> TrainConfig:
    """A preset with overrides; `--help` prints them and exits.

    Only training fetches the preset's own checkpoint; subcommands and `--help` rely on
    the preset's description of it.
    """
    default, description = load_preset(preset)
    init_from = named_checkpoint(overrides)
    asks_for_help = not {"-h", "--help"}.isdisjoint(overrides)
    if init_from is None and command is None and not asks_for_help:
        init_from = default.init_from
    if init_from not in (None, "None"):  # the latter as tyro reads it
        # Before parsing: the checkpoint decides which --model flags there are.
        default = adopt_checkpoint(default, init_from)
    try:
        return tyro.cli(
            TrainConfig,
            default=default,
            args=overrides,
            prog=" ".join(filter(None, ("python -m train", command, preset))),
            # tyro joins lines that no blank line separates.
            description=re.sub(r"(?<!\n)\n(?=\w)", "\n\n", description),
        )
    except BrokenPipeError:  # the reader of --help closed the pipe
        _discard_stdout()
        sys.exit(0)


def train(preset: str, overrides: list[str]) -> None:
    """Trains a preset with overrides, twice where it asks for a baseline."""
    config = parse_config(preset, overrides)
    validate_data(config)
    join(config.hosts)
    if not is_coordinator():
        logging.getLogger("train").setLevel(logging.WARNING)
    if config.compilation_cache is not None:
        jax.config.update("jax_compilation_cache_dir", config.compilation_cache)
    with stall_timer(config.hosts.stall_timeout):
        check_same_flags(config)
        run_dir = any_path(
            broadcast_from_coordinator(lambda: str(resolve_run_dir(config)))
        )
        if is_coordinator():
            print(f"writing to {run_dir}", file=sys.stderr)
        with storage_errors(run_dir):
            summary = _train_in(run_dir, config)
        if is_coordinator():
            say(summary)
        sync_hosts()


def _train_in(run_dir: AnyPath, config: TrainConfig) -> str:
    """Trains, and returns the summary that host 0 prints."""
    if config.cross_entropy_baseline:
        return run_comparison(config, run_dir)
    result = run(config, run_dir)
    if not is_coordinator():
        return ""
    lines = [
        f"{name}: {brief(evaluated.metrics)}"
        for name, evaluated in result.results.items()
    ]
    if result.results:
        lines.append(scores_of_run(run_dir))
    return "\n".join(lines)


def compile_for(preset: str, *overrides: str) -> int:
    """Compiles a preset's step for `--topology`; status 1 where it does not fit."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--topology")
    known, rest = parser.parse_known_args(overrides)
    config = parse_config(preset, rest, "aot")  # --help ends here
    if known.topology is None:
        raise ConfigError("aot needs --topology: v5e:4x4, v4:2x2x4, h100:8, local, ...")
    report = compile_ahead(config, known.topology)
    say(render(report))
    if report.fits:
        return 0
    print(
        f"error: it needs more than a device's {report.memory_gib} GiB. {MORE_ROOM}",
        file=sys.stderr,
    )
    return 1


def named_checkpoint(overrides: Sequence[str]) -> str | None:
    """The value of `--init-from` among a preset's overrides; None without the flag.

    >>> named_checkpoint(["--steps", "3", "--init-from=google-t5/t5-small"])
    'google-t5/t5-small'
    >>> named_checkpoint(["--init-from", "None"])  # the preset's is not wanted
    'None'
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    # tyro reports a flag without a value.
    parser.add_argument("--init-from", "--init_from", nargs="?", const="None")
    return parser.parse_known_args(overrides)[0].init_from


COMMANDS: dict[str, tuple[Callable[..., int | None], int]] = {
    "list": (list_presets, 0),
    "describe": (describe_preset, 1),
    "aot": (compile_for, 1),
    "predict": (predict_answer, 2),
    "export": (export_run, 2),
    "evaluate": (evaluate_finished, 1),
    "report": (report_runs, 2),
}
"""Subcommands, and how many positional arguments each needs; else a preset trains."""

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

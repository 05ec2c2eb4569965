"""The one command line: `python -m train PRESET [--field value ...]`, and subcommands.

python -m train list                         presets, one line each
python -m train PRESET --help                every field of a preset
python -m train describe PRESET [--field value ...]   its data: rows, lengths, padding
python -m train PRESET --steps 100           train, evaluate, write runs/PRESET
python -m train aot PRESET --topology v5e:4x4   compile it for devices not here: memory
python -m train predict RUN "What is 1 plus 2?" [--mesh.fsdp 2 ...]
python -m train export RUN FOLDER            write a Hugging Face checkpoint
python -m train evaluate RUN [--evaluation.beams 4 ...]   evaluate it anew
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
    sync_hosts,
)
from train.multihost.watchdog import Progress, Watchdog
from train.pretrained import adopt_checkpoint
from train.reporting.compare import run_comparison
from train.reporting.describe import describe
from train.reporting.progress import NonFiniteError
from train.reporting.report import report, scores_of_run

EXPECTED = (ConfigError, DataError, NonFiniteError)
"""Errors whose message is for the user; any other is a bug and keeps its traceback."""


_OF_FOLDERS = {
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT),
    *(errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP),
}
"""What is wrong with a file or folder that was named, and is no bug."""


def main(arguments: list[str]) -> int:
    """Runs one command. Returns the exit status."""
    flags.FLAGS.mark_as_parsed()  # grain reads absl flags, which tyro replaces
    _log_to_stderr()
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        say(__doc__)
        return 0
    command, *rest = arguments
    try:
        with logging_redirect_tqdm([logging.getLogger("train")]):
            return _run(command, rest)
    except EXPECTED as error:
        print(f"error: {error}", file=sys.stderr)
        leave(1)
        return 1
    except OSError as error:
        if error.errno not in _OF_FOLDERS:
            raise
        where = f"{error.filename}: " if error.filename else ""
        print(f"error: {where}{error.strerror}", file=sys.stderr)
        leave(1)
        return 1
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" in str(error):
            print(f"error: {_full(error)}", file=sys.stderr)
            leave(1)
            return 1
        if not jax.distributed.is_initialized():
            raise
        traceback.print_exc()
        print(
            "error: if another host is gone (see its log), start all again with "
            "--resume; nothing up to the last checkpoint is lost.",
            file=sys.stderr,
        )
        leave(1)
        raise
    except RunInterruptedError as error:
        print(error, file=sys.stderr)
        # Schedulers send SIGTERM, and would count another status as a failure.
        return 0 if error.by == signal.SIGTERM else 130
    except KeyboardInterrupt:  # where no step is being taken
        print("interrupted", file=sys.stderr)
        leave(130)
        return 130


def _full(error: Exception) -> str:
    return (
        f"a device's memory is full: {first_line(error)}\n{MORE_ROOM} In an "
        "evaluation: a smaller --evaluation.batch-size."
    )


def say(text: object) -> None:
    """Prints what was asked for; a reader such as `head` may have read enough."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        _say_no_more()


def _say_no_more() -> None:
    """What standard output still holds must not fail when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _log_to_stderr() -> None:
    """Shows what the run says of itself; what libraries say only from warnings on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("train")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False


def _run(command: str, rest: list[str]) -> int:
    match command, rest:
        case "list", []:
            list_presets()
        case "describe", [preset, *overrides] if not preset.startswith("-"):
            say(describe(parse_config(preset, overrides, "describe")))
        case "aot", [preset, *overrides] if not preset.startswith("-"):
            return compile_for(preset, overrides)
        case "predict", [run_dir, question, *flags_]:
            with storage_errors(path := any_path(run_dir)):
                say(predict(path, question, flags_))
        case "export", [run_dir, folder, *flags_]:
            with storage_errors(path := any_path(run_dir)):
                export(path, local_path(folder), flags_)
        case "evaluate", [run_dir, *flags_] if not run_dir.startswith("-"):
            with storage_errors(path := any_path(run_dir)):
                say(evaluate(path, flags_))
        case "report", [folder, *paths] if paths:
            runs, path = named_runs(paths), any_path(folder)
            with storage_errors(path, *runs.values()):
                refuse_run(path)
                say(report(runs, path))
        case (
            (
                "list"
                | "describe"
                | "aot"
                | "predict"
                | "evaluate"
                | "report"
                | "export"
            ),
            _,
        ):
            raise ConfigError(f"{command} takes other arguments:\n{__doc__}")
        case _:
            train(command, rest)
    return 0


def named_runs(paths: list[str]) -> dict[str, AnyPath]:
    """Runs by the last part of their path, or by the whole where that is not unique."""
    runs = [any_path(path) for path in paths]
    whole = {str(run if is_remote(run) else run.resolve()) for run in runs}
    if len(whole) < len(runs):
        raise ConfigError(f"a run is named twice: {' '.join(paths)}.")
    last = [run.name for run in runs]
    names = last if len(set(last)) == len(last) else paths
    return dict(zip(names, runs, strict=True))


def refuse_run(folder: AnyPath) -> None:
    """Raises ConfigError where a report would be written into a run, as happens to
    those who name their runs alone."""
    if (folder / CONFIG_FILE).exists():
        raise ConfigError(
            f"{folder} is a run itself: name a folder for the report first, then runs."
        )


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
    preset: str, overrides: list[str], command: str | None = None
) -> TrainConfig:
    """A preset with overrides; `--help` prints them and exits.

    A subcommand takes a preset's own checkpoint for what the preset says it is, and
    fetches none; nor does `--help`.
    """
    default, description = load_preset(preset)
    init_from = named_checkpoint(overrides)
    asks_for_help = not {"-h", "--help"}.isdisjoint(overrides)
    if init_from is None and command is None and not asks_for_help:
        init_from = default.init_from
    if init_from not in (None, "None"):  # the latter as tyro reads it
        # Before the flags are read: those of --model are of the checkpoint's kind.
        default = adopt_checkpoint(default, init_from)
    try:
        return tyro.cli(
            TrainConfig,
            default=default,
            args=overrides,
            prog=" ".join(filter(None, ("python -m train", command, preset))),
            # Lines would run into each other, but for those after a blank one.
            description=re.sub(r"(?<!\n)\n(?=\w)", "\n\n", description),
        )
    except BrokenPipeError:  # of --help, whose reader has read enough
        _say_no_more()
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
    with Watchdog(config.hosts.stuck_after) as watchdog:
        check_same_flags(config)
        run_dir = any_path(
            broadcast_from_coordinator(lambda: str(resolve_run_dir(config)))
        )
        if is_coordinator():
            print(f"writing to {run_dir}", file=sys.stderr)
        with storage_errors(run_dir):
            summary = _train_in(run_dir, config, watchdog.pat)
        if is_coordinator():
            say(summary)
        sync_hosts()


def _train_in(run_dir: AnyPath, config: TrainConfig, progress: Progress) -> str:
    """Trains, and returns what the first host prints in the end."""
    if config.cross_entropy_baseline:
        return run_comparison(config, run_dir, progress)
    result = run(config, run_dir, progress)
    if not is_coordinator():
        return ""
    lines = [
        f"{name}: {brief(evaluated.metrics)}"
        for name, evaluated in result.results.items()
    ]
    if result.results:
        lines.append(scores_of_run(run_dir))
    return "\n".join(lines)


def compile_for(preset: str, overrides: list[str]) -> int:
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
        f"error: it takes more than a device's {report.memory_gib} GiB. {MORE_ROOM}",
        file=sys.stderr,
    )
    return 1


def named_checkpoint(overrides: list[str]) -> str | None:
    """What `--init-from` names among a preset's overrides; None where it is not there.

    >>> named_checkpoint(["--steps", "3", "--init-from=google-t5/t5-small"])
    'google-t5/t5-small'
    >>> named_checkpoint(["--init-from", "None"])  # the preset's is not wanted
    'None'
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    # Without a word behind it, tyro will say so.
    parser.add_argument("--init-from", "--init_from", nargs="?", const="None")
    return parser.parse_known_args(overrides)[0].init_from


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

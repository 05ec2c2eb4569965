"""A run's folder and its config.json."""

import dataclasses
import json
import pathlib
from typing import Any

from ntl_jax.numbers.value_scales import ValueScale
from train.checkpointing.folder import has_checkpoint
from train.checkpointing.storage import AnyPath, any_path, is_remote, storage_errors
from train.config import ConfigError, TrainConfig
from train.heads.families import model_of_dict
from train.reporting.metrics_writer import replace_text

ROOT = pathlib.Path("runs")
CONFIG_FILE = "config.json"
_RENAMED = {"lost_after": "heartbeat_timeout", "stuck_after": "stall_timeout"}
"""Fields of `hosts` that had other names in earlier versions."""


def resolve_run_dir(config: TrainConfig) -> AnyPath:
    """The folder that this run writes to; no other run is overwritten.

    Raises:
        ConfigError: nothing to resume, a folder that holds another run, or an address
            that cannot be reached.
    """
    if config.run_dir is not None:
        path = any_path(config.run_dir)
        with storage_errors(path):
            _check_folder(path, config.resume)
        return path
    taken = _numbered(config.name)
    if config.resume:
        if not taken:
            raise ConfigError(
                f"--resume: there is no run called {config.name} in {ROOT}/; "
                "leave --resume out to start one."
            )
        return taken[-1]
    if not taken:
        return ROOT / config.name
    last = int(taken[-1].name.removeprefix(config.name).lstrip("-") or 1)
    return ROOT / f"{config.name}-{last + 1}"


def _check_folder(path: AnyPath, resume: bool) -> None:
    if resume and not path.is_dir():
        raise ConfigError(f"--resume: there is no run in {path}.")
    if path.exists() and not path.is_dir():
        raise ConfigError(f"--run-dir {path} is a file: name a folder.")
    inside = path.iterdir() if path.exists() else iter(())
    if is_remote(path):  # where an empty folder may be an object, listed in itself
        inside = (child for child in inside if child.exists())
    if not resume and any(inside):
        raise ConfigError(
            f"{path} is not empty: continue it with --resume, or name another folder "
            "with --run-dir."
        )


def _numbered(name: str) -> list[pathlib.Path]:
    """runs/NAME, runs/NAME-2, ... that exist, oldest first."""
    if not ROOT.is_dir():
        return []
    found: list[tuple[int, pathlib.Path]] = []
    for path in ROOT.iterdir():
        suffix = path.name.removeprefix(name)
        if path.name == name:
            found.append((1, path))
        elif path.name.startswith(f"{name}-") and suffix[1:].isdigit():
            found.append((int(suffix[1:]), path))
    return [path for _, path in sorted(found)]


def config_dict(config: TrainConfig) -> dict[str, Any]:
    """The config as JSON holds it."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def write_config(run_dir: AnyPath, config: TrainConfig, **more: Any) -> None:
    """Writes config.json: every field, and what the run resolved (`more`)."""
    text = json.dumps({**config_dict(config), **more}, indent=1)
    replace_text(run_dir / CONFIG_FILE, text + "\n")


def read_config(run_dir: AnyPath) -> dict[str, Any]:
    """Reads config.json back.

    Raises:
        ConfigError: there is no run, or its file is not JSON.
    """
    path = run_dir / CONFIG_FILE
    if not path.exists():
        raise ConfigError(f"{run_dir} is not a run: it has no {CONFIG_FILE}.")
    try:
        content = json.loads(path.read_text())
    except ValueError as error:  # not JSON, or not UTF-8
        raise ConfigError(f"{path} is damaged: {error}.") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is damaged: it holds no JSON object.")
    if isinstance(hosts := content.get("hosts"), dict):
        content["hosts"] = {_RENAMED.get(k, k): v for k, v in hosts.items()}
    return content


def value_scale_of(content: dict[str, Any]) -> ValueScale:
    """The scale of a run's numbers, from its config.json."""
    fields = content.get("resolved_value_scale")
    if fields is None:  # written before scales were fitted
        return ValueScale(content.get("value_scale", "none"))
    return ValueScale(**fields)


def read_train_config(run_dir: AnyPath) -> TrainConfig:
    """The config of a run, with the model and the tokenizer that it resolved to.

    Fields that are newer than the run keep their defaults.

    Raises:
        ConfigError: there is no run, or it has unknown fields.
    """
    content = read_config(run_dir)
    lacking = sorted({"name", "resolved_model", "resolved_tokenizer"} - content.keys())
    if lacking:
        raise ConfigError(f"{run_dir / CONFIG_FILE} lacks {', '.join(lacking)}.")
    content["model"] = model_of_dict(content.pop("resolved_model"))
    content["tokenizer"] = content.pop("resolved_tokenizer")
    content.pop("resolved_value_scale", None)
    content["init_from"] = None
    return _dataclass_of(TrainConfig, content, str(run_dir / CONFIG_FILE))


def _dataclass_of(kind: Any, content: dict[str, Any], where: str) -> Any:
    """A config from JSON: nested configs as objects, tuples as lists."""
    known = {field.name: field for field in dataclasses.fields(kind)}
    unknown = sorted(content.keys() - known.keys())
    if unknown:
        raise ConfigError(
            f"{where} has {', '.join(unknown)}, which this version does not know: use "
            "the version that trained the run."
        )
    values = {}
    for name, value in content.items():
        if isinstance(value, dict):
            value = _dataclass_of(known[name].type, value, where)
        values[name] = tuple(value) if isinstance(value, list) else value
    return kind(**values)


def trained_runs(path: AnyPath) -> dict[str, AnyPath]:
    """The runs with a checkpoint in `path`: itself, or those of a comparison.

    Raises:
        ConfigError: there is none.
    """
    if not path.is_dir():
        raise ConfigError(f"there is no run in {path}.")
    if has_checkpoint(path):
        return {path.name: path}
    runs = {child.name: child for child in sorted(path.iterdir()) if child.is_dir()}
    runs = {name: child for name, child in runs.items() if has_checkpoint(child)}
    if not runs:
        raise ConfigError(f"{path} holds no checkpoint: train first, or name a run.")
    return runs

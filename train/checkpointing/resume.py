"""Whether `--resume` may continue a run: compares its config with this one."""

import math
from typing import Any

from train.checkpointing.rundir import config_dict, read_config
from train.checkpointing.storage import AnyPath
from train.config import ConfigError, TrainConfig
from train.multihost.hosts import assert_all_hosts, broadcast_from_coordinator

MAY_DIFFER = {
    "mesh",
    "hosts",
    "compilation_cache",
    "token_cache",
    "accumulate",
    "deterministic",
    "fused_head",
    "log_every",
    "profile_at",
    "checkpoint_every",
    "keep_checkpoints",
    "run_dir",
    "resume",
    "model.attention",
    "model.remat",
    "model.unroll_layers",
}
"""Fields that a resumed run may change without becoming another run."""

OF_EACH_HOST = {"hosts", "run_dir", "compilation_cache", "token_cache", "data.raw_dir"}
"""Fields that may differ from host to host; `run_dir` is host 0's on all of them."""


def check_same_run(run_dir: AnyPath, config: TrainConfig) -> None:
    """Refuses to resume with another model, data, loss or optimizer.

    Raises:
        ConfigError: names every field that differs, with both values.
    """
    old, new = _flat(read_config(run_dir)), _flat(config_dict(config))
    may_differ = MAY_DIFFER
    if _may_go_on(old, new):
        may_differ = MAY_DIFFER | {"steps"}
    # A field that is newer than the run had its default.
    old = _flat(config_dict(TrainConfig(name=config.name))) | old
    differing = [
        f"--{key.replace('_', '-')}: {old.get(key)!r} then, {value!r} now"
        for key, value in new.items()
        if may_differ.isdisjoint((key, key.split(".")[0])) and old.get(key) != value
    ]
    if differing:
        raise ConfigError(
            f"{run_dir} was trained with other settings, so it cannot be resumed with "
            "these:\n  " + "\n  ".join(differing) + "\nGive the old ones, or start "
            "a new run in another folder, without --resume."
        )


def check_same_flags(config: TrainConfig) -> None:
    """Refuses to train where hosts were started with different flags.

    They would wait for each other forever, or silently train different models.

    Raises:
        ConfigError: names every field that differs from host 0's, with both values.
    """
    local = _flat(config_dict(config))
    first = broadcast_from_coordinator(lambda: local)
    differing = [
        f"--{key.replace('_', '-')}: {first.get(key)!r} on host 0, {value!r} here"
        for key, value in local.items()
        if OF_EACH_HOST.isdisjoint((key, key.split(".")[0])) and first.get(key) != value
    ]
    assert_all_hosts(
        not differing,
        "every host must be started with the same flags, and these differ:\n  "
        + "\n  ".join(differing),
    )


def _may_go_on(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether the old run's steps would have been the same with more to follow."""
    more = new["steps"] > (old.get("steps") or math.inf)
    return more and old.get("optimizer.schedule") in ("constant", "plateau")


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat

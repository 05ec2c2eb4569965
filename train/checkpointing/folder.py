"""The folder of a run's checkpoints, one folder per step, as orbax keeps it."""

import dataclasses

import orbax.checkpoint as ocp

from train.checkpointing.errors import barrier
from train.checkpointing.storage import AnyPath, is_remote
from train.config import ConfigError

FOLDER = "checkpoints"
DAMAGED_FOLDER = "damaged"
COMMITTED = "commit_success.txt"
"""In a bucket, the file that orbax writes last into each step's folder."""


def open_manager(run_dir: AnyPath, keep: int | None) -> ocp.CheckpointManager:
    """Orbax's manager of a run's checkpoints.

    Args:
        run_dir: the run's folder, on storage that every host sees.
        keep: how many checkpoints a training run keeps; it also deletes what a killed
            run left half-written. None reads only.

    Raises:
        ConfigError: the folder is a file, or cannot be used.
    """
    folder = run_dir / FOLDER
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file: move it away.")
    options = ocp.CheckpointManagerOptions(
        max_to_keep=keep,
        cleanup_tmp_directories=keep is not None,
        async_options=ocp.AsyncOptions(barrier_sync_fn=barrier),
    )
    try:
        try:
            return _manager(folder, options)
        except ValueError:
            # A step's timestamp is damaged: its arrays may be whole, and are checked.
            lightweight = dataclasses.replace(options, lightweight_initialize=True)
            return _manager(folder, lightweight)
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be used ({error.strerror or error}): make it a folder "
            "that this user can read and write."
        ) from error


def _manager(
    folder: AnyPath, options: ocp.CheckpointManagerOptions
) -> ocp.CheckpointManager:
    return ocp.CheckpointManager(
        folder if is_remote(folder) else folder.absolute(),
        options=options,
        item_handlers={
            "params": ocp.StandardCheckpointHandler(),
            "training": ocp.StandardCheckpointHandler(),
            "config": ocp.JsonCheckpointHandler(),
            "checksums": ocp.JsonCheckpointHandler(),
        },
    )


def has_checkpoint(run_dir: AnyPath) -> bool:
    """Whether `run_dir` holds a complete checkpoint."""
    folder = run_dir / FOLDER
    if not folder.is_dir():
        return False
    steps = [child for child in folder.iterdir() if child.name.isdigit()]
    if is_remote(run_dir):  # where an unfinished folder has its name already
        return any((step / COMMITTED).exists() for step in steps)
    return bool(steps)

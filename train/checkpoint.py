"""Checkpoints with orbax: parameters, training state and config, one folder a step."""

import dataclasses
import pathlib
import zlib
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from train.config import ConfigError
from train.state import Params, TrainState

FOLDER = "checkpoints"


class Checkpointer:
    """Saves and restores train states under `run_dir/checkpoints`.

    The parameters are an item of their own, so that prediction and export read a third
    of the bytes. Saving is asynchronous; leaving the context waits for it.
    """

    def __init__(self, run_dir: pathlib.Path, *, keep: int | None = None) -> None:
        self._manager = ocp.CheckpointManager(
            (run_dir / FOLDER).absolute(),
            options=ocp.CheckpointManagerOptions(max_to_keep=keep),
            item_names=("params", "training", "config", "checksums"),
        )

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, *_: object) -> None:
        self._manager.wait_until_finished()
        self._manager.close()

    def latest_step(self) -> int | None:
        """The newest complete step, or None."""
        return self._manager.latest_step()

    def save(self, state: TrainState, config: dict[str, Any]) -> None:
        """Writes the state under its own step, unless that step is there already."""
        step = int(state.step)
        if self._manager.latest_step() == step:
            return
        sums = checksums({"params": state.params, "training": _training(state)})
        self._manager.save(
            step,
            args=ocp.args.Composite(
                params=ocp.args.StandardSave(state.params),
                training=ocp.args.StandardSave(_training(state)),
                config=ocp.args.JsonSave(config),
                checksums=ocp.args.JsonSave(sums),
            ),
        )

    def restore(self, step: int, abstract: TrainState) -> TrainState:
        """Reads a state into the shapes, dtypes and shardings of `abstract`.

        Raises:
            ConfigError: the files are incomplete, or their bytes are not those saved.
        """
        restored = self._restore(
            step,
            params=ocp.args.StandardRestore(abstract.params),
            training=ocp.args.StandardRestore(_training(abstract)),
        )
        return TrainState(params=restored["params"], **restored["training"])

    def read(self, step: int) -> dict[str, Any]:
        """Reads every array back, laid out as it was saved."""
        item = ocp.args.StandardRestore()
        restored = self._restore(step, params=item, training=item)
        return {"params": restored["params"], "training": restored["training"]}

    def restore_params(self, step: int, abstract: Params) -> Params:
        """Reads the parameters alone."""
        item = ocp.args.StandardRestore(abstract)
        return self._restore(step, params=item)["params"]

    def _restore(self, step: int, **items: Any) -> Any:
        try:
            restored = self._manager.restore(step, args=ocp.args.Composite(**items))
            sums = self._manager.restore(
                step, args=ocp.args.Composite(checksums=ocp.args.JsonRestore())
            )["checksums"]
        except Exception as error:
            # orbax may wrap tensorstore's word on damaged files in a bare Exception.
            known = isinstance(error, (ValueError, LookupError, OSError))
            if not known and type(error) is not Exception:
                raise
            raise ConfigError(self._damaged(step, str(error).split("\n")[0])) from error
        found = checksums({name: restored[name] for name in items})
        wrong = [name for name, value in found.items() if sums.get(name) != value]
        if wrong:
            raise ConfigError(self._damaged(step, f"the bytes of {wrong[0]} changed"))
        return restored

    def _damaged(self, step: int, why: str) -> str:
        return (
            f"the checkpoint {self._manager.directory / str(step)} cannot be read "
            f"({why[:200]}): copy it anew, or delete the folder to use an older one."
        )


def checksums(tree: Any) -> dict[str, int]:
    """The CRC-32 of every array's bytes, by its path.

    Orbax reads flipped bytes without a word.
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): zlib.crc32(
            np.ascontiguousarray(leaf).view(np.uint8).data
        )
        for path, leaf in leaves
    }


def _training(state: TrainState) -> dict[str, Any]:
    """Everything but the parameters."""
    fields = {f.name: getattr(state, f.name) for f in dataclasses.fields(state)}
    del fields["params"]
    return fields


def has_checkpoint(run_dir: pathlib.Path) -> bool:
    """Whether `run_dir` holds a complete checkpoint."""
    folder = run_dir / FOLDER
    return folder.is_dir() and any(child.name.isdigit() for child in folder.iterdir())


def is_coordinator() -> bool:
    """Whether this process writes the files that are written once."""
    return jax.process_index() == 0

"""Checkpoints with orbax: parameters, training state and config, one folder a step."""

import dataclasses
import pathlib
from typing import Any

import jax
import orbax.checkpoint as ocp

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
            item_names=("params", "training", "config"),
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
        self._manager.save(
            step,
            args=ocp.args.Composite(
                params=ocp.args.StandardSave(state.params),
                training=ocp.args.StandardSave(_training(state)),
                config=ocp.args.JsonSave(config),
            ),
        )

    def restore(self, step: int, abstract: TrainState) -> TrainState:
        """Reads a state into the shapes, dtypes and shardings of `abstract`."""
        restored = self._manager.restore(
            step,
            args=ocp.args.Composite(
                params=ocp.args.StandardRestore(abstract.params),
                training=ocp.args.StandardRestore(_training(abstract)),
            ),
        )
        return TrainState(params=restored["params"], **restored["training"])

    def read(self, step: int) -> dict[str, Any]:
        """Reads every array back, laid out as it was saved."""
        item = ocp.args.StandardRestore()
        args = ocp.args.Composite(params=item, training=item)
        restored = self._manager.restore(step, args=args)
        return {"params": restored["params"], "training": restored["training"]}

    def restore_params(self, step: int, abstract: Params) -> Params:
        """Reads the parameters alone."""
        args = ocp.args.Composite(params=ocp.args.StandardRestore(abstract))
        return self._manager.restore(step, args=args)["params"]


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

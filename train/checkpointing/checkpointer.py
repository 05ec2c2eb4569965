"""Checkpoints with orbax, one folder per step: parameters, training state, config."""

import contextlib
import dataclasses
import logging
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import orbax.checkpoint as ocp

from train.checkpointing.digests import check_digest_texts, differences, digests, kinds
from train.checkpointing.errors import (
    DamagedError,
    MismatchError,
    SaveError,
    is_denied,
    is_of_files,
    writing_checkpoint,
)
from train.checkpointing.folder import COMMITTED, DAMAGED_FOLDER, FOLDER, open_manager
from train.checkpointing.storage import (
    AnyPath,
    closed_part,
    move_folder,
    raise_out_of_reach,
    storage_errors,
)
from train.config import ConfigError
from train.multihost.hosts import assert_all_hosts, broadcast_from_coordinator
from train.state import Params, TrainState

logger = logging.getLogger("train")
T = TypeVar("T")


class Checkpointer:
    """Saves and restores train states under `run_dir/checkpoints`.

    The parameters are an item of their own, so that prediction and export read a third
    of the bytes. Saving is asynchronous; leaving the context waits for it. A folder
    gets its name once everything in it is written, or in a bucket its file `COMMITTED`:
    killed before that, it does not count.

    Args:
        run_dir: the run's folder, on storage that every host sees.
        keep: how many checkpoints a training run keeps; it also deletes what a killed
            run left half-written. None reads only.
    """

    def __init__(self, run_dir: AnyPath, *, keep: int | None = None) -> None:
        self._run_dir, self._keep = run_dir, keep
        self._pending: int | None = None
        self._manager = open_manager(run_dir, keep)

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, kind: object, error: object, _: object) -> None:
        try:
            self.wait()
        except SaveError:
            if kind is None:
                raise
            if not isinstance(error, SaveError):  # which names the step itself
                logger.warning("the checkpoint of step %s is lost", self._pending)
        finally:
            with self._writing():
                self._manager.close()

    def check(self) -> None:
        """Raises a failed save's error without waiting for one that still runs.

        Raises:
            SaveError: the last save failed.
        """
        if self._pending is not None and not self._manager.is_saving_in_progress():
            self.wait()
            self._pending = None

    def wait(self) -> None:
        """Waits until the last save is on disk.

        Raises:
            SaveError: it failed.
        """
        with self._writing():
            self._manager.wait_until_finished()
            self._manager.check_for_errors()

    def latest_step(self) -> int | None:
        """The newest complete step, or None."""
        return self._manager.latest_step()

    def save(self, state: TrainState, config: dict[str, Any]) -> None:
        """Writes the state under its own step, unless that step is there already.

        Raises:
            SaveError: this save or the one before failed.
        """
        step = int(state.step)
        if self._manager.latest_step() == step:
            return
        self.wait()  # so that an error names the right step
        items = {"params": state.params, "training": _training(state)}
        checksums = digests(items)
        self._pending = step
        with self._writing():
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    params=ocp.args.StandardSave(items["params"]),
                    training=ocp.args.StandardSave(items["training"]),
                    config=ocp.args.JsonSave(config),
                    checksums=ocp.args.JsonSave(checksums),
                ),
            )

    def _writing(self) -> contextlib.AbstractContextManager[None]:
        return writing_checkpoint(self._run_dir / FOLDER, self._pending)

    def newest(self, read: Callable[[int], T]) -> tuple[int, T] | None:
        """The newest whole step and the result of `read` on it; None without any step.

        Raises:
            DamagedError: no step is whole.
            MismatchError: the newest whole step is of another model or optimizer; no
                older one is taken in its place.
        """
        damaged: DamagedError | None = None
        for step in sorted(self._manager.all_steps(), reverse=True):
            try:
                found = read(step)
            except DamagedError as error:
                logger.warning("%s", error)
                damaged = error
                continue
            if damaged is not None:
                logger.warning("taking the checkpoint of step %d in its place", step)
            return step, found
        if damaged is not None:
            raise damaged
        return None

    def quarantine_after(self, step: int) -> None:
        """Moves the checkpoints after `step`, which are damaged, to `damaged/`."""
        later = [other for other in self._manager.all_steps() if other > step]
        if not later:
            return

        def move() -> list[str]:
            moved = []
            for other in later:
                target = self._run_dir / DAMAGED_FOLDER / str(other)
                with storage_errors(target):
                    while target.exists():
                        target = target.with_name(target.name + "-again")
                    target.parent.mkdir(exist_ok=True)
                source = self._run_dir / FOLDER / str(other)
                move_folder(source, target, last_of=COMMITTED)
                moved.append(str(target))
            return moved

        for target in broadcast_from_coordinator(move):
            logger.warning("moved the damaged checkpoint to %s", target)
        try:
            self._manager.reload()
        except ValueError:  # as in `open_manager`
            self._manager.close()
            self._manager = open_manager(self._run_dir, self._keep)

    def restore(self, step: int, abstract: TrainState) -> TrainState:
        """Reads a state into the shapes, dtypes and shardings of `abstract`.

        Raises:
            DamagedError: the files are incomplete, or their arrays not those saved.
            MismatchError: other names, shapes or dtypes were saved.
        """
        restored = self._restore(
            step, params=abstract.params, training=_training(abstract)
        )
        return TrainState(params=restored["params"], **restored["training"])

    def read(self, step: int) -> dict[str, Any]:
        """Reads every array unsharded onto one device, whatever its mesh was."""
        device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        saved = self._manager.item_metadata(step)
        abstract = {
            name: jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(
                    leaf.shape, leaf.dtype, sharding=device
                ),
                saved[name],
            )
            for name in ("params", "training")
        }
        restored = self._restore(step, **abstract)
        return {name: restored[name] for name in abstract}

    def restore_params(self, step: int, abstract: Params) -> Params:
        """Reads the parameters alone."""
        return self._restore(step, params=abstract)["params"]

    def newest_params(self, abstract: Params) -> Params:
        """The parameters of the newest whole step.

        Raises:
            ConfigError: there is no step, or one that this user may not read.
            DamagedError: no step is whole.
        """
        found = self.newest(lambda step: self.restore_params(step, abstract))
        if found is None:
            raise ConfigError(f"{self._run_dir} holds no finished checkpoint.")
        return found[1]

    def _restore(self, step: int, **abstract: Any) -> Any:
        """Reads items and compares their checksums; all hosts raise alike or none."""
        failure: ConfigError | None = None
        restored, checksums = None, {}
        items = {name: ocp.args.StandardRestore(of) for name, of in abstract.items()}
        try:
            only = ocp.args.Composite(checksums=ocp.args.JsonRestore())
            content = self._manager.restore(step, args=only)["checksums"]
            checksums = check_digest_texts(content)
            failure = self._mismatch(step, abstract, checksums)
            if failure is None:
                restored = self._manager.restore(step, args=ocp.args.Composite(**items))
        except Exception as error:
            if not is_of_files(error):
                raise
            raise_out_of_reach(self._run_dir, error)
            failure = self._unreadable(step, error)
        for kind in (ConfigError, DamagedError, MismatchError):
            assert_all_hosts(type(failure) is not kind, str(failure), kind)
        assert restored is not None
        for name, value in digests({name: restored[name] for name in items}).items():
            if checksums.get(name) != value:
                raise self._damaged(
                    step, f"{name} is {value}, and was {checksums.get(name)} when saved"
                )
        return restored

    def _mismatch(
        self, step: int, abstract: dict[str, Any], checksums: dict[str, str]
    ) -> MismatchError | None:
        """Compares the names, shapes and dtypes requested with those saved.

        Raises:
            ValueError: the files of the checkpoint contradict each other.
        """
        asked = kinds(abstract)
        saved = {
            name: kind.rpartition(" ")[0]
            for name, kind in checksums.items()
            if name.split("/")[0] in abstract
        }
        if asked == saved:
            return None
        stored = self._manager.item_metadata(step)
        if kinds({name: stored[name] for name in abstract}) != saved:
            raise ValueError("its arrays are not those of its checksums")
        return MismatchError(
            f"the checkpoint {self._manager.directory / str(step)} is of another model "
            "or optimizer than its run's:\n  "
            + "\n  ".join(differences(saved, asked))
            + f"\nGive {self._run_dir} the config.json that belongs to it, and use the "
            "version that wrote it."
        )

    def _unreadable(self, step: int, error: Exception) -> ConfigError:
        """The error for a checkpoint that this user may not read, or a damaged one."""
        folder, reason = self._manager.directory / str(step), _first_line(error)
        # Of a folder that may not be listed orbax says that its content is missing.
        closed = closed_part(folder)
        if closed is None and not is_denied(error):
            return self._damaged(step, reason)
        return ConfigError(
            f"the checkpoint {folder} may not be read by this user "
            f"({closed or reason}): change its permissions."
        )

    def _damaged(self, step: int, reason: str) -> DamagedError:
        return DamagedError(
            f"the checkpoint {self._manager.directory / str(step)} cannot be read "
            f"({reason}): copy it again, or delete the folder to use an older one."
        )


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0][:200]


def _training(state: TrainState) -> dict[str, Any]:
    """Everything but the parameters."""
    fields = {f.name: getattr(state, f.name) for f in dataclasses.fields(state)}
    del fields["params"]
    return fields

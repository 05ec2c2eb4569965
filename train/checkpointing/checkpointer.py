"""Checkpoints with orbax: parameters, training state and config, one folder a step."""

import contextlib
import dataclasses
import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import jax
import orbax.checkpoint as ocp

from train.checkpointing.damage import checked_sums, is_denied, is_of_files
from train.checkpointing.digests import differences, digests, kinds
from train.checkpointing.first_save import ready_first_save
from train.checkpointing.folder import COMMITTED, DAMAGED_FOLDER, FOLDER, open_manager
from train.checkpointing.saving import SaveError, quieten_threads, writing_checkpoint
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


class DamagedError(ConfigError):
    """A checkpoint that cannot be read, or whose arrays are not those saved."""


class MismatchError(ConfigError):
    """A checkpoint that is whole, but of another model or optimizer than asked for."""


class Checkpointer:
    """Saves and restores train states under `run_dir/checkpoints`.

    The parameters are an item of their own, so that prediction and export read a third
    of the bytes. Saving is asynchronous; leaving the context waits for it. A folder
    gets its name when all in it is written, or in a bucket its file `COMMITTED`: killed
    before that, it does not count.

    Args:
        run_dir: the run's folder, on storage that every host sees.
        keep: for the run that writes here, how many checkpoints to keep; what a killed
            run left half-written is then removed.
    """

    def __init__(self, run_dir: AnyPath, *, keep: int | None = None) -> None:
        self._run_dir, self._keep = run_dir, keep
        self._pending: int | None = None
        self._prepared: Future[None] | None = None
        quieten_threads(run_dir)
        self._manager = open_manager(run_dir, keep)

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, kind: object, error: object, _: object) -> None:
        try:
            self.wait()
        except SaveError:
            if kind is None:
                raise
            if not isinstance(error, SaveError):  # which says so itself
                logger.warning("the checkpoint of step %s is lost", self._pending)
        finally:
            with self._writing():
                self._manager.close()

    def check(self) -> None:
        """Waits for nothing, but tells as soon as a step can be what a save met.

        Raises:
            SaveError: what was saved last could not be written.
            ConfigError: there will be no room to save.
        """
        if self._prepared is not None and self._prepared.done():
            self._await_prepared()
        if self._pending is not None and not self._manager.is_saving_in_progress():
            self.wait()
            self._pending = None

    def wait(self) -> None:
        """Waits until what was saved is on disk.

        Raises:
            SaveError: it could not be written.
        """
        with self._writing():
            self._manager.wait_until_finished()
            self._manager.check_for_errors()

    def latest_step(self) -> int | None:
        """The newest complete step, or None."""
        return self._manager.latest_step()

    def prepare(self, state: TrainState) -> None:
        """Readies, beside other work, what the first save of such a state needs.

        That are the programs of its checksums and, for GPUs, pinned host memory, for
        which the steps would wait. The save itself waits until both are there.
        """
        self._prepared = ready_first_save(_saved(state))

    def save(self, state: TrainState, config: dict[str, Any]) -> None:
        """Writes the state under its own step, unless that step is there already.

        Raises:
            SaveError: this save or the one before could not be written.
            ConfigError: there is no room to save.
        """
        step = int(state.step)
        if self._manager.latest_step() == step:
            return
        self.wait()  # so that an error is of the step that it names
        self._await_prepared()
        saved = _saved(state)
        sums = digests(saved)
        self._pending = step
        with self._writing():
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    params=ocp.args.StandardSave(saved["params"]),
                    training=ocp.args.StandardSave(saved["training"]),
                    config=ocp.args.JsonSave(config),
                    checksums=ocp.args.JsonSave(sums),
                ),
            )

    def _await_prepared(self) -> None:
        if self._prepared is not None:
            self._prepared.result()
            self._prepared = None

    def _writing(self) -> contextlib.AbstractContextManager[None]:
        return writing_checkpoint(self._run_dir / FOLDER, self._pending)

    def newest(self, read: Callable[[int], T]) -> tuple[int, T] | None:
        """What `read` makes of the newest step that is whole; None without any step.

        Raises:
            DamagedError: no step is whole.
            MismatchError: the newest that is whole is of another model or optimizer; no
                older one is taken for it.
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
        """Moves the checkpoints after `step`, which are damaged, out of the way."""
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
                step = self._run_dir / FOLDER / str(other)
                move_folder(step, target, last_of=COMMITTED)
                moved.append(str(target))
            return moved

        for place in broadcast_from_coordinator(move):
            logger.warning("moved the damaged checkpoint to %s", place)
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
        """Reads every array back, whole and onto one device, wherever it was saved."""
        device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        saved = self._manager.item_metadata(step)

        def abstract(name: str) -> Any:
            return jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(
                    leaf.shape, leaf.dtype, sharding=device
                ),
                saved[name],
            )

        names = ("params", "training")
        restored = self._restore(step, **{name: abstract(name) for name in names})
        return {"params": restored["params"], "training": restored["training"]}

    def restore_params(self, step: int, abstract: Params) -> Params:
        """Reads the parameters alone."""
        return self._restore(step, params=abstract)["params"]

    def newest_params(self, abstract: Params) -> Params:
        """The parameters of the newest step that is whole.

        Raises:
            ConfigError: there is no step, or one that this user may not read.
            DamagedError: there is none that is whole.
        """
        found = self.newest(lambda step: self.restore_params(step, abstract))
        if found is None:
            raise ConfigError(f"{self._run_dir} holds no finished checkpoint.")
        return found[1]

    def _restore(self, step: int, **abstract: Any) -> Any:
        why, denied, other, restored, sums = "", "", "", None, {}
        items = {name: ocp.args.StandardRestore(of) for name, of in abstract.items()}
        try:
            only = ocp.args.Composite(checksums=ocp.args.JsonRestore())
            sums = checked_sums(self._manager.restore(step, args=only)["checksums"])
            other = self._difference(step, abstract, sums)
            if not other:
                restored = self._manager.restore(step, args=ocp.args.Composite(**items))
        except Exception as error:
            if not is_of_files(error):
                raise
            raise_out_of_reach(self._run_dir, error)
            why = str(error).split("\n")[0][:200]
            denied = self._denied(step, error)
        assert_all_hosts(not denied, denied)
        assert_all_hosts(not why, self._damaged(step, why), DamagedError)
        assert_all_hosts(not other, other, MismatchError)
        assert restored is not None
        found = digests({name: restored[name] for name in items})
        for name, value in found.items():
            if sums.get(name) != value:
                changed = f"{name} is {value}, and was {sums.get(name)} when saved"
                raise DamagedError(self._damaged(step, changed))
        return restored

    def _difference(
        self, step: int, abstract: dict[str, Any], sums: dict[str, str]
    ) -> str:
        """How the arrays asked for differ from those that were saved; "" if not at all.

        Raises:
            ValueError: what says how they were saved contradicts itself.
        """
        asked = kinds(abstract)
        saved = {
            name: kind.rpartition(" ")[0]
            for name, kind in sums.items()
            if name.split("/")[0] in abstract
        }
        if asked == saved:
            return ""
        stored = self._manager.item_metadata(step)
        if kinds({name: stored[name] for name in abstract}) != saved:
            raise ValueError("its arrays are not those of its checksums")
        return (
            f"the checkpoint {self._manager.directory / str(step)} is of another model "
            "or optimizer than its run's:\n  "
            + "\n  ".join(differences(saved, asked))
            + f"\nGive {self._run_dir} the config.json that belongs to it, and use the "
            "version that wrote it."
        )

    def _denied(self, step: int, error: BaseException) -> str:
        """What to say of files that may not be read: that tells nothing of what lies in
        them. "" where they may."""
        folder = self._manager.directory / str(step)
        # Of a folder that is closed orbax says that what lies in it is missing.
        closed = closed_part(folder)
        if closed is None and not is_denied(error):
            return ""
        why = closed or str(error).split("\n")[0][:200]
        return (
            f"the checkpoint {folder} may not be read by this user ({why}): mend its "
            "permissions."
        )

    def _damaged(self, step: int, why: str) -> str:
        return (
            f"the checkpoint {self._manager.directory / str(step)} cannot be read "
            f"({why}): copy it anew, or delete the folder to use an older one."
        )


def _saved(state: TrainState) -> dict[str, Any]:
    return {"params": state.params, "training": _training(state)}


def _training(state: TrainState) -> dict[str, Any]:
    """Everything but the parameters."""
    fields = {f.name: getattr(state, f.name) for f in dataclasses.fields(state)}
    del fields["params"]
    return fields

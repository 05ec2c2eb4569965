"""What goes wrong while a checkpoint is written: told once, and not waited for."""

import contextlib
import logging
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import orbax.checkpoint as ocp

from train.checkpointing.storage import (
    NO_ROOM,
    AnyPath,
    is_remote,
    out_of_reach,
    write_remedy,
)
from train.config import ConfigError

_BY_TENSORSTORE = re.compile(r"([^:]*?) ?\[os_error_code='(\d+)'")

_DETAILS = re.compile(r" \[\w+='")  # a whole request or specification


class SaveError(ConfigError):
    """A checkpoint that could not be written."""


@contextlib.contextmanager
def writing_checkpoint(folder: AnyPath, step: int | None) -> Iterator[None]:
    """Says of errors of the file system which checkpoint is lost, and which is not.

    They come as OSError from orbax's own files, and as ValueError from tensorstore's;
    from the save itself, from the next wait for it, or from closing.

    Args:
        folder: of all checkpoints.
        step: the one that the body writes or waits for.

    Raises:
        SaveError: in place of such an error.
    """
    try:
        yield
    except TimeoutError as error:  # an OSError, but of other hosts
        raise SaveError(
            f"the checkpoint of step {step} is lost, as not every host wrote its part "
            f"({error}): see the logs of the others. Those before it are whole: start "
            "all again with --resume."
        ) from error
    except (OSError, ValueError) as error:
        reason = _reason(error)
        if reason is None:
            raise
        remedy = write_remedy(None if is_remote(folder) else _number(error))
        raise SaveError(
            f"the checkpoint of step {step} could not be written to {folder} "
            f"({reason}). Those before it are whole: {remedy}, then continue with "
            "--resume."
        ) from error


def _reason(error: BaseException) -> str | None:
    """The file system's own words; None where the error is another one's."""
    if isinstance(error, OSError):
        return error.strerror or str(error).split("\n")[0]
    if found := _BY_TENSORSTORE.search(str(error)):
        return found[1].strip()
    if "Error writing" not in str(error):
        return None
    return _DETAILS.split(str(error))[0].strip().splitlines()[0][:200]


def barrier(*, key: str, timeout_ms: int) -> None:
    """Waits for the other hosts, as orbax does, unless the save failed on this one.

    They never come then: they wait for this one at an earlier place, all of them for
    twenty minutes. Orbax calls this where it ends a save, while its error is raised.
    """
    if sys.exc_info()[0] is None:
        ocp.multihost.get_barrier_sync_fn()(key=key, timeout_ms=timeout_ms)


class _Told(logging.Filter):
    """Leaves out what every thread says of an error of one kind.

    It is raised where the save or the read is waited for, and would be lost among
    these.

    Args:
        kind: whether an error is of the kind.
    """

    def __init__(self, kind: Callable[[BaseException], bool]) -> None:
        super().__init__()
        self._kind = kind

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return error is None or not self._kind(error)


def _number(error: BaseException) -> int | None:
    """The errno, also of tensorstore's errors."""
    if isinstance(error, OSError):
        return error.errno
    found = _BY_TENSORSTORE.search(str(error))
    return None if found is None else int(found[2])


def _no_room(error: BaseException) -> bool:
    return _number(error) in NO_ROOM


def _unreadable(error: BaseException | None) -> bool:
    """Of one array among many of a damaged checkpoint, which is told once."""
    return isinstance(error, Exception) and (
        "Error reading" in str(error)
        or "Error opening" in str(error)
        or "Encountered error while reading" in str(error)
    )


def _refused(error: BaseException) -> bool:
    return isinstance(error, Exception) and out_of_reach(error)


_NO_ROOM_TOLD = _Told(_no_room)
_DAMAGE_TOLD = _Told(_unreadable)
_REFUSAL_TOLD = _Told(_refused)


def quieten_threads(folder: AnyPath) -> None:
    """Lets the threads of a save or of a read be quiet about what it raises itself.

    That is a full disk, a damaged array and, of a folder in a bucket, that the bucket
    refuses. May be repeated.

    Args:
        folder: that is saved to or read from.
    """
    for logger in map(logging.getLogger, ("absl", "asyncio")):
        logger.addFilter(_NO_ROOM_TOLD)
        logger.addFilter(_DAMAGE_TOLD)
        if is_remote(folder):
            logger.addFilter(_REFUSAL_TOLD)
        else:  # there may have been another save before, to a bucket
            logger.removeFilter(_REFUSAL_TOLD)
    if not isinstance(sys.unraisablehook, _Hook):
        sys.unraisablehook = _Hook(sys.unraisablehook)


class _Hook:
    """Leaves out tensorstore's reads and writes that end after one that failed."""

    def __init__(self, shown: Callable[[Any], Any]) -> None:
        self._shown = shown

    def __call__(self, unraisable: Any) -> None:
        error = unraisable.exc_value
        if str(error) != "Event loop is closed" and not _unreadable(error):
            self._shown(unraisable)

"""Errors of orbax and tensorstore, translated into what to do about a checkpoint."""

import contextlib
import re
import sys
from collections.abc import Iterator

import jax
import orbax.checkpoint as ocp

from train.checkpointing.storage import AnyPath, is_remote, write_remedy
from train.config import ConfigError

_TENSORSTORE = re.compile(r"([^:]*?) ?\[os_error_code='(\d+)'")
_REQUEST = re.compile(r" \[\w+='")  # where tensorstore appends a request or a spec


class SaveError(ConfigError):
    """A checkpoint that could not be written."""


class DamagedError(ConfigError):
    """A checkpoint that cannot be read, or whose arrays are not those saved."""


class MismatchError(ConfigError):
    """A whole checkpoint, but of another model or optimizer than requested."""


@contextlib.contextmanager
def writing_checkpoint(folder: AnyPath, step: int | None) -> Iterator[None]:
    """Translates errors of the file system, naming the checkpoint that is lost.

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
            f"({error}): see the logs of the others. Earlier ones are whole: restart "
            "every host with --resume."
        ) from error
    except (OSError, ValueError) as error:
        reason, number = _reason(error)
        if reason is None:
            raise
        raise SaveError(
            f"the checkpoint of step {step} could not be written to {folder} "
            f"({reason}). Earlier ones are whole: "
            f"{write_remedy(None if is_remote(folder) else number)}, then continue "
            "with --resume."
        ) from error
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise SaveError(
            f"the checkpoint of step {step} does not fit into this host's pinned "
            f"memory ({str(error).splitlines()[0][:120]}): raise JAX's limit of 64 GB "
            "(XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB), or take more hosts or a smaller "
            "state (--optimizer)."
        ) from error


def _reason(error: OSError | ValueError) -> tuple[str | None, int | None]:
    """The file system's message and errno; (None, None) for another error."""
    text = str(error)
    if isinstance(error, OSError):
        return error.strerror or text.split("\n")[0], error.errno
    if found := _TENSORSTORE.search(text):
        return found[1].strip(), int(found[2])
    if "Error writing" not in text:
        return None, None
    return _REQUEST.split(text)[0].strip().splitlines()[0][:200], None


def barrier(*, key: str, timeout_ms: int) -> None:
    """Waits for the other hosts, as orbax does, unless the save failed on this one.

    They never reach this barrier then: they wait for this host at an earlier one, for
    twenty minutes. Orbax calls this where it ends a save, while its error is raised.
    """
    if sys.exc_info()[0] is None:
        ocp.multihost.get_barrier_sync_fn()(key=key, timeout_ms=timeout_ms)


def is_denied(error: BaseException) -> bool:
    """Whether an error means that files may not be read."""
    return isinstance(error, PermissionError) or "PERMISSION_DENIED" in str(error)


def is_of_files(error: BaseException) -> bool:
    """Whether an error of orbax means damaged or unreadable files, and not a bug.

    It may wrap tensorstore's error in a bare Exception. Where a JSON file holds a list
    instead of an object, say, the error is Python's own, but raised in orbax.
    """
    if isinstance(error, TypeError | AttributeError):
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        module = "" if trace is None else trace.tb_frame.f_globals.get("__name__", "")
        return module.startswith("orbax.")
    return isinstance(error, ValueError | LookupError | OSError) or (
        type(error) is Exception
    )

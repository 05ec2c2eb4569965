"""What the errors of a read say of a checkpoint: damaged, closed, or neither."""

from typing import Any


def is_denied(error: BaseException) -> bool:
    """Whether an error says that files may not be read."""
    return isinstance(error, PermissionError) or "PERMISSION_DENIED" in str(error)


def is_of_files(error: BaseException) -> bool:
    """Whether orbax means damaged or unwritable files, and not a bug.

    It may wrap tensorstore's word in a bare Exception, and where a file of JSON holds
    a list for an object, say, it goes on with the list: the error is then Python's own,
    but raised in orbax.
    """
    if isinstance(error, TypeError | AttributeError):
        return _raised_in(error).startswith("orbax.")
    return isinstance(error, ValueError | LookupError | OSError) or (
        type(error) is Exception
    )


def _raised_in(error: BaseException) -> str:
    """The name of the module; "" for an error that was not raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else trace.tb_frame.f_globals.get("__name__", "")


def checked_sums(content: Any) -> dict[str, str]:
    """The checksums of a checkpoint, as `digests` gave them.

    Args:
        content: of their file of JSON.

    Raises:
        ValueError: it is of another kind.
    """
    if isinstance(content, dict) and all(isinstance(v, str) for v in content.values()):
        return content
    raise ValueError("its checksums are not one text an array")

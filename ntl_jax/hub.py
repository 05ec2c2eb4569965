"""Files of the Hugging Face hub."""

import pathlib
from collections.abc import Sequence
from typing import cast


def fetch(name: str, patterns: Sequence[str]) -> pathlib.Path:
    """The folder of a hub id's files, fetched now or before.

    The hub is asked once. Where it is out of reach, what was fetched before is taken.

    Args:
        name: a hub id, such as ``google-t5/t5-small``.
        patterns: which files, as a shell writes it.

    Returns:
        A folder of the hub's own cache, whose files must not be changed.

    Raises:
        ValueError: the name is no hub id.
        OSError: the hub lacks it, refuses it or cannot be reached, and it was not
            fetched before.
    """
    import huggingface_hub  # optional
    from huggingface_hub.errors import HfHubHTTPError

    # Where a proxy refuses, the error is its client's own: an OSError in some versions,
    # a base of the hub's errors in others.
    of_client = cast(tuple[type[Exception], ...], HfHubHTTPError.__bases__)
    try:
        return pathlib.Path(
            huggingface_hub.snapshot_download(name, allow_patterns=list(patterns))
        )
    except (OSError, ValueError):
        raise
    except of_client as error:
        raise ConnectionError(f"{type(error).__name__}: {error}") from error

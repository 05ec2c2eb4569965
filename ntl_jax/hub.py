"""Files of the Hugging Face hub."""

import pathlib
from collections.abc import Sequence
from typing import cast


def fetch(name: str, patterns: Sequence[str]) -> pathlib.Path:
    """Downloads the files of a hub id, or finds them in the hub's local cache.

    The hub is asked once. If it cannot be reached, files downloaded earlier are used.

    Args:
        name: a hub id, such as ``google-t5/t5-small``.
        patterns: shell patterns of the files to download.

    Returns:
        A folder in the hub's local cache; its files must not be changed.

    Raises:
        ValueError: the name is not a hub id.
        OSError: the hub does not have it, refuses access or cannot be reached, and it
            was not downloaded earlier.
    """
    import huggingface_hub  # optional
    from huggingface_hub.errors import HfHubHTTPError

    # If a proxy refuses, the HTTP client's own error arises: an OSError in some
    # versions, a base class of HfHubHTTPError in others.
    client_errors = cast(tuple[type[Exception], ...], HfHubHTTPError.__bases__)
    try:
        return pathlib.Path(
            huggingface_hub.snapshot_download(name, allow_patterns=list(patterns))
        )
    except (OSError, ValueError):
        raise
    except client_errors as error:
        raise ConnectionError(f"{type(error).__name__}: {error}") from error

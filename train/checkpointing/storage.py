"""Run folders: on this machine's disks, or in a bucket of Google Cloud Storage.

In a bucket (`gs://BUCKET/FOLDER`) an object is written whole or not at all, and cannot
be appended to or renamed; folders exist only as prefixes of names.
"""

import contextlib
import errno
import importlib.util
import logging
import os
import pathlib
import re
import tempfile
import time
from collections.abc import Iterator
from typing import Any, TypeAlias

from etils import epath

from train.config import ConfigError

REMOTE = "gs://"
AnyPath: TypeAlias = pathlib.Path | epath.Path
"""A file or folder on this machine, or in a bucket."""

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (None, errno.EACCES, errno.EPERM, errno.EROFS)
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)

_MISSPELT = re.compile(r"(gs|gcs|s3|https?|abfss?|file):(?!//)")

logger = logging.getLogger("train")


def is_remote(path: AnyPath | str) -> bool:
    """Whether a path lies in a bucket."""
    return os.fspath(path).startswith(REMOTE)


def write_remedy(number: int | None) -> str:
    """What to do where a path cannot be written, by its errno; None for a bucket."""
    if number in NO_ROOM:
        return "make room"
    if number in _FORBIDDEN:
        return "look at its permissions"
    return "bring its folder back" if number in _GONE else "look at its disk"


def any_path(name: str) -> AnyPath:
    """The path that a name on the command line means.

    Args:
        name: a path of this machine, or `gs://BUCKET/FOLDER`.

    Raises:
        ConfigError: another kind of address, one without a folder, or gcsfs is not
            installed.
    """
    if _MISSPELT.match(name):  # libraries would take the folder for a bucket
        raise ConfigError(
            f"{name} is neither an address nor a folder: an address has two slashes, "
            "as in gs://BUCKET/FOLDER; a folder may be ./NAME."
        )
    if "://" not in name:
        return pathlib.Path(name)
    if not name.startswith(REMOTE):
        raise ConfigError(
            f"{name} cannot be used: orbax writes checkpoints to folders and to gs:// "
            "only. Mount it (s3fs, blobfuse), and give the mount's path."
        )
    if len(epath.Path(name).parts) < 4:  # "/", "gs", the bucket, a folder
        raise ConfigError(f"{name} names no folder: give {REMOTE}BUCKET/FOLDER.")
    if importlib.util.find_spec("gcsfs") is None:
        raise ConfigError(f"{name} needs gcsfs: pip install 'ntl_jax[gcs]'.")
    _set_up_gcsfs()
    return epath.Path(name)


def local_path(name: str) -> pathlib.Path:
    """A path of this machine.

    Raises:
        ConfigError: it is an address.
    """
    if "://" in name:
        raise ConfigError(f"{name} is not a folder of this machine: name one.")
    return pathlib.Path(name)


def _set_up_gcsfs() -> None:
    import fsspec.config

    # No listing may be cached: TensorStore and other hosts write to the same folders.
    for protocol in ("gs", "gcs"):
        fsspec.config.conf.setdefault(protocol, {})["use_listings_cache"] = False
    # They raise what they log, and warn at every request of a bucket whose layout may
    # not be read, or of missing credentials.
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
    logging.getLogger("google.auth").setLevel(logging.ERROR)


def _errors() -> tuple[type[Exception], ...]:
    """The errors of gcsfs and of the clients that it uses."""
    import aiohttp
    import gcsfs.retry
    import google.auth.exceptions
    from google.api_core.exceptions import GoogleAPIError

    return (
        OSError,
        aiohttp.ClientError,
        gcsfs.retry.ChecksumError,
        gcsfs.retry.HttpError,
        gcsfs.retry.NonRetryableError,
        google.auth.exceptions.GoogleAuthError,
        GoogleAPIError,
    )


@contextlib.contextmanager
def storage_errors(*paths: AnyPath) -> Iterator[None]:
    """Translates the errors of a bucket that cannot be used.

    Args:
        paths: what the body reads and writes.

    Raises:
        ConfigError: the bucket of one of the paths cannot be used. Errors of this
            machine's folders are not translated.
    """
    remote = [str(path) for path in paths if is_remote(path)]
    if not remote:
        yield
        return
    try:
        yield
    except (*_errors(), ValueError) as error:
        no_bucket = isinstance(error, FileNotFoundError) and error.filename is None
        if no_bucket or out_of_reach(error):
            raise _cannot_be_used(", ".join(remote), error) from error
        raise


def _cannot_be_used(where: str, error: Exception) -> ConfigError:
    reason = str(error).strip() or type(error).__name__
    return ConfigError(
        f"{where} cannot be used ({reason.splitlines()[0][:200]}): check the network, "
        "that the bucket exists, and that this machine's Google credentials may list, "
        "read, write and delete in it (gcloud auth application-default login)."
    )


_OUT_OF_REACH = re.compile(
    r"Bad Request|(PERMISSION_DENIED|UNAUTHENTICATED|UNAVAILABLE|DEADLINE_EXCEEDED|"
    r"RESOURCE_EXHAUSTED|ABORTED|CANCELLED|UNKNOWN):"
)
"""How refusals begin in gcsfs and in TensorStore."""


def out_of_reach(error: Exception) -> bool:
    """Whether an error is of a bucket's access, not of its content.

    Args:
        error: of gcsfs, orbax or TensorStore, on a path in a bucket.
    """
    if isinstance(error, FileNotFoundError | ConfigError):
        return False
    if isinstance(error, OSError) and error.filename is not None:  # of a disk
        return False
    if isinstance(error, ValueError) or type(error) is Exception:
        return _OUT_OF_REACH.match(str(error)) is not None
    return isinstance(error, _errors())


def raise_out_of_reach(path: AnyPath, error: Exception) -> None:
    """Raises ConfigError where an error means that a bucket cannot be used."""
    if is_remote(path) and out_of_reach(error):
        raise _cannot_be_used(str(path), error) from error


def make_folder(path: AnyPath) -> None:
    """Creates a folder and its parents, and checks that it can be written to.

    In a bucket it writes and deletes an object, and reads the bucket's metadata, as
    orbax does before it deletes a checkpoint.

    Raises:
        ConfigError: it cannot be created or written to.
    """
    if is_remote(path):
        from google.cloud import storage

        with storage_errors(path):
            storage.Client().get_bucket(path.parts[2])
            probe = path / "probe"
            probe.write_text("whether this run may write here")
            probe.unlink()
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise ConfigError(
            f"cannot write to {path} ({error.strerror}): name another folder."
        ) from error


def closed_part(folder: AnyPath) -> str | None:
    """A file or folder in a folder that this user may not read, or None.

    Buckets report this themselves, so it is always None for them.
    """
    if is_remote(folder):
        return None
    for root, folders, files in os.walk(folder):
        for part in (root, *(os.path.join(root, name) for name in folders + files)):
            needed = os.R_OK | os.X_OK if os.path.isdir(part) else os.R_OK
            if not os.access(part, needed):
                return part
    return None


def move_folder(source: AnyPath, target: AnyPath, *, last_of: str) -> None:
    """Moves a folder with its content.

    In a bucket the service copies every object before one is deleted.

    Args:
        source: the folder.
        target: its new path, which does not exist yet.
        last_of: the file that marks the folder as whole. It is deleted first, so that
            what a kill leaves does not count.

    Raises:
        ConfigError: the bucket does not allow it.
    """
    if not is_remote(source):
        source.rename(target)
        return
    import fsspec

    with storage_errors(source):
        files: Any = fsspec.url_to_fs(str(source))[0]
        files.copy(f"{source}/", f"{target}/", recursive=True)
        files.rm_file(str(source / last_of))
        files.rm(str(source), recursive=True)


class Mirror:
    """A temporary folder, for files that grow, that is copied to a bucket.

    Args:
        target: the folder in the bucket.
    """

    SECONDS = 30
    """Least time between two periodic copies."""
    SHARE = 0.05
    """Largest share of the time that periodic copies take."""

    def __init__(self, target: AnyPath) -> None:
        self._target = target
        self._temporary = tempfile.TemporaryDirectory(prefix="train-")
        self.folder = pathlib.Path(self._temporary.name)
        self._copied: dict[pathlib.Path, int] = {}
        self._due = 0.0

    def copy(self) -> None:
        """Copies the files that grew since the last copy.

        Raises:
            ConfigError: the bucket cannot be written.
        """
        start = time.monotonic()
        with storage_errors(self._target):
            for path in sorted(self.folder.rglob("*")):
                if path.is_dir() or self._copied.get(path) == path.stat().st_size:
                    continue
                content = path.read_bytes()
                target = self._target / str(path.relative_to(self.folder))
                target.write_bytes(content)
                self._copied[path] = len(content)
        now = time.monotonic()
        self._due = now + max(self.SECONDS, (now - start) / self.SHARE)

    def copy_if_due(self) -> None:
        """Copies periodically; a failure is logged, and tried again later."""
        if time.monotonic() < self._due:
            return
        try:
            self.copy()
        except ConfigError as error:
            self._due = time.monotonic() + self.SECONDS
            logger.warning("%s Trying again in %d s.", error, self.SECONDS)

    def close(self) -> None:
        """Copies, and removes the temporary folder."""
        try:
            self.copy()
        finally:
            self._temporary.cleanup()

"""Run folders: on disks of this machine, or in a bucket of Google Cloud Storage.

In a bucket (`gs://BUCKET/FOLDER`) objects are written whole, or not at all. There are
no folders but in their names, no appends and no renames.
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
    """What to do where something cannot be written, by its errno; None: a bucket's."""
    if number in NO_ROOM:
        return "make room"
    if number in _FORBIDDEN:
        return "look at its permissions"
    return "bring its folder back" if number in _GONE else "look at its disk"


def any_path(name: str) -> AnyPath:
    """What a name given on the command line means.

    Args:
        name: a path of this machine, or `gs://BUCKET/FOLDER`.

    Raises:
        ConfigError: an address of another kind, one without a folder, or gcsfs is not
            installed.
    """
    if _MISSPELT.match(name):  # libraries would take the folder for a bucket
        raise ConfigError(
            f"{name} is neither an address nor a name for a folder: an address has two "
            "slashes, as in gs://BUCKET/FOLDER; a folder may be ./NAME."
        )
    if "://" not in name:
        return pathlib.Path(name)
    if not name.startswith(REMOTE):
        raise ConfigError(
            f"{name} cannot be used: orbax writes checkpoints to folders and to gs:// "
            "alone. Mount it (s3fs, blobfuse), and name where."
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
        raise ConfigError(f"{name} is no folder of this machine: name one.")
    return pathlib.Path(name)


def _set_up_gcsfs() -> None:
    import fsspec.config

    # TensorStore and other hosts write to the same folders: what gcsfs knew of them a
    # moment ago may be wrong.
    for protocol in ("gs", "gcs"):
        fsspec.config.conf.setdefault(protocol, {})["use_listings_cache"] = False
    # It raises what it logs; and at each request it warns of a bucket whose layout it
    # may not read, or of credentials that this machine has not, and goes on.
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
    logging.getLogger("google.auth").setLevel(logging.ERROR)


def _errors() -> tuple[type[Exception], ...]:
    """What gcsfs and the clients below it raise."""
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
    """Says of a bucket that cannot be read or written what to look at.

    Args:
        paths: what the body reads and writes.

    Raises:
        ConfigError: the body failed for that reason. Errors of folders on this machine
            pass as they are.
    """
    remote = [str(path) for path in paths if is_remote(path)]
    if not remote:
        yield
        return
    try:
        yield
    except (*_errors(), ValueError) as error:
        lacking = isinstance(error, FileNotFoundError) and error.filename is None
        if lacking or out_of_reach(error):
            raise _cannot_be_used(", ".join(remote), error) from error
        raise


def _cannot_be_used(where: str, error: Exception) -> ConfigError:
    told = str(error).strip() or type(error).__name__
    return ConfigError(
        f"{where} cannot be used ({told.splitlines()[0][:200]}): check the network, "
        "that the bucket exists, and that this machine's Google credentials may list, "
        "read, write and delete in it (gcloud auth application-default login)."
    )


_OUT_OF_REACH = re.compile(
    r"Bad Request|(PERMISSION_DENIED|UNAUTHENTICATED|UNAVAILABLE|DEADLINE_EXCEEDED|"
    r"RESOURCE_EXHAUSTED|ABORTED|CANCELLED|UNKNOWN):"
)
"""How gcsfs says that it was refused, and how TensorStore begins to."""


def out_of_reach(error: Exception) -> bool:
    """Whether a bucket could not be used, which says nothing of what lies in it.

    Args:
        error: of gcsfs, orbax or TensorStore, on a path in a bucket.
    """
    if isinstance(error, FileNotFoundError):
        return False
    if isinstance(error, OSError) and error.filename is not None:  # of a disk
        return False
    if isinstance(error, ConfigError):
        return False
    if isinstance(error, ValueError) or type(error) is Exception:
        return _OUT_OF_REACH.match(str(error)) is not None
    return isinstance(error, _errors())


def raise_out_of_reach(path: AnyPath, error: Exception) -> None:
    """Raises ConfigError where an error means that a bucket could not be used."""
    if is_remote(path) and out_of_reach(error):
        raise _cannot_be_used(str(path), error) from error


def make_folder(path: AnyPath) -> None:
    """Makes a folder that can be written to, with those above it.

    In a bucket, where nothing is made, it writes and deletes an object, and asks what
    orbax will ask of the bucket before it deletes a checkpoint.

    Raises:
        ConfigError: it cannot be made, or nothing can be written in it.
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
    """A part of a folder that this user may not read; None: all, or not known.

    Args:
        folder: on this machine, as buckets say so themselves.
    """
    if is_remote(folder):
        return None
    for place, folders, files in os.walk(folder):
        for part in (place, *(os.path.join(place, name) for name in folders + files)):
            needed = os.R_OK | os.X_OK if os.path.isdir(part) else os.R_OK
            if not os.access(part, needed):
                return part
    return None


def move_folder(source: AnyPath, target: AnyPath, *, last_of: str) -> None:
    """Moves a folder with all in it.

    In a bucket every object is copied, there and by the service, before one is deleted.

    Args:
        source: the folder.
        target: where it is to be; nothing lies there yet.
        last_of: the file whose presence says that the folder is whole. It is deleted
            first: killed after that, what is left does not count.

    Raises:
        ConfigError: it lies in a bucket where this is not allowed.
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
    """A folder of this machine whose files are copied to one in a bucket.

    Programs that append to files write here.

    Args:
        target: the folder in the bucket.
    """

    SECONDS = 30
    """So long at least between two copies that nobody asked for."""
    SHARE = 0.05
    """So much of the time at most goes to them."""

    def __init__(self, target: AnyPath) -> None:
        self._target = target
        self._temporary = tempfile.TemporaryDirectory(prefix="train-")
        self.folder = pathlib.Path(self._temporary.name)
        self._copied: dict[pathlib.Path, int] = {}
        self._due = 0.0

    def copy(self) -> None:
        """Copies the files that grew since they were copied.

        Raises:
            ConfigError: the bucket cannot be written.
        """
        start = time.monotonic()
        with storage_errors(self._target):
            for path in sorted(self.folder.rglob("*")):
                if path.is_dir() or self._copied.get(path) == path.stat().st_size:
                    continue
                content = path.read_bytes()
                where = self._target / str(path.relative_to(self.folder))
                where.write_bytes(content)
                self._copied[path] = len(content)
        now = time.monotonic()
        self._due = now + max(self.SECONDS, (now - start) / self.SHARE)

    def copy_if_due(self) -> None:
        """Copies from time to time; where that fails, it says so and tries again."""
        if time.monotonic() < self._due:
            return
        try:
            self.copy()
        except ConfigError as error:
            self._due = time.monotonic() + self.SECONDS
            logger.warning("%s Trying again in %d s.", error, self.SECONDS)

    def close(self) -> None:
        """Copies, and removes the folder of this machine."""
        try:
            self.copy()
        finally:
            self._temporary.cleanup()

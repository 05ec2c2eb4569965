"""metrics.jsonl, one object per line, and events for TensorBoard."""

import contextlib
import importlib.util
import json
import logging
import math
import pathlib
from collections.abc import Iterator
from typing import Any

from train.checkpointing.storage import (
    AnyPath,
    Mirror,
    is_remote,
    storage_errors,
    write_remedy,
)
from train.config import ConfigError
from train.multihost.hosts import is_coordinator

METRICS_FILE = "metrics.jsonl"

logger = logging.getLogger("train")


def replace_text(path: AnyPath, text: str) -> None:
    """Replaces a file atomically: killed at any moment, the old one is still there.

    Raises:
        ConfigError: it cannot be written.
    """
    if is_remote(path):  # objects are written whole
        with storage_errors(path):
            path.write_text(text)
        return
    unfinished = path.with_name(path.name + ".unfinished")
    with writing(path):
        unfinished.write_text(text)
        unfinished.replace(path)


@contextlib.contextmanager
def writing(path: AnyPath | str) -> Iterator[None]:
    """Turns an OSError into a ConfigError that names the path and the remedy."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written ({error.strerror}): "
            f"{write_remedy(error.errno)}, then restart (a run with --resume)."
        ) from error


class MetricWriter:
    """Appends rows to `run_dir/metrics.jsonl`, on host 0 alone.

    Where tensorboardX is installed, the same numbers go to an event file. A resumed run
    first drops the rows after `start_step` and those of the final evaluation, which are
    written again. To a bucket the files are copied: periodically, by `flush` and by
    `close`.
    """

    def __init__(self, run_dir: AnyPath, *, start_step: int = 0) -> None:
        self._file = self._board = self._mirror = None
        if not is_coordinator():
            return
        folder = pathlib.Path(run_dir)
        if is_remote(run_dir):
            self._mirror = Mirror(run_dir)
            folder = self._mirror.folder
        path = folder / METRICS_FILE
        kept = [
            row
            for row in read_metrics(run_dir)
            if row["step"] <= start_step and not row["kind"].startswith("final/")
        ]
        replace_text(path, "".join(json.dumps(row) + "\n" for row in kept))
        with writing(path):
            self._file = path.open("ab", buffering=0)
        if importlib.util.find_spec("tensorboardX"):
            from tensorboardX import SummaryWriter

            with writing(folder):
                # Unbounded, as nobody empties the queue once a full disk has ended the
                # thread that writes; `flush` raises then.
                self._board = SummaryWriter(
                    str(folder), purge_step=start_step + 1, max_queue=0
                )
        self.flush()

    def write(self, step: int, kind: str, values: dict[str, Any]) -> None:
        """Writes one row: `{"step": step, "kind": kind, **values}`.

        Numbers that JSON cannot hold (nan, inf) are written as null.
        """
        if self._file is None:
            return
        row = {"step": step, "kind": kind} | {k: _plain(v) for k, v in values.items()}
        with writing(self._file.name):
            self._append(json.dumps(row) + "\n")
        if self._board is not None:
            for name, value in row.items():
                if isinstance(value, float):
                    self._board.add_scalar(f"{kind}/{name}", value, step)
        if self._mirror is not None:
            self._mirror.copy_if_due()

    def _append(self, text: str) -> None:
        """Writes unbuffered, so that a full disk raises here."""
        assert self._file is not None
        content = text.encode()
        while content:
            content = content[self._file.write(content) :]

    def flush(self) -> None:
        """Makes every row durable: to be called before a checkpoint is saved.

        Raises:
            ConfigError: the disk or the bucket cannot be written.
        """
        if self._board is not None:
            with writing(self._board.logdir):
                self._board.flush()
        if self._mirror is not None:
            self._mirror.copy()

    def close(self) -> None:
        """Flushes and closes the files."""
        if self._file is not None:
            self._file.close()
        if self._board is not None:
            try:
                self._board.close()
            except OSError as error:  # most likely after another; no row is lost
                logger.warning("TensorBoard lacks the last numbers (%s)", error)
        if self._mirror is not None:
            self._mirror.close()


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_metrics(run_dir: AnyPath) -> list[dict[str, Any]]:
    """All rows of a run's metrics, oldest first.

    A killed run may leave half a last row, which is skipped.

    Raises:
        ConfigError: another row is damaged.
    """
    path = run_dir / METRICS_FILE
    if not path.exists():
        return []
    rows = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            rows += [_row(line)] if line else []
        except ValueError as error:  # not JSON, not UTF-8, or not a row
            raise ConfigError(
                f"{path}, line {number} is damaged ({error}): delete the line."
            ) from error
    return rows


def _row(line: bytes) -> dict[str, Any]:
    row = json.loads(line)
    if (
        isinstance(row, dict)
        and isinstance(row.get("step"), int)
        and isinstance(row.get("kind"), str)
    ):
        return row
    raise ValueError("it is not a row with a step and a kind")

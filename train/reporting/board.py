"""TensorBoard's event file, written where the run can see that it fails."""

import contextlib
import pathlib
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

FLUSH_SECONDS = 120.0


class Board:
    """Scalars for TensorBoard, in a new event file of a folder.

    tensorboardX's own `SummaryWriter` writes from a thread of its own: where a full
    disk ends that thread, the one that trains waits for it forever, ten rows later.

    Args:
        folder: the run's.
        start_step: what earlier event files say of later steps is hidden.

    Raises:
        OSError: the file cannot be written; so do the methods.
    """

    def __init__(self, folder: pathlib.Path, start_step: int) -> None:
        with _without_torch():
            from tensorboardX.proto import event_pb2
            from tensorboardX.record_writer import RecordWriter
            from tensorboardX.summary import scalar

        protos: Any = event_pb2  # its classes are made when it is imported
        self._event, self._scalar, self._flushed = protos.Event, scalar, 0.0
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}"
        self._records = RecordWriter(str(folder / name))
        start = protos.SessionLog(status=protos.SessionLog.START)
        self._write(self._event(file_version="brain.Event:2"))
        self._write(self._event(step=start_step + 1, session_log=start))

    def add(self, step: int, values: dict[str, float]) -> None:
        """Writes numbers by tag, which reach the disk within `FLUSH_SECONDS`."""
        for tag, value in values.items():
            self._write(self._event(step=step, summary=self._scalar(tag, value)))
        if time.monotonic() > self._flushed + FLUSH_SECONDS:
            self._records.flush()
            self._flushed = time.monotonic()

    def _write(self, event: Any) -> None:
        event.wall_time = time.time()
        self._records.write(event.SerializeToString())

    def close(self) -> None:
        """Writes what is left, and closes the file in any case."""
        self._records.close()


@contextlib.contextmanager
def _without_torch() -> Iterator[None]:
    """tensorboardX imports it where it is installed: seconds, and for nothing here."""
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # pyright: ignore[reportArgumentType]
    try:
        yield
    finally:
        del sys.modules["torch"]

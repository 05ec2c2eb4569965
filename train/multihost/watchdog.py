"""An end to a run of several hosts that makes no progress, instead of a long wait."""

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable

from train.multihost.hosts import several

Progress = Callable[[str], None]
"""Is told of whatever was finished, in a few words: `step 12`."""

GRACE = 30
"""So many seconds later faulthandler ends a process whose threads cannot run [s]."""


def unwatched(_: str) -> None:
    """Progress of a run that nobody watches."""


class Watchdog:
    """Ends a process of several that makes no progress, and shows where it stands.

    Where one host hangs, all others wait for it forever: JAX notices only processes
    that are gone or answer nothing. A process that runs alone is left alone.

    Args:
        seconds: how long nothing may be finished.
    """

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds
        self._last = ("the start", time.monotonic())
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Watchdog":
        if several():
            self.pat("the start")
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if several():
            self._thread.join()
            faulthandler.cancel_dump_traceback_later()

    def pat(self, finished: str) -> None:
        """Counts the seconds from now on.

        Args:
            finished: what was, for the message.
        """
        self._last = (finished, time.monotonic())
        if several():
            # Needs no thread of Python's, which one that hangs may keep from running.
            faulthandler.dump_traceback_later(self._seconds + GRACE, exit=True)

    def _watch(self) -> None:
        """The main thread may sit in a collective: it holds no lock there."""
        while not self._done.wait(min(1.0, self._seconds / 4)):
            finished, since = self._last
            if time.monotonic() > since + self._seconds:
                self._end(finished)

    def _end(self, finished: str) -> None:
        faulthandler.dump_traceback(all_threads=True)
        print(
            f"error: nothing was finished for {self._seconds} s "
            f"(--hosts.stuck-after) after {finished}: this host hangs, or waits for "
            "one that does. Where its threads stood is printed above; see the logs of "
            "the others too. Start all again with --resume; nothing up to the last "
            "checkpoint is lost.",
            file=sys.stderr,
            flush=True,
        )
        os._exit(1)

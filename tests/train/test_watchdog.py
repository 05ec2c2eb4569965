"""Processes of several that make no progress end, and say where they stood."""

import subprocess
import sys
import time

import pytest

from tests.train.runs import ROOT
from train.multihost import watchdog
from train.multihost.watchdog import Watchdog

STUCK = """
import ctypes, time
from train.multihost import watchdog
watchdog.several, watchdog.GRACE = lambda: True, 1
with watchdog.Watchdog(1) as watch:
    watch.pat("step 3")
    {wait}
"""


@pytest.fixture
def ended(monkeypatch):
    """What would have been said last, instead of an end."""
    said: list[str] = []

    def end(self: Watchdog, finished: str) -> None:
        said.append(finished)
        self._done.set()

    monkeypatch.setattr(Watchdog, "_end", end)
    monkeypatch.setattr(watchdog, "several", lambda: True)
    return said


def test_progress_keeps_a_process_alive_and_its_absence_ends_it(ended):
    with Watchdog(2) as watch:
        for step in range(12):
            watch.pat(f"step {step}")
            time.sleep(0.2)
        assert not ended
        assert watch._done.wait(30)
    assert ended == ["step 11"]


def test_nothing_ends_after_it_or_alone(ended, monkeypatch):
    with Watchdog(1):
        pass
    monkeypatch.setattr(watchdog, "several", lambda: False)
    with Watchdog(1) as watch:
        watch.pat("step 1")
        time.sleep(1.4)
    assert not ended


@pytest.mark.parametrize(
    ("wait", "said"),
    [
        ("time.sleep(60)", "error: nothing was finished for 1 s (--hosts.stuck-after)"),
        ("ctypes.PyDLL(None).sleep(60)", "Timeout (0:00:02)!"),  # no thread can run
    ],
)
def test_a_stuck_process_ends_and_shows_where(wait, said):
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", STUCK.format(wait=wait)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1 and time.monotonic() - began < 50
    assert said in done.stderr and 'File "<string>", line 7' in done.stderr
    assert ("after step 3: this host hangs" in done.stderr) == ("error" in said)

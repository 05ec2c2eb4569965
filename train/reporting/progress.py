"""Per-step metrics averaged into log rows, a progress bar, profiles and signals."""

import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from tqdm import tqdm

from train.checkpointing.storage import AnyPath, Mirror, is_remote
from train.multihost.hosts import (
    is_coordinator,
    made_progress,
    mean_over_hosts,
    several,
)
from train.reporting.metrics_writer import MetricWriter

logger = logging.getLogger("train")


class NonFiniteError(ArithmeticError):
    """The loss or a gradient is nan or inf; the message names the step and the leaf."""


class IntervalLog:
    """Collects device metrics without waiting for them; `flush` reads them.

    A row of metrics.jsonl is the mean over the steps since the last row, with the rate
    in steps/s and tokens/s (non-padding tokens of inputs and labels) and, where devices
    report it, the peak memory of the fullest one [GiB].
    """

    def __init__(
        self, params: Any, first: int, steps: int, writer: MetricWriter
    ) -> None:
        paths = jax.tree_util.tree_flatten_with_path(params)[0]
        self._leaves = [
            jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths
        ]
        self._writer = writer
        self._pending: list[tuple[int, dict[str, jax.Array]]] = []
        self._tokens = 0.0
        self._bar = tqdm(
            total=steps,
            initial=first,
            unit="step",
            dynamic_ncols=True,
            disable=not is_coordinator(),
            mininterval=0.5 if sys.stderr.isatty() else 30.0,
        )
        self._start = time.perf_counter()

    def __enter__(self) -> "IntervalLog":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def add(self, step: int, tokens: float, metrics: dict[str, Any]) -> None:
        """Adds a step that was dispatched.

        Args:
            step: its number.
            tokens: of the global batch, estimated from this process's rows.
            metrics: scalars on the devices.
        """
        self._pending.append((step, metrics))
        self._tokens += tokens
        self._bar.update()

    def restart_clock(self) -> None:
        """Excludes the time since the last flush from the rates."""
        self._start = time.perf_counter()

    def leave_out(self, seconds: float) -> None:
        """Excludes some seconds since the last flush from the rates."""
        self._start += seconds

    def flush(self) -> None:
        """Waits for all added steps, checks them and writes their row.

        Raises:
            NonFiniteError: names the first bad step, its losses and the first parameter
                whose gradient, or else whose new value, was not finite.
        """
        if not self._pending:
            return
        for _, metrics in self._pending:
            jax.block_until_ready(metrics)
            made_progress()
        rows = jax.device_get([metrics for _, metrics in self._pending])
        seconds = time.perf_counter() - self._start
        for (step, _), row in zip(self._pending, rows, strict=True):
            self._check(step, row)
        values = {
            name: float(np.mean([row[name] for row in rows]))
            for name in rows[0]
            if name not in ("bad_leaf", "learning_rate")
        }
        values["learning_rate"] = float(rows[-1]["learning_rate"])
        values["steps_per_s"] = len(rows) / seconds
        values["tokens_per_s"] = mean_over_hosts(self._tokens) / seconds
        if (peak := peak_memory()) is not None:
            values["peak_memory_gib"] = peak / 2**30
        self._writer.write(self._pending[-1][0], "train", values)
        self._bar.set_postfix_str(
            f"loss {values['loss']:.4f}, {values['tokens_per_s']:,.0f} tokens/s",
            refresh=sys.stderr.isatty(),  # a log file gets one line per 30 s
        )
        self._pending, self._tokens = [], 0.0
        self.restart_clock()

    def _check(self, step: int, row: dict[str, Any]) -> None:
        bad = int(row["bad_leaf"])
        if np.isfinite([row["loss"], row["grad_norm"]]).all() and bad < 0:
            return
        losses = ", ".join(
            f"{name} {float(value):g}"
            for name, value in row.items()
            if name not in ("bad_leaf", "learning_rate")
        )
        where = "the loss or the gradient's norm alone"
        if bad >= 0:
            where = f"the gradient or update of {self._leaves[bad]}"
        raise NonFiniteError(
            f"step {step} is not finite ({losses}); first at fault: {where}. Nothing "
            "after the last checkpoint is kept. Try a lower --optimizer.learning-rate, "
            "more --optimizer.warmup-steps or a smaller --optimizer.clip-norm."
        )


def peak_memory() -> int | None:
    """Peak bytes in use on the fullest of this process's devices; None on CPUs."""
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    return max((s.get("peak_bytes_in_use", 0) for s in stats), default=0) or None


PROFILED_STEPS = 3
PROFILE_FOLDER = "profile"


class StepProfile:
    """Writes a profile of a few steps, for xprof (TensorBoard) or Perfetto.

    Args:
        first: the first step; None profiles none.
        run_dir: host 0 writes its profile to `profile/` in it.
    """

    def __init__(self, first: int | None, run_dir: AnyPath) -> None:
        self._first = first if is_coordinator() else None
        self._folder = run_dir / PROFILE_FOLDER
        self._mirror: Mirror | None = None
        self._on = False

    def __enter__(self) -> "StepProfile":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def before(self, step: int, state: Any) -> None:
        """To be called with the state before a step is dispatched."""
        if self._first is None or step - self._first not in (0, PROFILED_STEPS):
            return
        jax.block_until_ready(state)  # the steps before have run
        self._stop()
        if step == self._first:
            folder = self._folder
            if is_remote(folder):
                self._mirror = Mirror(folder)
                folder = self._mirror.folder
            jax.profiler.start_trace(str(folder))
            self._on = True

    def _stop(self) -> None:
        if self._on:
            jax.profiler.stop_trace()
            self._on = False
            if self._mirror is not None:
                self._mirror.close()
            logger.info(
                "wrote a profile of %d steps to %s", PROFILED_STEPS, self._folder
            )


class CompileTimes:
    """Logs how long each batch shape took to compile; excludes it from the rates."""

    def __init__(self, log: IntervalLog) -> None:
        self._log = log
        self._seen: set[tuple[tuple[int, ...], ...]] = set()

    @contextlib.contextmanager
    def first_of(self, batch: dict[str, jax.Array]) -> Iterator[None]:
        """Times the body where these shapes are new."""
        shapes = tuple(array.shape for array in batch.values())
        if shapes in self._seen:
            yield
            return
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        self._seen.add(shapes)
        self._log.leave_out(seconds)
        rows, length = batch["input_ids"].shape
        logger.info(
            "compiled the step for %d x %d + %d tokens in %.1f s",
            rows,
            length,
            batch["labels"].shape[1],
            seconds,
        )


class StopSignal:
    """Turns SIGINT and SIGTERM on any host into a stop of all hosts after a step.

    The same signal a second time ends the process at once.
    """

    def __init__(self) -> None:
        self.signal: int = signal.SIGTERM
        self._requested = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopSignal":
        # With several hosts JAX handles SIGTERM itself, to agree on a step.
        numbers = (signal.SIGINT,) if several() else (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            self._previous[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def wanted(self, step: int) -> bool:
        """Whether to stop after this step: the same answer on every host."""
        if several():
            return multihost_utils.reached_preemption_sync_point(step)
        return self._requested

    def _request(self, number: int, _: object) -> None:
        self.signal, self._requested = number, True
        signal.signal(number, signal.SIG_DFL)
        if several():
            os.kill(os.getpid(), signal.SIGTERM)

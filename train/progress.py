"""Per-step metrics gathered into log rows, a progress bar, and the nan check."""

import signal
import sys
import time
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from train.writer import MetricWriter


class NonFiniteError(ArithmeticError):
    """The loss or a gradient became nan or inf; the message says when and where."""


class IntervalLog:
    """Collects device metrics without waiting for them; `flush` looks at them.

    A row of metrics.jsonl is the mean over the steps since the last one, with the rate
    in steps/s and tokens/s (tokens that are not padding, questions and answers alike).
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
        self._tokens = 0
        self._bar = tqdm(
            total=steps,
            initial=first,
            unit="step",
            dynamic_ncols=True,
            mininterval=0.5 if sys.stderr.isatty() else 30.0,
        )
        self._start = time.perf_counter()

    def __enter__(self) -> "IntervalLog":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def add(self, step: int, tokens: int, metrics: dict[str, Any]) -> None:
        """Notes a step that was dispatched, on a batch of so many tokens."""
        self._pending.append((step, metrics))
        self._tokens += tokens
        self._bar.update()

    def restart_clock(self) -> None:
        """Leaves what was done since the last flush out of the rates."""
        self._start = time.perf_counter()

    def flush(self) -> None:
        """Waits for all noted steps, checks them and writes their row.

        Raises:
            NonFiniteError: names the first bad step, its losses and the first parameter
                whose gradient, or else whose new value, was not finite.
        """
        if not self._pending:
            return
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
        values["tokens_per_s"] = self._tokens / seconds
        self._writer.write(self._pending[-1][0], "train", values)
        self._bar.set_postfix_str(
            f"loss {values['loss']:.4f}, {values['tokens_per_s']:,.0f} tokens/s",
            refresh=sys.stderr.isatty(),  # a log file gets a line every 30 s
        )
        self._pending, self._tokens = [], 0
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


class StopSignal:
    """Turns SIGINT and SIGTERM into a wish to stop, read after each step."""

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopSignal":
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _request(self, *_: object) -> None:
        self.requested = True

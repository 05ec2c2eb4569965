"""The same run with and without its number loss, side by side."""

import dataclasses
import logging

from train.checkpointing.storage import AnyPath
from train.config import NUMBER_TERMS, ConfigError, LossConfig, TrainConfig
from train.loop import run
from train.multihost.hosts import is_coordinator
from train.reporting.report import report

logger = logging.getLogger("train")


def loss_name(loss: LossConfig) -> str:
    """Names a run by its terms: `ce`, `ce+0.3was`."""
    parts = [] if loss.ce is None else ["ce" if loss.ce == 1 else f"{loss.ce:g}ce"]
    for term in NUMBER_TERMS:
        value = getattr(loss, term)
        if value:
            parts.append(f"{value:g}{term}")
    return "+".join(parts)


def folder_name(loss: str) -> str:
    """A loss's name as a folder: `ce-0.3was`."""
    return loss.replace("+", "-")


def variants(config: TrainConfig) -> dict[str, TrainConfig]:
    """The runs of a comparison by name, cross entropy alone first.

    There the number losses keep a coefficient of 0: they are logged, and add nothing.

    Raises:
        ConfigError: the config's own loss is cross entropy alone.
    """
    present = [t for t in NUMBER_TERMS if getattr(config.loss, t) is not None]
    # But for RAFT, whose presence takes the score out of cross entropy.
    switched_off = dict.fromkeys(present, 0.0) | {"raft": None}
    cross_entropy = dataclasses.replace(config.loss, ce=1.0, **switched_off)
    if config.loss == cross_entropy:
        raise ConfigError(
            "--cross-entropy-baseline compares with cross entropy, which is this run's "
            "own loss: set a number loss, e.g. --loss.was 0.3."
        )
    return {
        loss_name(loss): dataclasses.replace(config, loss=loss)
        for loss in (cross_entropy, config.loss)
    }


def run_comparison(config: TrainConfig, run_dir: AnyPath) -> str:
    """Trains every variant in a folder of its own below `run_dir`, and compares them.

    Returns:
        On the first host, the table, which is also written to comparison.md;
        comparison.png stands beside it.
    """
    run_dirs = {}
    for name, variant in variants(config).items():
        logger.info("training with %s", name)
        run_dirs[name] = run_dir / folder_name(name)
        run(variant, run_dirs[name])
    return report(run_dirs, run_dir) if is_coordinator() else ""

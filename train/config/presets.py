"""Presets: one module of the package `configs` each, found by name."""

import importlib
import pkgutil

from train.config.ranges import ConfigError
from train.config.run import TrainConfig

PACKAGE = "configs"
"""The only thing that this package knows of the presets."""


def preset_names() -> list[str]:
    """All preset names, sorted; `gsm8k_t5_small.py` is `gsm8k-t5-small`."""
    package = importlib.import_module(PACKAGE)
    return sorted(
        module.name.replace("_", "-")
        for module in pkgutil.iter_modules(package.__path__)
    )


def load_preset(name: str) -> tuple[TrainConfig, str]:
    """Loads a preset.

    Args:
        name: as `preset_names` lists it.

    Returns:
        Its config, and the docstring of its module, whose first line sums it up.

    Raises:
        ConfigError: there is no such preset; the message lists those there are.
    """
    names = preset_names()
    if name not in names:
        raise ConfigError(
            f"no preset is called {name!r}. There are: {', '.join(names)}."
        )
    module = importlib.import_module(f"{PACKAGE}.{name.replace('-', '_')}")
    return module.CONFIG, (module.__doc__ or "").strip()

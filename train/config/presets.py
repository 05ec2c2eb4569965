"""Presets: one module of `configs` each, found by name."""

import importlib
import pkgutil

import configs
from train.config.mesh import ConfigError
from train.config.run import TrainConfig


def preset_names() -> list[str]:
    """All preset names, sorted; `gsm8k_t5_small.py` is `gsm8k-t5-small`."""
    return sorted(
        module.name.replace("_", "-")
        for module in pkgutil.iter_modules(configs.__path__)
    )


def load_preset(name: str) -> tuple[TrainConfig, str]:
    """A preset's config and its module's docstring, whose first line sums it up.

    Raises:
        ConfigError: no such preset; the message lists those there are.
    """
    if name not in preset_names():
        raise ConfigError(
            f"no preset is called {name!r}. There are: {', '.join(preset_names())}."
        )
    module = importlib.import_module(f"configs.{name.replace('-', '_')}")
    return module.CONFIG, (module.__doc__ or "").strip()

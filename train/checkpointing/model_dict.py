"""A model's config as a run's JSON files hold it, and back."""

import dataclasses
from typing import Any

from ntl_jax.models import FAMILIES, AnyConfig, T5Config, config_class
from train.config import ConfigError


def model_dict(model: AnyConfig) -> dict[str, Any]:
    """A model's config as JSON holds it, with its class."""
    return {"class": type(model).__name__, **dataclasses.asdict(model)}


_LATER = {"attention"}
"""Fields that runs of earlier versions lack; they keep their defaults."""


def model_of_dict(fields: dict[str, Any]) -> AnyConfig:
    """The inverse of `model_dict`; a dict without a class is a T5's.

    Raises:
        ConfigError: no such class, or other fields than it has.
    """
    fields = dict(fields)
    name = fields.pop("class", T5Config.__name__)
    kind = config_class(name)
    if kind is None:
        known = ", ".join(family.config.__name__ for family in FAMILIES)
        raise ConfigError(
            f"a run of a {name}, which is none of {known}: it was trained by another "
            "version."
        )
    names = {field.name for field in dataclasses.fields(kind)}
    if fields.keys() | _LATER != names:
        raise ConfigError(
            f"a run of a {name} with other fields, {sorted(fields.keys() ^ names)}: it "
            "was trained by another version."
        )
    return kind(**fields)


def run_as(model: AnyConfig, asked: AnyConfig) -> AnyConfig:
    """A model whose layers are run as another config asks, the numbers the same."""
    return dataclasses.replace(
        model,
        attention=asked.attention,
        remat=asked.remat,
        unroll_layers=asked.unroll_layers,
    )

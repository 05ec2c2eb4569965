"""The registry of models: one record per family.

A new decoder-only family is its config (below `DecoderOnlyConfig`), its module (below
`DecoderOnly`), its table in `ntl_jax.hf`, and a record here.
"""

import dataclasses
from collections.abc import Callable

from flax import nnx

from ntl_jax.models.baselines.numformer import Numformer, NumformerConfig
from ntl_jax.models.baselines.regression_transformer import (
    RegressionTransformer,
    RegressionTransformerConfig,
)
from ntl_jax.models.baselines.t5_regression import T5Regression, T5RegressionConfig
from ntl_jax.models.gpt2.config import GPT2Config
from ntl_jax.models.gpt2.model import GPT2
from ntl_jax.models.granite.config import GraniteConfig
from ntl_jax.models.granite.model import Granite
from ntl_jax.models.t5.config import T5Config
from ntl_jax.models.t5.model import T5

Config = GPT2Config | GraniteConfig | T5Config
AnyConfig = Config | NumformerConfig
"""Of a language model, or of the encoder that only fills in."""


@dataclasses.dataclass(frozen=True)
class Family:
    """One kind of model.

    Attributes:
        config: its class of configs, which states the facts about it.
        module: the model itself, made of a config and `nnx.Rngs`.
        table: the module of `ntl_jax.hf` that reads and writes its checkpoints; None
            where there is no such format.
        in_transformers: whether transformers has this model too.
    """

    config: type[AnyConfig]
    module: Callable[..., nnx.Module]
    table: str | None
    in_transformers: bool = True


FAMILIES = (
    Family(GPT2Config, GPT2, table="gpt2"),
    Family(GraniteConfig, Granite, table="granite"),
    Family(NumformerConfig, Numformer, table=None, in_transformers=False),
    Family(
        RegressionTransformerConfig,
        RegressionTransformer,
        table="regression_transformer",
        in_transformers=False,
    ),
    Family(T5Config, T5, table="t5"),
    Family(T5RegressionConfig, T5Regression, table="t5_regression"),
)
_BY_CONFIG = {family.config: family for family in FAMILIES}


def family_of(config: AnyConfig) -> Family:
    """The record of a config's family.

    Raises:
        TypeError: `config` is none of these models' configs.
    """
    if type(config) not in _BY_CONFIG:
        names = ", ".join(kind.__name__ for kind in _BY_CONFIG)
        raise TypeError(f"config is a {type(config).__name__}; give one of {names}")
    return _BY_CONFIG[type(config)]


def config_class(name: str) -> type[AnyConfig] | None:
    """The class of configs with a name, as files hold it; None: there is none."""
    return next((kind for kind in _BY_CONFIG if kind.__name__ == name), None)

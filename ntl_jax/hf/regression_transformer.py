"""Folders of a Regression Transformer: a T5's weights under a model type of their own.

transformers has no such model. It refuses the folder, instead of reading a T5 whose
numbers have lost their encodings.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ntl_jax.hf import t5
from ntl_jax.hf.t5 import table as table
from ntl_jax.hf.t5 import written_copies as written_copies
from ntl_jax.models.baselines.regression_transformer import RegressionTransformerConfig

MODEL_TYPE = "t5-regression-transformer"
NAMES = (MODEL_TYPE,)
_OURS = ("first_number_id", "number_formula", "number_scale")


def read_config(
    raw: dict[str, Any],
    names: list[str],
    read: Callable[[str], np.ndarray],
    **changes: Any,
) -> RegressionTransformerConfig:
    """A RegressionTransformerConfig from the config.json that `write_config` gives."""
    ours = {name: changes.pop(name, raw.get(name)) for name in _OURS}
    missing = [name for name, value in ours.items() if value is None]
    if missing:
        raise ValueError(f"config.json lacks {', '.join(missing)}")
    body = t5.read_config(raw, names, read, **changes)
    return RegressionTransformerConfig.from_t5(body, **ours)


def write_config(config: RegressionTransformerConfig) -> dict[str, Any]:
    """A config.json that only this package reads."""
    return t5.write_config(config) | {
        "architectures": ["RegressionTransformer"],
        "model_type": MODEL_TYPE,
        **{name: getattr(config, name) for name in _OURS},
    }

"""What a model answers with: text, one number, or numbers filled into a text.

Everything else in `train` asks the head, by `head_of(model)`, and never which it is.
"""

from ntl_jax.models import ModelConfig
from train.heads.base import Batch as Batch
from train.heads.base import EvalOutputs as EvalOutputs
from train.heads.base import Head as Head
from train.heads.lm import LanguageHead
from train.heads.numformer import NumformerHead
from train.heads.regression import RegressionHead

HEADS: dict[str, Head] = {
    "lm": LanguageHead(),
    "regression": RegressionHead(),
    "numformer": NumformerHead(),
}
"""By the flag `--head`."""


def head_of(model: ModelConfig) -> Head:
    """The head of a run's model."""
    return HEADS[model.head]

"""Language models: NNX modules whose parameters are plain trees of arrays.

Parameters are a nested dict of arrays, created by `init_params` or read from a
checkpoint by `ntl_jax.hf`. `bind` returns the model with these parameters, inside `jit`
or outside.
"""

from ntl_jax.models.baselines.numformer import Numformer as Numformer
from ntl_jax.models.baselines.numformer import NumformerConfig as NumformerConfig
from ntl_jax.models.baselines.numformer import TokensAndNumbers as TokensAndNumbers
from ntl_jax.models.baselines.regression_transformer import (
    RegressionTransformer as RegressionTransformer,
)
from ntl_jax.models.baselines.regression_transformer import (
    RegressionTransformerConfig as RegressionTransformerConfig,
)
from ntl_jax.models.baselines.t5_regression import T5Regression as T5Regression
from ntl_jax.models.baselines.t5_regression import (
    T5RegressionConfig as T5RegressionConfig,
)
from ntl_jax.models.baselines.t5_regression import (
    regression_from_t5 as regression_from_t5,
)
from ntl_jax.models.binding import Params as Params
from ntl_jax.models.binding import bind as bind
from ntl_jax.models.binding import count_parameters as count_parameters
from ntl_jax.models.binding import init_params as init_params
from ntl_jax.models.config import DecoderOnlyConfig as DecoderOnlyConfig
from ntl_jax.models.config import ModelConfig as ModelConfig
from ntl_jax.models.families import FAMILIES as FAMILIES
from ntl_jax.models.families import AnyConfig as AnyConfig
from ntl_jax.models.families import Config as Config
from ntl_jax.models.families import config_class as config_class
from ntl_jax.models.families import family_of as family_of
from ntl_jax.models.gpt2.config import GPT2Config as GPT2Config
from ntl_jax.models.gpt2.model import GPT2 as GPT2
from ntl_jax.models.granite.config import GraniteConfig as GraniteConfig
from ntl_jax.models.granite.model import Granite as Granite
from ntl_jax.models.t5.config import T5Config as T5Config
from ntl_jax.models.t5.model import T5 as T5
from ntl_jax.models.t5.shift import shift_right as shift_right

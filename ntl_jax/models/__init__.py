"""Language models: NNX modules whose parameters are plain trees of arrays.

Parameters are a nested dict of arrays, created by `init_params` or read from a
checkpoint by `ntl_jax.hf`. `bind` returns the model with these parameters, inside `jit`
or outside.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import overload

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Int, Key, PyTree

from ntl_jax.models.baselines.numformer import Numformer as Numformer
from ntl_jax.models.baselines.numformer import NumformerConfig as NumformerConfig
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
from ntl_jax.models.baselines.t5_xval import TokensAndNumbers as TokensAndNumbers
from ntl_jax.models.baselines.t5_xval import Xval as Xval
from ntl_jax.models.baselines.t5_xval import XvalConfig as XvalConfig
from ntl_jax.models.baselines.t5_xval import shift_values as shift_values
from ntl_jax.models.gpt2.config import GPT2Config as GPT2Config
from ntl_jax.models.gpt2.model import GPT2 as GPT2
from ntl_jax.models.granite.config import GraniteConfig as GraniteConfig
from ntl_jax.models.granite.model import Granite as Granite
from ntl_jax.models.t5.config import T5Config as T5Config
from ntl_jax.models.t5.model import T5 as T5

Config = GPT2Config | GraniteConfig | T5Config
AnyConfig = Config | NumformerConfig
"""Of a language model, or of the encoder that only fills in."""
_MODULES: dict[type, Callable[..., nnx.Module]] = {
    GPT2Config: GPT2,
    GraniteConfig: Granite,
    NumformerConfig: Numformer,
    RegressionTransformerConfig: RegressionTransformer,
    T5Config: T5,
    T5RegressionConfig: T5Regression,
    XvalConfig: Xval,
}
Params = dict[str, "Params | Array"]


def init_params(config: AnyConfig, key: Key[Array, ""]) -> Params:
    """Fresh parameters, drawn as Hugging Face draws them for training from scratch.

    Args:
        config: the model's config; its type picks the model.
        key: a threefry key, `jax.random.key(seed)`.

    Returns:
        A nested dict of float32 arrays. Under `jax.jit(init_params, static_argnums=0,
        out_shardings=...)` each device makes its own shards only; `jax.eval_shape`
        gives the shapes alone.

    Raises:
        TypeError: `config` is none of these models' configs.

    >>> config = T5Config(vocab_size=16, d_model=8, d_kv=4, d_ff=16, num_heads=2)
    >>> params = init_params(config, jax.random.key(0))
    >>> params["encoder"]["layers"]["attention"]["q"]["kernel"].shape
    (6, 8, 8)
    """
    model = _module_of(config)(config, nnx.Rngs(params=key))
    return nnx.to_pure_dict(nnx.state(model, nnx.Param))


def _module_of(config: AnyConfig) -> Callable[..., nnx.Module]:
    if type(config) not in _MODULES:
        names = ", ".join(kind.__name__ for kind in _MODULES)
        raise TypeError(f"config is a {type(config).__name__}; give one of {names}")
    return _MODULES[type(config)]


@lru_cache(maxsize=64)
def _skeleton(config: AnyConfig) -> tuple[nnx.GraphDef, nnx.State]:
    build = nnx.eval_shape(lambda: _module_of(config)(config, nnx.Rngs(params=0)))
    return nnx.split(build)


@overload
def bind(config: GPT2Config, params: Params) -> GPT2: ...
@overload
def bind(config: GraniteConfig, params: Params) -> Granite: ...
@overload
def bind(config: NumformerConfig, params: Params) -> Numformer: ...
@overload
def bind(config: XvalConfig, params: Params) -> Xval: ...
@overload
def bind(config: T5RegressionConfig, params: Params) -> T5Regression: ...
@overload
def bind(
    config: RegressionTransformerConfig, params: Params
) -> RegressionTransformer: ...
@overload
def bind(config: T5Config, params: Params) -> T5: ...
def bind(config: AnyConfig, params: Params) -> nnx.Module:
    """The model that `config` describes, around `params`; cheap, also inside `jit`.

    Args:
        config: the config that the parameters were made with.
        params: a tree laid out as `init_params` gives it.

    Returns:
        An NNX module whose leaves are `params`' arrays, not copies; NumPy arrays go to
        the default device.

    Raises:
        TypeError: `config` is none of these models' configs.
        ValueError: the tree has other leaves, or other shapes, than the config.

    >>> config = GPT2Config(vocab_size=16, n_embd=8, n_layer=1, n_head=2)
    >>> model = bind(config, init_params(config, jax.random.key(0)))
    >>> model(jnp.array([[3, 1, 4]])).shape
    (1, 3, 16)
    """
    _module_of(config)
    graph, shapes = _skeleton(config)
    want, have = _leaves(nnx.to_pure_dict(shapes)), _leaves(params)
    wrong = [f"missing {name}" for name in want if name not in have]
    wrong += [f"unexpected {name}" for name in have if name not in want]
    wrong += [
        f"{name} is {have[name].shape}, not {want[name].shape}"
        for name in want
        if name in have and have[name].shape != want[name].shape
    ]
    if wrong:
        raise ValueError(
            "parameters do not fit the config they are bound to: " + "; ".join(wrong)
        )
    state = jax.tree.map(lambda leaf: leaf, shapes)
    nnx.replace_by_pure_dict(state, jax.tree.map(jnp.asarray, params))
    return nnx.merge(graph, state)


def _leaves(tree: PyTree) -> dict[str, Array]:
    pairs = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(k, simple=True, separator="/"): v for k, v in pairs}


def count_parameters(tree: PyTree, config: AnyConfig | None = None) -> int:
    """How many numbers a tree of arrays, or of shapes, holds.

    Args:
        tree: parameters, or what `jax.eval_shape` gives for them.
        config: the model's; given, rows that only pad the vocabulary are not counted.

    Returns:
        The number of parameters.

    >>> config = T5Config.small()
    >>> make = lambda key: init_params(config, key)
    >>> count_parameters(jax.eval_shape(make, jax.random.key(0)))
    60506624
    """
    total = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(tree))
    return total - getattr(config, "padding_parameters", 0)


def shift_right(
    labels: Int[Array, "B T"],
    *,
    start_id: int,
    pad_id: int,
    segment_ids: Int[Array, "B T"] | None = None,
) -> Int[Array, "B T"]:
    """Decoder inputs for labels: a start token, then the labels but the last.

    Args:
        labels: target ids, -100 where there is none.
        start_id: `config.decoder_start_token_id`.
        pad_id: `config.pad_token_id`, which takes the place of -100.
        segment_ids: equal, side by side, where labels belong together, in rows that
            hold several texts: each begins with a start token.

    Returns:
        Ids of the labels' shape and dtype.

    >>> shift_right(jnp.array([[5, 6, 1, -100, -100]]), start_id=0, pad_id=0)
    Array([[0, 5, 6, 1, 0]], dtype=int32)
    >>> labels, segments = jnp.array([[5, 1, 6, 1]]), jnp.array([[1, 1, 2, 2]])
    >>> shift_right(labels, start_id=0, pad_id=0, segment_ids=segments)
    Array([[0, 5, 0, 6]], dtype=int32)

    Source: transformers' T5PreTrainedModel._shift_right; segments are this package's.
    """
    start = jnp.full_like(labels[:, :1], start_id)
    shifted = jnp.concatenate([start, labels[:, :-1]], axis=1)
    if segment_ids is not None:
        begins = segment_ids[:, 1:] != segment_ids[:, :-1]
        begins = jnp.pad(begins, ((0, 0), (1, 0)))  # [B, T]
        shifted = jnp.where(begins, jnp.asarray(start_id, labels.dtype), shifted)
    return jnp.where(shifted == -100, jnp.asarray(pad_id, labels.dtype), shifted)

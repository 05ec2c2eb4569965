"""Parameters as plain trees, and modules around them."""

from functools import lru_cache
from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Key, PyTree

from ntl_jax.models.baselines.numformer import Numformer, NumformerConfig
from ntl_jax.models.baselines.t5_regression import T5Regression, T5RegressionConfig
from ntl_jax.models.config import DecoderOnlyConfig
from ntl_jax.models.decoder_only import DecoderOnly
from ntl_jax.models.families import AnyConfig, family_of
from ntl_jax.models.layers import Affine, Linear
from ntl_jax.models.t5.config import T5Config
from ntl_jax.models.t5.model import T5

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
    model = family_of(config).module(config, nnx.Rngs(params=key))
    return nnx.to_pure_dict(nnx.state(model, nnx.Param))


@lru_cache(maxsize=64)
def _skeleton(config: AnyConfig, gather: bool) -> tuple[nnx.GraphDef, nnx.State]:
    """The module without its arrays, and their shapes."""
    build = family_of(config).module
    module = nnx.eval_shape(lambda: build(config, nnx.Rngs(params=0)))
    if not gather:
        for _, part in nnx.iter_modules(module):
            if isinstance(part, Linear | Affine):
                part.gather = None
    return nnx.split(module)


@overload
def bind(
    config: DecoderOnlyConfig, params: Params, *, gather: bool = True
) -> DecoderOnly: ...
@overload
def bind(
    config: NumformerConfig, params: Params, *, gather: bool = True
) -> Numformer: ...
@overload
def bind(
    config: T5RegressionConfig, params: Params, *, gather: bool = True
) -> T5Regression: ...
@overload
def bind(config: T5Config, params: Params, *, gather: bool = True) -> T5: ...
def bind(config: Any, params: Params, *, gather: bool = True) -> Any:
    """The model that `config` describes, around `params`; cheap, also inside `jit`.

    Args:
        config: the config that the parameters were made with.
        params: a tree like that of `init_params`.
        gather: False for a model that works with its kernels as they are sharded, and
            gathers none.

    Returns:
        An NNX module whose leaves are `params`' arrays, not copies; NumPy arrays go to
        the default device.

    Raises:
        TypeError: `config` is none of these models' configs.
        ValueError: the tree has other leaves, or other shapes, than the config.

    >>> from ntl_jax.models import GPT2Config
    >>> config = GPT2Config(vocab_size=16, n_embd=8, n_layer=1, n_head=2)
    >>> model = bind(config, init_params(config, jax.random.key(0)))
    >>> model(jnp.array([[3, 1, 4]])).shape
    (1, 3, 16)
    """
    family_of(config)
    graph, shapes = _skeleton(config, gather)
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

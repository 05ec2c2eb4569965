"""Heads to test the fused losses on, and the dense path to compare them with."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxprs_in_params

from ntl_jax import NumberVocab
from ntl_jax.losses import NumberStats, stats_from_logits

# Ten digits at odd places among 31 tokens, one of them at id 0; 37 columns, a prime.
MINUS, POINT = 2, 5
IDS = (0, 3, 4, 8, 11, 12, 17, 20, 29, 30)
VOCAB = NumberVocab.from_mapping(
    {str(d): i for d, i in enumerate(IDS)} | {"a": 1, "-": MINUS, ".": POINT},
    vocab_size=31,
)
COLUMNS = 37
WIDTH = 5


@dataclasses.dataclass(frozen=True)
class Case:
    """The shape of the tokens and the options of a head."""

    shape: tuple[int, ...] = (2, 7)
    tile_tokens: int = 6
    backward: str = "tokens"
    bias: bool = True
    logit_scale: float = 0.7
    soft_cap: float | None = 3.0
    logits_dtype: str | None = None

    def __str__(self) -> str:
        parts = [f"{f.name}={getattr(self, f.name)}" for f in dataclasses.fields(self)]
        return "-".join(parts).replace(" ", "")

    @property
    def options(self) -> dict[str, Any]:
        return {"logit_scale": self.logit_scale, "soft_cap": self.soft_cap}

    @property
    def tiling(self) -> dict[str, Any]:
        options = {"tile_tokens": self.tile_tokens, "backward": self.backward}
        return options | {"logits_dtype": self.logits_dtype}

    def head(self, seed: int = 0, dtype=jnp.float32):
        """(hidden, kernel, bias) of this case."""
        rng = np.random.default_rng(seed)
        hidden = rng.normal(size=(*self.shape, WIDTH))
        kernel = rng.normal(size=(WIDTH, COLUMNS)) * 1.5
        bias = rng.normal(size=COLUMNS) if self.bias else None
        return jax.tree.map(lambda x: jnp.asarray(x, dtype), (hidden, kernel, bias))

    def labels(self, seed: int = 0) -> jax.Array:
        """About half digits, a quarter ignored; the first row begins with -12.3."""
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, VOCAB.vocab_size, size=self.shape)
        numbers = rng.choice(IDS, size=self.shape)
        labels = np.where(rng.random(self.shape) < 0.5, numbers, labels)
        labels = np.where(rng.random(self.shape) < 0.25, -100, labels)
        if labels.ndim > 0 and labels.shape[-1] >= 5:
            labels[(0,) * (labels.ndim - 1)][:5] = MINUS, IDS[1], IDS[2], POINT, IDS[3]
        return jnp.asarray(labels)

    def weights(self, seed: int = 0) -> jax.Array:
        rng = np.random.default_rng(seed)
        weights = rng.uniform(0.5, 2.0, size=self.shape)
        return jnp.asarray(np.where(rng.random(self.shape) < 0.2, 0.0, weights), "f4")


def dense_logits(hidden, kernel, bias, *, logit_scale=1.0, soft_cap=None):
    """The logits, all at once, as a model makes them."""
    z = jnp.matmul(
        hidden,
        kernel,
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
    if bias is not None:
        z += bias.astype(jnp.float32).reshape((1,) * (z.ndim - 1) + bias.shape)
    z *= logit_scale
    return z if soft_cap is None else soft_cap * jnp.tanh(z / soft_cap)


def dense_stats(head, labels, *, vocab=VOCAB, ignore_index=-100, **options):
    """NumberStats over the dense logits."""
    logits = dense_logits(*head, **options)
    return stats_from_logits(logits, labels, vocab, ignore_index=ignore_index)


def random_cotangent(stats: NumberStats, seed: int = 1) -> NumberStats:
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), "f4"), stats)


def assert_close(actual, expected, tolerance: float = 1e-5) -> None:
    """Every array within a tolerance of the largest entry of the expected one."""

    def check(path, a, b):
        where = jax.tree_util.keystr(path)
        assert (a.shape, a.dtype) == (b.shape, b.dtype), where
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        room = tolerance * np.max(np.abs(b), initial=1e-30)
        gap = np.max(np.abs(a - b), initial=0.0)
        assert gap <= room, f"{where}: {gap} apart, more than {room}"

    jax.tree_util.tree_map_with_path(check, actual, expected)


def avals(jaxpr):
    """(name of primitive, its inputs' shapes, its outputs' shapes), loops included."""
    for eqn in jaxpr.eqns:
        shapes = [
            [getattr(v.aval, "shape", ()) for v in side]
            for side in (eqn.invars, eqn.outvars)
        ]
        yield eqn.primitive.name, *shapes
        for inner in jaxprs_in_params(eqn.params):
            yield from avals(inner)


def wide_matmuls(fn, *args, columns: int) -> int:
    """How many matrix products with all columns a function runs for one tile."""
    closed = jax.make_jaxpr(fn)(*args)
    return sum(
        name == "dot_general" and any(columns in shape for shape in (*ins, *outs))
        for name, ins, outs in avals(closed.jaxpr)
    )


def largest_array(fn, *args) -> int:
    """The number of entries of the largest array that a function makes."""
    closed = jax.make_jaxpr(fn)(*args)
    made = (out for _, _, outs in avals(closed.jaxpr) for out in outs)
    return max(int(np.prod(shape)) for shape in made)

"""Which program computes attention: XLA's own, cuDNN's, or the Triton kernels.

"xla" runs everywhere and takes everything; it alone has second derivatives. "triton" is
the kernels of `flash_attention`. "cudnn" is NVIDIA's library, through JAX:
bfloat16, no dropout, heads of a width that 8 divides, up to 128, and it rounds the bias
to bfloat16. "auto" is the first of `AUTO` that takes the operands where these are such
as it was measured to be faster with, else "xla".
"""

from collections.abc import Callable
from types import ModuleType
from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32

from ntl_jax.kernels.attention.reference import _attend
from ntl_jax.kernels.dropout import DropoutSite
from ntl_jax.kernels.platforms import compute_capability, has_triton, traced_platform

Implementation = Literal["auto", "xla", "cudnn", "triton"]

AUTO: tuple[Implementation, ...] = ("triton",)
"""What "auto" tries before "xla", in bfloat16."""

_LONG_ENOUGH = 128  # of rows with a bias; of 64 and less XLA's was faster

_TRITON_FROM = (8, 0)  # compute capability: Ampere's


def check_implementation(name: str) -> None:
    """Raises ValueError for what is no `Implementation`."""
    if name not in get_args(Implementation):
        raise ValueError(
            f"attention is {name!r}; choose one of {list(get_args(Implementation))}"
        )


def choose_implementation(
    implementation: Implementation, q, k, *, scale, bias=None, mask=None, dropout=None
) -> Implementation:
    """The program that these operands go to: "xla", "cudnn" or "triton".

    One query per row, as in decoding with a cache, always goes to XLA: it is bound by
    memory, not by the matrix units.

    Args:
        implementation: the requested implementation.
        q: queries [B, T, N, H].
        k: keys [B, S, K, H].
        scale: as of `attend`, and so are the others.

    Raises:
        ValueError: the requested implementation does not take these operands, or does
            not run on this platform.
    """
    check_implementation(implementation)
    if implementation == "xla" or q.shape[1] == 1:
        return "xla"
    if implementation == "auto" and (
        q.dtype != jnp.bfloat16
        or (bias is not None and max(q.shape[1], k.shape[1]) < _LONG_ENOUGH)
    ):
        return "xla"
    names = AUTO if implementation == "auto" else (implementation,)
    for name in names:
        problem = _unfit(name, q, k, scale, bias, mask, dropout)
        if problem is None:
            return name
        if implementation != "auto":
            raise ValueError(_refusal(name, problem))
    return "xla"


def check_trainable(
    implementation: Implementation,
    *,
    width: int,
    dtype: str,
    dropout: float,
    platform: str | None = None,
) -> None:
    """Raises early what `choose_implementation` would raise at the first trace.

    Args:
        implementation: what a model's config asks for.
        width: of a head, H.
        dtype: of the activations.
        dropout: rate of the probabilities' dropout in training.
        platform: what the program is for: "gpu", "tpu" or "cpu"; None: JAX's default.

    Raises:
        ValueError: it does not run there, or does not take such a model.
    """
    check_implementation(implementation)
    if implementation in ("xla", "auto"):
        return
    problem = _unfit_for_platform(implementation, platform or traced_platform())
    if problem is None:
        heads = jax.ShapeDtypeStruct((1, 2, 1, width), dtype)
        site = DropoutSite(dropout, jax.random.key(0))
        problem = _unfit_operands(implementation, heads, heads, 1.0, None, None, site)
    if problem is not None:
        raise ValueError(_refusal(implementation, problem))


def _refusal(name: Implementation, problem: str) -> str:
    return f"attention={name!r} {problem}; or choose 'xla'"


def _unfit(name, q, k, scale, bias, mask, dropout) -> str | None:
    """Why a program does not run here, or does not take these operands, in words."""
    problem = _unfit_for_platform(name, traced_platform())
    return problem or _unfit_operands(name, q, k, scale, bias, mask, dropout)


def _unfit_for_platform(name, platform: str) -> str | None:
    if platform != "gpu":
        return f"runs on NVIDIA GPUs, and the program is for {platform!r}"
    if name == "cudnn":
        return None
    capability = compute_capability()
    if capability is not None and capability < _TRITON_FROM:
        return (
            f"needs a GPU of compute capability {_version(_TRITON_FROM)} or more, and "
            f"this one has {_version(capability) or 'none'}"
        )
    if not has_triton():
        return f"needs Pallas' Triton backend, which JAX {jax.__version__} lacks"
    return None


def _version(parts: tuple[int, ...]) -> str:
    return ".".join(map(str, parts))


def _unfit_operands(name, q, k, scale, bias, mask, dropout) -> str | None:
    if name == "cudnn":
        return _unfit_for_cudnn(q, k, scale, bias, mask, dropout)
    # Arrays may lie on a mesh of explicit axes that the context does not know.
    for mesh in (jax.sharding.get_abstract_mesh(), *map(_mesh_of, (q, k))):
        if mesh.explicit_axes or (mesh.manual_axes and not mesh.are_all_axes_manual):
            return (
                "takes meshes whose axes are all Auto, or all Manual inside shard_map; "
                f"these are {dict(zip(mesh.axis_names, mesh.axis_types, strict=True))}"
            )
    # Kernels are imported only where they can run: Pallas takes a second to import.
    from ntl_jax.kernels.attention.flash import unfit

    return unfit(q, k, scale=scale, mask=mask, dropout=dropout)


def _mesh_of(x) -> jax.sharding.AbstractMesh:
    return jax.typeof(x).sharding.mesh


def _unfit_for_cudnn(q, k, scale, bias, mask, dropout) -> str | None:
    width, lengths = q.shape[3], (q.shape[1], k.shape[1])
    odd = any(length % 2 for length in lengths)
    if q.dtype != jnp.bfloat16 or k.dtype != jnp.bfloat16:
        return f"takes bfloat16; q is {q.dtype}, k {k.dtype}"
    if dropout is not None and getattr(dropout, "active", True):
        return (
            "has no dropout of probabilities, for the seed of cuDNN's would be the "
            "same at every step; set its rate to 0"
        )
    if width % 8 or width > 128:
        return f"takes heads of a width that 8 divides, up to 128; it is {width}"
    if not isinstance(scale, (int, float)):
        return f"takes a scale known at trace time; it is {scale}"
    if odd and (bias is not None or mask is not None):
        return f"takes even lengths with a bias or a mask; these are {lengths}"
    return None


def attend(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K H"],
    *,
    scale: float | Float32[Array, ""],
    bias: Float32[Array, "#B #N #T #S"] | None = None,
    mask: Bool[Array, "#B #N #T #S"] | None = None,
    causal: bool = False,
    dropout: Callable[[Array], Array] | None = None,
    implementation: Implementation = "auto",
) -> Float[Array, "B T N H"]:
    """Attention of queries over keys and values, heads in groups where K < N.

    softmax(scale * q kᵀ + bias) v, the softmax in float32.

    Args:
        q: queries, N heads.
        k: keys, K heads; query head n reads key head n // (N / K).
        v: values, as the keys.
        scale: what the scores are multiplied by, 1/sqrt(H) in most models.
        bias: added to the scaled scores.
        mask: true where a query sees a key. A query that sees nothing gets the mean
            of all values: finite, and of no meaning.
        causal: whether queries see no key after themselves, besides what the mask
            says; T is S.
        dropout: dropout of the probabilities, [B, N, T, S] -> the same.
        implementation: which program computes it, see `choose_implementation`.

    Returns:
        [B, T, N, H] in the queries' dtype.

    Raises:
        ValueError: the key heads do not divide the query heads, `causal` with other
            than as many queries as keys, or operands or a platform that the
            implementation does not take.

    >>> q, k, v = jnp.ones((3, 1, 2, 4, 8))
    >>> attend(q, k, v, scale=8**-0.5).shape
    (1, 2, 4, 8)
    """
    _check_shapes(q, k, causal)
    chosen = choose_implementation(
        implementation, q, k, scale=scale, bias=bias, mask=mask, dropout=dropout
    )
    if chosen == "triton":
        return _triton(q, k, v, scale, bias, mask, causal, dropout)
    if chosen == "cudnn":
        return _cudnn(q, k, v, scale, bias, mask, causal)
    return _attend(q, k, v, scale, bias, mask, causal, dropout)


def _triton(q, k, v, scale, bias, mask, causal, dropout) -> Float[Array, "B T N H"]:
    from ntl_jax.kernels.attention.flash import flash_attention

    return flash_attention(
        q, k, v, scale=scale, bias=bias, mask=mask, causal=causal, dropout=dropout
    )


def decoding_kernels() -> ModuleType:
    """Kernels that attend for one token at a time; imported only where they run."""
    from ntl_jax.kernels.attention import decoding

    return decoding


def _cudnn(q, k, v, scale, bias, mask, causal) -> Float[Array, "B T N H"]:
    if bias is not None:
        bias = bias.astype(q.dtype)
    if mask is not None:
        shape = (*mask.shape[:2], q.shape[1], k.shape[1])
        mask = jnp.broadcast_to(mask, shape)
    return jax.nn.dot_product_attention(
        q, k, v, bias, mask, scale=scale, is_causal=causal, implementation="cudnn"
    )


def _check_shapes(q, k, causal: bool) -> None:
    heads, groups = q.shape[2], k.shape[2]
    if heads % groups:
        raise ValueError(
            f"{groups} key heads do not divide {heads} query heads; k is {k.shape}, "
            f"q {q.shape}, both [batch, length, heads, width]"
        )
    if causal and q.shape[1] != k.shape[1]:
        raise ValueError(
            f"{q.shape[1]} queries over {k.shape[1]} keys cannot be causal: give a "
            "mask that says which key is whose"
        )

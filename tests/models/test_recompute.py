"""What the backward pass keeps of a layer, and what it computes again."""

import jax
import jax.numpy as jnp
import pytest

from ntl_jax.kernels.attention.flash import flash_attention
from ntl_jax.kernels.dropout import DropoutSite
from ntl_jax.models.remat import remat_layer

KEY = jax.random.key(0)


def primitives(jaxpr, found):
    """How often each primitive stands in a jaxpr and in those inside it."""
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        found[name] = found.get(name, 0) + 1
        if name != "pallas_call":
            for inner in jax.extend.core.jaxprs_in_params(equation.params):
                primitives(inner, found)
    return found


def counted(step, remat, *operands):
    """Of the gradient, with all that it does not need left out."""

    def loss(*operands):
        layer = remat_layer(step, remat, prevent_cse=False)
        return jnp.sum(jnp.square(layer(*operands)))

    gradient = jax.make_jaxpr(jax.grad(loss, tuple(range(len(operands)))))(*operands)
    wanted = [True] * len(gradient.jaxpr.outvars)
    jaxpr, _ = jax.interpreters.partial_eval.dce_jaxpr(gradient.jaxpr, wanted)
    return primitives(jaxpr, {})


def feed_forward(x, wi, wo):
    return DropoutSite(0.1, KEY).relu(x @ wi) @ wo


def attend(q, k, v):
    return jnp.tanh(flash_attention(q, k, v, scale=1.0, interpret=True))


@pytest.mark.parametrize(
    ("remat", "products", "hashes"), [(False, 6, 1), ("matmuls", 6, 1), (True, 7, 2)]
)
def test_of_what_is_rectified_the_result_is_kept(remat, products, hashes):
    x, wi, wo = jnp.ones((4, 8)), jnp.ones((8, 16)), jnp.ones((16, 8))
    found = counted(feed_forward, remat, x, wi, wo)
    assert found["dot_general"] == products
    # The mask is not drawn again in the backward pass.
    assert found["xor"] == hashes * counted(feed_forward, False, x, wi, wo)["xor"]


@pytest.mark.parametrize(("remat", "kernels"), [(False, 3), ("matmuls", 3), (True, 4)])
def test_what_attention_gave_is_kept(remat, kernels):
    q = jnp.ones((1, 16, 1, 16))
    assert counted(attend, remat, q, q, q)["pallas_call"] == kernels

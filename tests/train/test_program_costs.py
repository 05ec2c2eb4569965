"""What is read out of compiled programs, against programs whose costs are known."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from ntl_jax.sharding import make_mesh
from train.matmul_flops import matmul_flops
from train.program_costs import costs_of

LAYERS, WIDTH, ROWS = 5, 32, 16


def network(kernels, x):
    def layer(x, kernel):
        return jnp.tanh(x @ kernel), None

    return jnp.sum(jax.lax.scan(layer, x, kernels)[0])


ARGS = (
    jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), jnp.float32),
    jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32),
)
PRODUCT = 2.0 * ROWS * WIDTH * WIDTH


def test_products_of_all_layers_are_counted():
    assert matmul_flops(jax.make_jaxpr(network)(*ARGS).jaxpr) == LAYERS * PRODUCT
    gradient = jax.make_jaxpr(jax.grad(network))(*ARGS).jaxpr
    # Each product has two in the gradient; the first layer's input asks for none.
    assert matmul_flops(gradient) == 3 * LAYERS * PRODUCT


def test_recomputed_products_are_counted_again():
    recomputed = jax.grad(jax.checkpoint(network))
    assert matmul_flops(jax.make_jaxpr(recomputed)(*ARGS).jaxpr) > 3 * LAYERS * PRODUCT


def test_a_loop_of_unknown_length_is_refused():
    def forever(x):
        return jax.lax.while_loop(lambda x: x[0, 0] < 1, lambda x: x @ x, x)

    jaxpr = jax.make_jaxpr(forever)(jnp.zeros((2, 2))).jaxpr
    with pytest.raises(ValueError, match="no known length"):
        matmul_flops(jaxpr)


def compiled(spec: PartitionSpec):
    """The gradient on 8 devices, the kernels laid out so."""
    mesh = make_mesh(1, 8, 1)
    kernels = NamedSharding(mesh, spec)
    rows = NamedSharding(mesh, PartitionSpec("fsdp"))
    step = jax.jit(
        jax.grad(network), in_shardings=(kernels, rows), out_shardings=kernels
    )
    return step.lower(*ARGS).compile()


def test_collectives_of_every_layer_are_counted():
    costs = costs_of(compiled(PartitionSpec(None, "fsdp")).as_text())
    # Each layer's kernel is gathered on the way forward and on the way back.
    layer = 4.0 * WIDTH * WIDTH
    assert costs.collectives["all-gather"] in (LAYERS * layer, 2 * LAYERS * layer)
    assert costs.calls["all-gather"] >= LAYERS
    assert costs.largest["all-gather"][0] == layer


def test_replicated_kernels_are_not_gathered():
    costs = costs_of(compiled(PartitionSpec()).as_text())
    assert "all-gather" not in costs.collectives
    assert costs.collectives["all-reduce"] == LAYERS * 4.0 * WIDTH * WIDTH


def test_slices_of_a_stack_move_as_slices():
    costs = costs_of(jax.jit(network).lower(*ARGS).compile().as_text())
    stack = 4.0 * LAYERS * WIDTH * WIDTH
    # A slice is read, written, and read by its product. Read whole by each layer, the
    # stack alone would be 5 more.
    assert 3 * stack <= costs.moved < 6 * stack


TPU = """
%cond (p: (s32[], f32[8])) -> pred[] {
  %limit = s32[]{:T(128)} constant(6)
  %p = (s32[]{:T(128)}, f32[8]{0}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%p), index=0
  ROOT %lt = pred[]{:T(512)} compare(%i, %limit), direction=LT
}

%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %p = (s32[]{:T(128)}, f32[8]{0}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%p), index=0
  %x = f32[8]{0} get-tuple-element(%p), index=1
  %near = f32[8]{0:T(128)S(1)} copy(%x)
  %sum = f32[8]{0} all-reduce(%near), to_apply=%add
  ROOT %out = (s32[]{:T(128)}, f32[8]{0}) tuple(%i, %sum)
}

ENTRY %main (a: f32[8]) -> (s32[], f32[8]) {
  %a = f32[8]{0} parameter(0)
  %zero = s32[]{:T(128)} constant(0)
  %start = (s32[]{:T(128)}, f32[8]{0}) tuple(%zero, %a)
  ROOT %loop = (s32[]{:T(128)}, f32[8]{0}) while(%start), condition=%cond, body=%body
}
"""


def test_a_loop_counts_by_what_its_counter_is_compared_with():
    costs = costs_of(TPU)
    assert costs.collectives == {"all-reduce": 6 * 32.0}
    # What stays on the chip is not moved: x is read, the sum is written.
    assert costs.moved == 6 * (32.0 + 32.0)


def test_a_loop_that_does_not_say_is_refused():
    with pytest.raises(ValueError, match="loop does not say"):
        costs_of(TPU.replace("direction=LT", "direction=NE"))


def test_what_is_no_program_is_refused():
    with pytest.raises(ValueError, match="no ENTRY"):
        costs_of("nothing")

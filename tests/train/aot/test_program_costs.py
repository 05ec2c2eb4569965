"""What is read out of compiled programs, against programs whose costs are known."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.sharding import NamedSharding, PartitionSpec

from ntl_jax.sharding.mesh import make_mesh
from train.aot.matmul_flops import matmul_flops
from train.aot.program_costs import costs_of

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


def test_recomputed_products_are_counted_twice():
    recomputed = jax.grad(jax.checkpoint(network))
    assert matmul_flops(jax.make_jaxpr(recomputed)(*ARGS).jaxpr) > 3 * LAYERS * PRODUCT


def test_a_loop_of_unknown_length_is_refused():
    def forever(x):
        return jax.lax.while_loop(lambda x: x[0, 0] < 1, lambda x: x @ x, x)

    jaxpr = jax.make_jaxpr(forever)(jnp.zeros((2, 2))).jaxpr
    with pytest.raises(ValueError, match="no known length"):
        matmul_flops(jaxpr)


def test_what_each_device_multiplies_is_counted_for_all_of_them():
    kernels, rows = ARGS
    mapped = jax.shard_map(
        network,
        mesh=make_mesh(2, 2, 2),
        in_specs=(PartitionSpec(), PartitionSpec(("data", "fsdp"))),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    # The rows are sharded over four of the devices and replicated on two.
    jaxpr = jax.make_jaxpr(mapped)(kernels, rows).jaxpr
    assert matmul_flops(jaxpr) == 2 * LAYERS * PRODUCT


def compiled(spec: PartitionSpec):
    """The gradient on 8 devices, the kernels sharded so."""
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


STARTED = """
ENTRY %main (p: f32[2,8], q: bf16[4]) -> f32[8,8] {
  %p = f32[2,8]{1,0} parameter(0)
  %q = bf16[4]{0} parameter(1)
  %all-gather-start.1 = ((f32[2,8]{1,0}, bf16[4]{0}), (f32[8,8]{1,0}, bf16[16]{0})) \
all-gather-start(%p, %q), channel_id=1, dimensions={0}
  %all-gather-done.1 = (f32[8,8]{1,0}, bf16[16]{0}) all-gather-done(%all-gather-start.1)
  %all-gather-start.2 = (bf16[4]{0}, bf16[16]{0}) all-gather-start(%q), channel_id=2
  %all-gather-done.2 = bf16[16]{0} all-gather-done(%all-gather-start.2)
  %whole = f32[8,8]{1,0} get-tuple-element(%all-gather-done.1), index=0
  %reduce-scatter-start = ((f32[8,8]{1,0}), f32[2,8]{1,0}) \
reduce-scatter-start(%whole), channel_id=3, dimensions={0}, to_apply=%add
  %part = f32[2,8]{1,0} reduce-scatter-done(%reduce-scatter-start)
  %permute = (f32[2,8]{1,0}, f32[2,8]{1,0}, u32[], u32[]) \
collective-permute-start(%part), channel_id=4
  %sent = f32[2,8]{1,0} collective-permute-done(%permute)
  ROOT %result = f32[8,8]{1,0} copy(%whole)
}
"""


def test_of_collectives_that_are_started_all_arrays_are_counted():
    assert costs_of(STARTED).collectives == {
        "all-gather": (8 * 8 * 4 + 16 * 2) + 16 * 2,
        "reduce-scatter": 8 * 8 * 4,
        "collective-permute": 2 * 8 * 4,
    }


def test_a_loop_that_does_not_say_is_refused():
    with pytest.raises(ValueError, match="length of loop"):
        costs_of(TPU.replace("direction=LT", "direction=NE"))


def test_what_is_no_program_is_refused():
    with pytest.raises(ValueError, match="no ENTRY"):
        costs_of("nothing")


def kernel(estimate):
    def multiply(a_ref, b_ref, out_ref):
        out_ref[...] = a_ref[...] @ b_ref[...]

    shape = jax.ShapeDtypeStruct((16, 16), jnp.float32)
    call = pl.pallas_call(
        multiply, out_shape=shape, cost_estimate=estimate, interpret=True
    )
    return jax.make_jaxpr(call)(jnp.ones((16, 16)), jnp.ones((16, 16))).jaxpr


def test_of_kernels_the_estimate_is_counted():
    estimate = pl.CostEstimate(flops=1234, transcendentals=0, bytes_accessed=0)
    assert matmul_flops(kernel(estimate)) == 1234.0


def test_a_kernel_without_an_estimate_is_refused():
    with pytest.raises(ValueError, match="cost_estimate"):
        matmul_flops(kernel(None))

"""Experts: every visit is made, on few tokens or many, on one device or several."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from ntl_jax.kernels import experts
from ntl_jax.kernels.experts import (
    FEW_TOKENS,
    all_experts,
    chosen_experts,
    collect,
    grouped_matmul,
    lay_out,
    run_experts,
    spread,
    tile_rows,
)
from ntl_jax.sharding.mesh import make_mesh

D, F = 16, 8
ROUTINGS = ("even", "skewed", "one")


def operands(tokens, count, visits, routing="even", seed=0):
    """x, weights, chosen, gate_up, down; under "one", all tokens choose alike."""
    draw = np.random.default_rng(seed)
    scores = draw.normal(size=(tokens, count))
    if routing != "even":
        scores += np.linspace(4, -4, count) * (100 if routing == "one" else 1)
    chosen = np.argsort(-scores, axis=1)[:, :visits].astype(np.int32)
    weights = np.exp(np.take_along_axis(scores, chosen, axis=1))
    weights = weights / weights.sum(axis=1, keepdims=True)
    shapes = (tokens, D), (count, 2, F, D), (count, D, F)
    x, gate_up, down = (draw.normal(size=shape).astype(np.float32) for shape in shapes)
    gate_up, down = 0.3 * gate_up, 0.3 * down
    return x, weights.astype(np.float32), chosen, gate_up, down


def decode_loop(x, weights, chosen, gate_up, down):
    """The same in float64, visit by visit."""
    x, weights, gate_up, down = (
        y.astype(np.float64) for y in (x, weights, gate_up, down)
    )
    out = np.zeros_like(x)
    for token, (row, expert_numbers) in enumerate(zip(x, chosen, strict=True)):
        for weight, expert in zip(weights[token], expert_numbers, strict=True):
            gate, up = gate_up[expert] @ row
            out[token] += weight * (down[expert] @ (gate / (1 + np.exp(-gate)) * up))
    return out


def gradients(run, given, cotangent):
    x, weights, chosen, gate_up, down = given

    def of(x, weights, gate_up, down):
        return run(x, weights, chosen, gate_up, down)

    return jax.vjp(of, x, weights, gate_up, down)[1](cotangent)


def assert_close(got, want, tolerance=1e-5):
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * np.abs(want).max())


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize(("count", "visits"), [(6, 2), (5, 1), (4, 4), (1, 1)])
@pytest.mark.parametrize("tokens", [1, 37, 200])
def test_both_forms_equal_visit_by_visit(tokens, count, visits, routing):
    given = operands(tokens, count, visits, routing)
    want = decode_loop(*given)
    for run in (all_experts, chosen_experts):
        assert_close(jax.jit(run)(*given), want)
    wrong = decode_loop(*operands(tokens, count, visits, routing)[:4], 1.01 * given[4])
    assert np.abs(wrong - want).max() > 1e-3 * np.abs(want).max()


@pytest.mark.parametrize("routing", ROUTINGS)
def test_gradients_of_both_forms_agree_and_are_the_slopes(routing):
    given = operands(150, 6, 2, routing)
    draw = np.random.default_rng(1)
    cotangent = draw.normal(size=(150, D)).astype(np.float32)
    dense, sparse = (
        gradients(jax.jit(run), given, cotangent)
        for run in (all_experts, chosen_experts)
    )
    for got, want in zip(sparse, dense, strict=True):
        assert_close(got, want)
    places = (0, 1, 3, 4)  # chosen has no slope
    for place, gradient in zip(places, sparse, strict=True):
        step = draw.normal(size=given[place].shape)
        ends = []
        for sign in (1, -1):
            moved = [y.astype(np.float64) if y.dtype != np.int32 else y for y in given]
            moved[place] = moved[place] + sign * 1e-5 * step
            ends.append(np.sum(decode_loop(*moved) * cotangent))
        slope = (ends[0] - ends[1]) / 2e-5
        np.testing.assert_allclose(np.sum(gradient * step), slope, rtol=1e-3, atol=1e-2)


@given(
    tokens=st.integers(1, 70),
    count=st.integers(1, 9),
    visits=st.integers(1, 9),
    seed=st.integers(0, 999),
    routing=st.sampled_from(ROUTINGS),
)
@settings(max_examples=60, deadline=None)
def test_every_visit_has_a_row_of_its_own_with_its_expert(
    tokens, count, visits, seed, routing
):
    visits = min(visits, count)
    chosen = operands(tokens, count, visits, routing, seed)[2]
    layout = jax.tree.map(np.asarray, jax.jit(lay_out, static_argnums=1)(chosen, count))
    flat = chosen.reshape(-1)
    tile = tile_rows(flat.size, count)
    assert len(np.unique(layout.row)) == flat.size == layout.filled.sum()
    np.testing.assert_array_equal(layout.visit[layout.row], np.arange(flat.size))
    assert layout.filled[layout.row].all()
    np.testing.assert_array_equal(layout.expert[layout.row // tile], flat)
    assert layout.sizes.sum() == len(layout.visit) == tile * len(layout.expert)
    by_size = np.repeat(np.arange(count), layout.sizes)
    np.testing.assert_array_equal(np.repeat(layout.expert, tile), by_size)


def test_at_most_a_quarter_of_the_rows_is_empty():
    for tokens, count, visits in ((8192, 32, 8), (512, 32, 8), (100_000, 8, 2)):
        sizes = jax.ShapeDtypeStruct((tokens, visits), jnp.int32)
        rows = len(jax.eval_shape(partial(lay_out, experts=count), sizes).visit)
        assert tokens * visits <= rows <= 1.25 * tokens * visits + 1


def test_spread_and_collect_are_each_others_gradient():
    chosen = operands(40, 5, 2)[2]
    layout = lay_out(jnp.asarray(chosen), 5)
    draw = np.random.default_rng(0)
    x = draw.normal(size=(40, D)).astype(np.float32)
    y = draw.normal(size=(len(layout.visit), D)).astype(np.float32)
    there, back = spread(2, x, layout), collect(2, y, layout)
    np.testing.assert_allclose(np.sum(there * y), np.sum(x * back), rtol=1e-4)
    chex.assert_trees_all_close(collect(2, there, layout), 2 * x, rtol=1e-6)
    assert not there[~np.asarray(layout.filled)].any()


@pytest.mark.parametrize("routing", ROUTINGS)
def test_tiles_equal_ragged_groups(routing):
    """The instruction that TPUs are given means the same; here it runs slowly."""
    x, _, chosen, gate_up, _ = operands(60, 5, 2, routing)
    layout = lay_out(jnp.asarray(chosen), 5)
    rows, kernels = spread(2, x, layout), jnp.asarray(gate_up.reshape(5, -1, D))
    tiled = experts._tiled_matmul(rows, kernels, layout)
    assert_close(experts._ragged_matmul(rows, kernels, layout), tiled)
    outer = experts._tiled_outer(tiled, rows, layout)
    assert_close(experts._ragged_outer(tiled, rows, layout), outer)
    shifted = layout._replace(sizes=jnp.roll(layout.sizes, 1))
    error = np.abs(experts._ragged_outer(tiled, rows, shifted) - outer).max()
    assert error > 1e-3 * np.abs(outer).max()


def test_each_platform_is_given_its_own_product():
    x, _, chosen, gate_up, _ = operands(60, 5, 2)

    def run(x, kernels):
        layout = lay_out(jnp.asarray(chosen), 5)
        return jnp.sum(grouped_matmul(spread(2, x, layout), kernels, layout))

    traced = jax.jit(jax.grad(run, (0, 1))).trace(x, gate_up.reshape(5, -1, D))

    def ragged(platform):
        return (
            traced.lower(lowering_platforms=(platform,)).as_text().count("ragged_dot")
        )

    assert ragged("tpu") >= 2
    assert ragged("cuda") == ragged("cpu") == 0


def flops(run, *arguments):
    compiled = jax.jit(run).lower(*arguments).compile()
    return compiled.cost_analysis()["flops"]


def test_many_tokens_do_not_run_all_experts():
    given = operands(1024, 16, 2)
    assert flops(chosen_experts, *given) < 0.3 * flops(all_experts, *given)


def placed(mesh, given):
    """The operands as a sharded model has them."""
    rows, units = P(("data", "fsdp")), "tensor"
    specs = (rows, rows, rows, P(None, None, units, "fsdp"), P(None, "fsdp", units))
    return [
        jax.device_put(y, NamedSharding(mesh, spec))
        for y, spec in zip(given, specs, strict=True)
    ]


def with_rows(given, rows):
    x, weights, chosen, *kernels = given
    return [y.reshape(rows, -1, y.shape[-1]) for y in (x, weights, chosen)] + kernels


def value_and_gradients(x, weights, chosen, gate_up, down):
    """The result, and the gradients of the sum of its sines."""

    def run(x, weights, gate_up, down):
        out = run_experts(x, weights, chosen, gate_up, down)
        return jnp.sum(jnp.sin(out)), out

    grads, out = jax.grad(run, (0, 1, 2, 3), has_aux=True)(x, weights, gate_up, down)
    return out, grads


@pytest.mark.parametrize("tokens", [64, 8 * (FEW_TOKENS + 32)], ids=["few", "many"])
@pytest.mark.parametrize("mesh", [(8, 1, 1), (1, 8, 1), (2, 2, 2), (1, 4, 2)])
def test_meshes_equal_one_device(mesh, tokens):
    given = with_rows(operands(tokens, 5, 2, "skewed"), 8)
    want = jax.jit(value_and_gradients)(*given)
    got = jax.jit(value_and_gradients)(*placed(make_mesh(*mesh), given))
    for ours, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert_close(ours, theirs)


def test_eight_devices_share_the_work():
    given = with_rows(operands(8 * 512, 5, 2), 8)
    alone = flops(value_and_gradients, *given)
    mesh = make_mesh(8)
    assert flops(value_and_gradients, *placed(mesh, given)) < 0.2 * alone
    assert flops(value_and_gradients, *placed(make_mesh(2, 2, 2), given)) < 0.2 * alone


def test_tpus_are_given_no_custom_partitioning():
    """Their compiler refuses it."""
    given = placed(make_mesh(8), with_rows(operands(64, 5, 2), 8))
    traced = jax.jit(value_and_gradients).trace(*given)
    texts = [
        traced.lower(lowering_platforms=(platform,)).as_text()
        for platform in ("tpu", "cuda")
    ]
    assert "CustomSPMDPartitioning" not in texts[0]
    assert "CustomSPMDPartitioning" in texts[1]


def test_bfloat16_is_close():
    given = with_rows(operands(150, 5, 2), 2)
    low = [jnp.asarray(y, "int32" if y.dtype == "int32" else "bfloat16") for y in given]
    low[1] = jnp.asarray(given[1])
    got = run_experts(*low)
    want = jax.jit(run_experts)(*given)
    assert got.dtype == jnp.bfloat16
    assert np.abs(got.astype(jnp.float32) - want).max() < 0.05 * np.abs(want).max()


def test_experts_run_under_vmap():
    *given, gate_up, down = with_rows(operands(150, 5, 2), 2)
    models = jnp.stack([gate_up, 1.5 * gate_up]), jnp.stack([down, -down])
    many = jax.vmap(partial(value_and_gradients, *given))(*models)
    for index in range(2):
        own = (y[index] for y in models)
        alone = jax.jit(value_and_gradients)(*given, *own)
        for got, want in zip(
            jax.tree.leaves(many), jax.tree.leaves(alone), strict=True
        ):
            assert_close(got[index], want)

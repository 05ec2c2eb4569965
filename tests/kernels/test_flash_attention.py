"""The attention kernels, interpreted, against the plain program."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax.kernels.attention import gpu, tiles
from ntl_jax.kernels.attention.dispatch import attend
from ntl_jax.kernels.attention.flash import flash_attention
from ntl_jax.kernels.dropout import DropoutSite, keep_places
from tests.kernels.flash_cases import KEY, Case, tiles_of

TOLERANCE = 1e-5

WHOLE = Case()  # dropout, bias, padding, causal, heads in groups, no tile is full
ACROSS = Case(
    queries=20, groups=4, bias_rows=3, mask_dims=3, causal=False, rate=0.0, heads=4
)
CASES = {
    "whole": WHOLE,
    "across": ACROSS,
    "one-key-head": Case(groups=1, bias_rows=0, mask_dims=0),
    "full-tiles": Case(queries=32, sources=32, rate=0.0, mask_dims=0),
    "bias-of-each-row": Case(bias_rows=3, rate=0.1),
    "wide-tiles": Case(tiles=(64, 32), width=64, causal=False),
    "wide-keys": Case(tiles=(16, 64), width=128, mask_dims=3, heads=2),
    "many-queries": Case(queries=70, sources=19, causal=False, bias_rows=0),
}
SLOW = set(CASES) - {"whole", "across"}


def named(names, slow):
    """Parameters of a test, some of them slow."""
    marks = pytest.mark.slow
    return [pytest.param(n, marks=marks if n in slow else ()) for n in names]


def differences(case: Case, got, want) -> dict[str, float]:
    """Largest differences, relative to the largest number, of output and gradients."""
    names = ("out", "q", "k", "v", "bias")
    pairs = zip(names, (got[0], *got[1]), (want[0], *want[1]), strict=True)
    return {
        name: float(
            jnp.abs(g.astype(jnp.float32) - w.astype(jnp.float32)).max()
            / jnp.abs(w.astype(jnp.float32)).max()
        )
        for name, g, w in pairs
        if w is not None
    }


def operands_of(case: Case):
    """Operands, the cotangent 0 where a query sees nothing."""
    *operands, mask, cotangent = case.draw()
    seen = jnp.asarray(case.sees(mask))[:, :, None, None]
    return *operands, mask, jnp.where(seen, cotangent, jnp.zeros_like(cotangent))


@pytest.mark.parametrize("name", named(CASES, SLOW))
def test_kernels_equal_the_plain_program(name):
    case = CASES[name]
    operands = operands_of(case)
    want = case.plain(*operands, KEY)
    errors = differences(case, case.flash(*operands, KEY), want)
    assert max(errors.values()) < TOLERANCE, errors
    assert len(errors) == (5 if case.bias_rows else 4)
    if case.rate:
        other = case.plain(*operands, jax.random.key(6))
        assert min(differences(case, other, want).values()) > 0.01


@pytest.mark.parametrize(
    "part", named(["keep_places", "_shared", "_mask"], ["_shared", "_mask"])
)
def test_parity_can_fail(monkeypatch, part):
    wrong = {
        "_shared": lambda x, ref, row: row * 0,
        "keep_places": lambda place, *others: keep_places(place + 1, *others),
        "_mask": lambda x, ref, place: jnp.ones((1, 1), jnp.int8),
    }
    operands = operands_of(WHOLE)
    want = WHOLE.plain(*operands, KEY)
    monkeypatch.setattr(tiles, part, wrong[part])
    errors = differences(WHOLE, WHOLE.flash(*operands, KEY), want)
    assert min(errors.values()) > 100 * TOLERANCE, errors


@pytest.mark.parametrize("name", named(["whole", "across"], ["across"]))
def test_bfloat16_is_as_close_as_the_plain_program(name):
    case = dataclasses.replace(CASES[name], dtype="bfloat16")
    operands = operands_of(case)
    exact = [x if x is None else x.astype(jnp.float32) for x in operands[:4]]
    want = case.plain(
        *exact, operands[4], operands[5].astype(jnp.float32), KEY
    )  # of the same rounded operands
    got, plain = case.flash(*operands, KEY), case.plain(*operands, KEY)
    assert [x.dtype for x in jax.tree.leaves(got)] == [
        x.dtype for x in jax.tree.leaves(plain)
    ]
    ours, theirs = differences(case, got, want), differences(case, plain, want)
    assert all(ours[part] < 1.5 * theirs[part] + 1e-3 for part in ours), (ours, theirs)


def test_dropout_drops_what_the_plain_program_drops():
    rows, queries, sources, heads, width = 2, 20, 50, 3, 64
    dropout = DropoutSite(0.3, KEY, row_offset=5, layer=1, site=9)
    q = jnp.zeros((rows, queries, heads, width))
    k = jnp.zeros((rows, sources, heads, width))
    v = jnp.broadcast_to(jnp.eye(sources, width)[None, :, None], k.shape)
    out = flash_attention(
        q, k, v, scale=1.0, dropout=dropout, tiles=tiles_of(16, 16), interpret=True
    )
    got = jnp.swapaxes(out[..., :sources], 1, 2)  # [B, N, T, S]: the probabilities
    want = dropout(jnp.full((rows, heads, queries, sources), 1 / sources))
    np.testing.assert_array_equal(got == 0, want == 0)
    chex.assert_trees_all_close(got, want, rtol=1e-6)


def test_a_query_that_sees_nothing_gets_the_mean_and_has_no_gradient():
    case = Case(rate=0.0, bias_rows=0, groups=4)
    q, k, v, _, mask, cotangent = case.draw()
    blind = ~case.sees(mask)
    assert blind.sum() == 18  # left of the text in the second row
    given = (q, k, v, None, mask)
    out, gradients = case.flash(*given, cotangent, KEY)
    mean = jnp.broadcast_to(v[1].mean(axis=0), (18, 4, 16))
    chex.assert_trees_all_close(out[1, :18], mean, atol=1e-5)
    assert not gradients[0][1, :18].any()
    assert jnp.abs(gradients[0][1, 20:]).max(axis=(1, 2)).min() > 0.01
    unread = jnp.where(jnp.asarray(blind)[:, :, None, None], 0.0, cotangent)
    _, others = case.flash(*given, unread, KEY)
    chex.assert_trees_all_close(gradients, others, atol=1e-6)


def test_all_keys_hidden_by_the_bias_is_the_mean_too():
    q, k, v = jax.random.normal(KEY, (3, 2, 20, 2, 16))
    bias = jnp.full((1, 2, 20, 20), -1e30)
    out = flash_attention(q, k, v, scale=1.0, bias=bias, interpret=True)
    mean = jnp.broadcast_to(v.mean(axis=1, keepdims=True), v.shape)
    chex.assert_trees_all_close(out, mean, atol=1e-5)


def test_under_vmap_each_model_is_alone():
    case = Case(bias_rows=1, queries=20, sources=20)
    q, k, v, bias, mask, cotangent = operands_of(case)
    keys = jax.random.split(KEY, 2)
    each = [jnp.stack([x, 2 * x[..., ::-1]]) for x in (q, k, v, bias)]
    axes = (0, 0, 0, 0, None, None, 0)
    got = jax.jit(jax.vmap(case.flashed, axes))(*each, mask, cotangent, keys)
    for i in range(2):
        alone = case.plain(*(x[i] for x in each), mask, cotangent, keys[i])
        errors = differences(case, jax.tree.map(lambda x, i=i: x[i], got), alone)
        assert max(errors.values()) < TOLERANCE, errors


@pytest.mark.parametrize(("enough", "parts"), [(1, 1), (3, 2), (6, 3), (512, 7)])
def test_a_bias_with_axes_of_one_has_its_gradient_summed_over_them(
    monkeypatch, enough, parts
):
    q, k, v = jax.random.normal(KEY, (3, 7, 20, 2, 16))
    short = jax.random.normal(KEY, (1, 1, 1, 20))
    monkeypatch.setattr(gpu, "_ENOUGH", enough)
    assert gpu._parts(len(q), programs=2) == parts

    def total(attention, bias, **options):
        return jnp.sum(attention(q, k, v, scale=0.3, bias=bias, **options) ** 2)

    got = jax.jit(jax.grad(lambda b: total(flash_attention, b, interpret=True)))(short)
    want = jax.jit(jax.grad(lambda b: total(attend, b)))(short)
    chex.assert_trees_all_close(got, want, rtol=1e-4, atol=1e-5)
    assert got.shape == short.shape


def test_sums_over_rows_are_cut_into_equal_parts_where_they_can_be():
    assert gpu._parts(64, 100) == 8
    assert gpu._parts(127, 384) == 2
    assert gpu._parts(1, 1) == 1


@pytest.mark.parametrize(("spare", "dtype"), [(0, "int8"), (-1, "int16")])
def test_a_large_mask_is_read_in_wider_numbers(monkeypatch, spare, dtype):
    """Of which Pallas counts in 64 bits: in 32 it would read before the mask."""
    # Other tiles each time: JAX keeps what it has traced.
    case = Case(mask_dims=3, rate=0.0, bias_rows=0, tiles=(32, 16 - 16 * spare))
    *operands, mask, cotangent = operands_of(case)
    mask, read = jnp.asarray(mask), set()

    def record(x, ref, place):
        read.add(str(ref.dtype))
        return of_tile(x, ref, place)

    of_tile = tiles._mask
    monkeypatch.setattr(tiles, "_mask", record)
    monkeypatch.setattr(gpu, "_PLACES", mask.size + spare)
    given = (*operands, mask, cotangent, KEY)
    errors = differences(case, case.flash(*given), case.plain(*given))
    assert max(errors.values()) < TOLERANCE, errors
    assert read == {dtype}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"width": 24}, r"heads of width \(16, 32, 64, 128\); q .* has 24"),
        ({"dtype": "float16"}, "float32 or bfloat16, alike; q is float16"),
        ({"rows": 0}, "no empty arrays"),
    ],
    ids=str,
)
def test_shapes_that_kernels_do_not_take_are_named(change, error):
    shape = {"rows": 2, "width": 16, "dtype": "float32"} | change
    q = jnp.zeros((shape["rows"], 20, 2, shape["width"]), shape["dtype"])
    with pytest.raises(ValueError, match=error):
        flash_attention(q, q, q, scale=1.0, interpret=True)


def test_options_that_kernels_do_not_take_are_named():
    q = jnp.zeros((2, 20, 2, 16))
    by_head = jnp.ones((2, 2, 1, 20), bool)
    with pytest.raises(ValueError, match="alike for all heads"):
        flash_attention(q, q, q, scale=1.0, mask=by_head, interpret=True)
    with pytest.raises(ValueError, match="scale known at trace time"):
        jax.jit(lambda scale: flash_attention(q, q, q, scale=scale))(1.0)
    with pytest.raises(ValueError, match="a DropoutSite for dropout; it is a function"):
        flash_attention(q, q, q, scale=1.0, dropout=lambda x: x)  # pyright: ignore[reportArgumentType]

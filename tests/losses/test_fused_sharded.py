"""The fused head on eight devices: the same numbers, and no logits sent around."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from ntl_jax import NumberVocab, Objective, objective_from_hidden, stats_from_hidden
from tests.losses.fused_cases import assert_close

AXES = ("data", "fsdp", "tensor")
ROWS, LENGTH, WIDTH, COLUMNS = 16, 12, 24, 512
TILE = 4  # positions of every row
DIGITS = {str(d): 40 * d for d in range(10)}
VOCAB = NumberVocab.from_mapping(DIGITS | {"a": 1}, vocab_size=500)
OBJECTIVE = Objective(
    mse=0.01, huber=0.1, reweigh=True, label_smoothing=0.1, z_loss=1e-3
)
OPTIONS = {"logit_scale": 0.5, "soft_cap": 5.0, "tile_tokens": TILE * ROWS}


def draw_batch():
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(ROWS, LENGTH, WIDTH))
    kernel = rng.normal(size=(WIDTH, COLUMNS))
    bias = rng.normal(size=COLUMNS)
    labels = rng.integers(0, 500, size=(ROWS, LENGTH))
    numbers = rng.choice(list(DIGITS.values()), size=labels.shape)
    labels = np.where(rng.random(labels.shape) < 0.5, numbers, labels)
    labels[:2] = -100  # a device with nothing to learn
    labels[2:4] = 1  # and one without a number
    head = tuple(jnp.asarray(x, jnp.float32) for x in (hidden, kernel, bias))
    return head, jnp.asarray(labels)


def total_by_stats(head, labels, counts=None, **options):
    hidden, kernel, bias = head
    options = OPTIONS | options
    stats = stats_from_hidden(hidden, kernel, labels, VOCAB, bias=bias, **options)
    return OBJECTIVE.total(OBJECTIVE(stats, labels, VOCAB), counts)


def total_at_once(head, labels, counts=None, **options):
    hidden, kernel, bias = head
    options = OPTIONS | options | {"bias": bias, "counts": counts}
    return objective_from_hidden(OBJECTIVE, hidden, kernel, labels, VOCAB, **options)[0]


LOSSES = {
    "stats": total_by_stats,
    "columns": partial(total_by_stats, backward="columns"),
    "objective": total_at_once,
}


@pytest.fixture(scope="module")
def expected():
    """Value and gradients on one device."""
    return jax.jit(jax.value_and_grad(total_by_stats))(*draw_batch())


def make_mesh(*shape):
    return jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * 3)


def compiled_on(mesh, loss, kernel_spec):
    """(compiled gradient, its arguments), the batch over data and fsdp."""
    batch, bias_spec = P(("data", "fsdp")), P(kernel_spec[1])
    head, labels = draw_batch()
    specs = (batch, kernel_spec, bias_spec)
    shardings = tuple(NamedSharding(mesh, spec) for spec in specs)
    head = jax.device_put(head, shardings)
    labels = jax.device_put(labels, NamedSharding(mesh, batch))
    step = jax.jit(jax.value_and_grad(loss), out_shardings=(None, shardings))
    return step.lower(head, labels).compile(), (head, labels)


COLLECTIVE = re.compile(
    r"= (?P<shapes>.*?) (?P<name>all-gather|all-reduce|reduce-scatter|all-to-all|"
    r"collective-permute)(-start)?\("
)


def collectives(compiled) -> list[tuple[str, str, tuple[int, ...]]]:
    """(name, computation, shape) of all that devices send to each other."""
    found, computation = [], ""
    for line in compiled.as_text().splitlines():
        if line[:1] in ("%", "E"):  # the head of a computation
            computation = line.split("(")[0]
        match = COLLECTIVE.search(line)
        if match:
            for shape in re.findall(r"\[([\d,]*)\]", match["shapes"]):
                sizes = tuple(int(n) for n in shape.split(",") if n)
                found.append((match["name"], computation, sizes))
    return found


def is_kernel(shape) -> bool:
    """Many columns of the kernel, whose rows may be split over fsdp."""
    wide = len(shape) > 1 and shape[-1] >= COLUMNS // 8
    return wide and shape[-2] in (WIDTH, WIDTH // 2)


def is_logits(shape) -> bool:
    """Many columns of anything else, but for a bias."""
    wide = len(shape) > 1 and shape[-1] >= COLUMNS // 8
    return wide and shape[-2] != 1 and not is_kernel(shape)


MESHES = [((2, 2, 2), P("fsdp", "tensor")), ((2, 1, 4), P(None, "tensor"))]
MORE = [((8, 1, 1), P(None, None)), ((4, 2, 1), P("fsdp", "tensor"))]
MESHES += [pytest.param(*mesh, marks=pytest.mark.slow) for mesh in MORE]
ON_MESHES = pytest.mark.parametrize(("shape", "spec"), MESHES, ids=str)


@ON_MESHES
@pytest.mark.parametrize("name", LOSSES)
def test_the_partitioner_changes_nothing_and_sends_no_logits(
    expected, name, shape, spec
):
    step, args = compiled_on(make_mesh(*shape), LOSSES[name], spec)
    assert_close(step(*args), expected)
    sent = collectives(step)
    assert any(is_kernel(shape) for _, _, shape in sent)  # its gradient
    assert not [found for found in sent if is_logits(found[-1])]


@ON_MESHES
@pytest.mark.parametrize("name", ["stats", "objective"])
def test_row_groups_meet_once(expected, name, shape, spec):
    groups = shape[0] * shape[1]
    inside = {}
    for row_groups in (1, groups):
        loss = partial(LOSSES[name], row_groups=row_groups)
        step, args = compiled_on(make_mesh(*shape), loss, spec)
        assert_close(step(*args), expected)
        sent = collectives(step)
        assert not [found for found in sent if is_logits(found[-1])]
        kernels = [where for _, where, shape in sent if is_kernel(shape)]
        inside[row_groups] = [where for where in kernels if "ENTRY" not in where]
    assert inside[1] and not inside[groups]


def test_logits_that_are_sent_are_seen():
    mesh = make_mesh(2, 1, 4)
    logits = jnp.zeros((ROWS, TILE, COLUMNS))
    logits = jax.device_put(logits, NamedSharding(mesh, P("data", None, "tensor")))
    gathered = jax.jit(jnp.sin, out_shardings=NamedSharding(mesh, P()))
    sent = collectives(gathered.lower(logits).compile())
    assert any(is_logits(shape) for _, _, shape in sent)


def in_shard_map(loss, check_vma, *, whole_counts=True):
    """Value and gradients with rows over eight devices, each on its own."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))

    def step(head, labels):
        counts = OBJECTIVE.counts(labels, VOCAB)
        if whole_counts:
            counts = jax.lax.psum(counts, "data")
        value, gradient = jax.value_and_grad(loss)(head, labels, counts)
        if not check_vma:  # what is the same everywhere is then for the caller to sum
            gradient = (gradient[0], *jax.lax.psum(gradient[1:], "data"))
        return jax.lax.psum(value, "data"), gradient

    specs = (P("data"), P(), P())
    mapped = jax.shard_map(
        step,
        mesh=mesh,
        in_specs=(specs, P("data")),
        out_specs=(P(), specs),
        check_vma=check_vma,
    )
    return jax.jit(mapped)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", LOSSES)
def test_shard_map_with_a_device_that_has_nothing(expected, name, check_vma):
    step = in_shard_map(partial(LOSSES[name], tile_tokens=8), check_vma)
    assert_close(step(*draw_batch()), expected)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", ["stats", "objective"])
def test_shard_map_with_the_columns_shared_out(expected, name, check_vma):
    loss = {"stats": total_by_stats, "objective": total_at_once}[name]
    mesh = jax.make_mesh((2, 4), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)

    def step(head, labels):
        counts = jax.lax.psum(OBJECTIVE.counts(labels, VOCAB), "data")
        run = partial(loss, tile_tokens=16, axis_name="tensor")
        value, gradient = jax.value_and_grad(run)(head, labels, counts)
        if not check_vma:
            gradient = (gradient[0], *jax.lax.psum(gradient[1:], "data"))
        return jax.lax.psum(value, "data"), gradient

    specs = (P("data"), P(None, "tensor"), P("tensor"))
    mapped = jax.shard_map(
        step,
        mesh=mesh,
        in_specs=(specs, P("data")),
        out_specs=(P(), specs),
        check_vma=check_vma,
    )
    compiled = jax.jit(mapped).lower(*draw_batch()).compile()
    assert_close(compiled(*draw_batch()), expected)
    assert "all-gather" not in compiled.as_text()


def test_columns_shared_out_cannot_be_cut(unhooked):
    head, labels = draw_batch()
    with pytest.raises(ValueError, match="backward='columns' slices columns that axis"):
        total_by_stats(head, labels, axis_name="tensor", backward="columns")


def test_one_number_token_beside_columns_that_are_filled_up():
    tokens = {"3" if i == 3 else f"t{i}": i for i in range(24)}
    vocab = NumberVocab.from_mapping(tokens, vocab_size=24)
    rng = np.random.default_rng(0)
    hidden = jnp.asarray(rng.normal(size=(32, 16)), jnp.bfloat16)
    kernel = rng.normal(size=(16, 24)).astype(np.float32)
    labels = jnp.asarray(rng.integers(0, 24, size=32), jnp.int32)

    def total(kernel):
        return sum(map(jnp.sum, stats_from_hidden(hidden, kernel, labels, vocab)))

    expected = jax.jit(jax.grad(total))(kernel)
    by_column = NamedSharding(make_mesh(1, 1, 8), P(None, "tensor"))
    actual = jax.jit(jax.grad(total))(jax.device_put(kernel, by_column))
    assert_close(actual, expected)


def test_means_of_means_are_seen(expected):
    step = in_shard_map(total_at_once, True, whole_counts=False)
    with pytest.raises(AssertionError):
        assert_close(step(*draw_batch()), expected)


def test_rows_must_divide_into_groups(unhooked):
    head, labels = draw_batch()
    with pytest.raises(ValueError, match=r"row_groups=3 .* not of shape \(16, 12\)"):
        total_at_once(head, labels, row_groups=3)
    with pytest.raises(ValueError, match="row_groups must be at least 1, not 0"):
        total_by_stats(head, labels, row_groups=0)

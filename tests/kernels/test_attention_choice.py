"""Which program computes attention, and whole models by the kernels, interpreted."""

import dataclasses
import importlib.util
import types
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax.hf import gpt2, granite, t5
from ntl_jax.kernels import platforms
from ntl_jax.kernels.attention import dispatch as attention_choice
from ntl_jax.kernels.attention import flash as flash_attention
from ntl_jax.kernels.attention.dispatch import check_trainable, choose_implementation
from ntl_jax.kernels.dropout import DropoutSite
from ntl_jax.models import (
    GPT2Config,
    GraniteConfig,
    NumformerConfig,
    T5Config,
    bind,
    init_params,
)
from ntl_jax.models.t5 import layers as t5_layers
from ntl_jax.sharding.mesh import batch_sharding, make_mesh, on_mesh
from ntl_jax.sharding.rules import param_shardings
from tests.kernels.flash_cases import tiles_of
from tests.models.running import relative_errors

KEY = jax.random.key(2)
DROP = DropoutSite(0.1, KEY)
TOLERANCE = 1e-5


@pytest.fixture
def on_gpu(monkeypatch):
    """As if there were a GPU, whose kernels are interpreted."""
    monkeypatch.setattr(attention_choice, "traced_platform", lambda: "gpu")
    kernels = partial(
        flash_attention.flash_attention, interpret=True, tiles=tiles_of(16, 16)
    )
    monkeypatch.setattr(flash_attention, "flash_attention", kernels)


def heads(dtype="bfloat16", *, length=32, width=64):
    q = jnp.zeros((2, length, 4, width), dtype)
    return q, q[:, :, :2]


def test_without_a_gpu_auto_is_xla():
    q, k = heads()
    for name in ("auto", "xla"):
        assert choose_implementation(name, q, k, scale=1.0) == "xla"


@pytest.mark.parametrize(
    ("operands", "dropout", "want"),
    [
        (heads(), DROP, "triton"),
        (heads(), None, "triton"),
        (heads("float32"), DROP, "xla"),
        (heads(width=24), DROP, "xla"),
        (heads(length=1), None, "xla"),
    ],
    ids=str,
)
def test_on_a_gpu_auto_is_triton_where_it_was_measured(on_gpu, operands, dropout, want):
    assert choose_implementation("auto", *operands, scale=1.0, dropout=dropout) == want


@pytest.mark.parametrize(("length", "want"), [(64, "xla"), (128, "triton")])
def test_on_a_gpu_auto_takes_short_rows_with_a_bias_to_xla(on_gpu, length, want):
    q, k = heads(length=length)
    bias = jnp.zeros((1, 4, length, length))
    assert choose_implementation("auto", q, k, scale=1.0, bias=bias) == want
    assert choose_implementation("auto", q, k, scale=1.0) == "triton"
    assert choose_implementation("triton", q, k, scale=1.0, bias=bias) == "triton"


@pytest.mark.parametrize(
    ("capability", "want"),
    [("7.5", "xla"), ("8.0", "triton"), ("12.0", "triton"), ("gfx942", "xla")],
)
def test_old_gpus_and_other_makers_have_no_kernels(
    on_gpu, monkeypatch, capability, want
):
    card = types.SimpleNamespace(compute_capability=capability)
    monkeypatch.setattr(jax, "devices", lambda: [card])
    q, k = heads()
    assert choose_implementation("auto", q, k, scale=1.0) == want
    if want == "xla":
        has = "7.5" if capability == "7.5" else "none"
        with pytest.raises(ValueError, match=rf"ty 8\.0 or more.* has {has}; or"):
            choose_implementation("triton", q, k, scale=1.0)


@pytest.mark.parametrize(
    ("device", "want"),
    [
        ({}, None),
        ({"compute_capability": "9.0"}, (9, 0)),
        ({"compute_capability": "12.1"}, (12, 1)),
        ({"compute_capability": "gfx942"}, ()),
    ],
)
def test_the_capability_of_the_gpu_here(monkeypatch, device, want):
    monkeypatch.setattr(jax, "devices", lambda: [types.SimpleNamespace(**device)])
    assert platforms.compute_capability() == want


@pytest.mark.parametrize("name", ["triton", "cudnn"])
def test_without_a_gpu_the_others_are_refused(name):
    message = f"'{name}' runs on NVIDIA GPUs, and the program is for 'cpu'; or choose"
    with pytest.raises(ValueError, match=message):
        choose_implementation(name, *heads(), scale=1.0)
    with pytest.raises(ValueError, match=message):
        q, k = heads()
        attention_choice.attend(q, k, k, scale=1.0, implementation=name)


@pytest.mark.parametrize("name", ["triton", "cudnn"])
def test_one_query_a_row_is_xlas(on_gpu, name):
    q, k = heads()
    assert choose_implementation(name, q[:, :1], k, scale=1.0) == "xla"
    assert choose_implementation(name, q, k, scale=1.0) == name


@pytest.mark.parametrize(
    ("name", "operands", "options", "error"),
    [
        ("cudnn", heads("float32"), {}, "takes bfloat16; q is float32"),
        ("cudnn", heads(), {"dropout": DROP}, "no dropout of probabilities"),
        ("cudnn", heads(width=20), {}, "that 8 divides, up to 128; it is 20"),
        ("cudnn", heads(), {"scale": jnp.ones(())}, "known at trace time"),
        ("cudnn", heads(length=9), {"bias": 0}, r"even lengths .* \(9, 9\)"),
        ("triton", heads(width=24), {}, "takes heads of width"),
        ("triton", heads("float16"), {}, "takes float32 or bfloat16"),
    ],
    ids=str,
)
def test_operands_that_one_does_not_take(
    on_gpu, monkeypatch, name, operands, options, error
):
    options = {"scale": 1.0} | options
    with pytest.raises(ValueError, match=f"attention='{name}'.*{error}.*choose 'xla'"):
        choose_implementation(name, *operands, **options)
    monkeypatch.setattr(attention_choice, "AUTO", (name,))
    assert choose_implementation("auto", *operands, **options) == "xla"


def test_auto_takes_the_first_that_fits(on_gpu, monkeypatch):
    monkeypatch.setattr(attention_choice, "AUTO", ("cudnn", "triton"))
    quiet = DropoutSite(0.1, None)
    for dropout, want in ((None, "cudnn"), (quiet, "cudnn"), (DROP, "triton")):
        assert (
            choose_implementation("auto", *heads(), scale=1.0, dropout=dropout) == want
        )
    assert choose_implementation("xla", *heads(), scale=1.0) == "xla"


def test_the_platform_is_the_meshs(monkeypatch):
    q, k = heads()
    card = jax.sharding.AbstractDevice("NVIDIA H100 80GB HBM3", None, "gpu")
    axes = (jax.sharding.AxisType.Auto,)
    mesh = jax.sharding.AbstractMesh((8,), ("data",), axes, abstract_device=card)
    with jax.sharding.use_abstract_mesh(mesh):
        assert choose_implementation("triton", q, k, scale=1.0) == "triton"
    mesh = jax.make_mesh((8,), ("data",), axes).abstract_mesh
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert choose_implementation("triton", q, k, scale=1.0) == "triton"
    with (
        jax.sharding.use_abstract_mesh(mesh),
        pytest.raises(ValueError, match="the program is for 'cpu'"),
    ):
        choose_implementation("triton", q, k, scale=1.0)


def test_the_platform_is_the_default_devices(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert platforms.traced_platform() == "gpu"
    for device in ("cpu", jax.devices("cpu")[0]):
        with jax.default_device(device):
            assert platforms.traced_platform() == "cpu"
            assert choose_implementation("auto", *heads(), scale=1.0) == "xla"


def test_arrays_on_explicit_axes_are_not_for_the_kernels(on_gpu):
    """Also where their mesh is not set for all that is traced."""
    mesh = jax.make_mesh((2,), ("data",), (jax.sharding.AxisType.Explicit,))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    q, k = (jax.random.normal(KEY, x.shape, x.dtype) for x in heads())
    want = jax.jit(partial(attention_choice.attend, scale=0.2))(q, k, k)
    q, k = jax.device_put((q, k), rows)
    assert choose_implementation("auto", q, k, scale=0.2) == "xla"
    got = jax.jit(partial(attention_choice.attend, scale=0.2))(q, k, k)
    assert got.sharding.is_equivalent_to(rows, 4)
    np.testing.assert_allclose(got.astype("float32"), want.astype("float32"), atol=0.02)


def test_meshes_of_explicit_axes_are_not_for_the_kernels(on_gpu):
    q, k = heads()
    mesh = jax.make_mesh((8,), ("data",), (jax.sharding.AxisType.Explicit,))
    with (
        jax.sharding.use_abstract_mesh(mesh.abstract_mesh),
        pytest.raises(ValueError, match="takes meshes whose axes are all Auto"),
    ):
        choose_implementation("triton", q, k, scale=1.0)


def test_a_jax_without_the_backend_has_no_kernels(on_gpu, monkeypatch):
    monkeypatch.setattr(attention_choice, "has_triton", lambda: False)
    with pytest.raises(ValueError, match="needs Pallas' Triton backend, which JAX"):
        choose_implementation("triton", *heads(), scale=1.0)
    monkeypatch.setattr(attention_choice, "AUTO", ("triton",))
    assert choose_implementation("auto", *heads(), scale=1.0) == "xla"


@pytest.mark.parametrize(
    ("name", "changes", "error"),
    [
        ("triton", {"platform": "tpu"}, "NVIDIA GPUs, and the program is for 'tpu'"),
        ("cudnn", {"platform": "cpu"}, "NVIDIA GPUs, and the program is for 'cpu'"),
        ("triton", {"width": 24}, "takes heads of width"),
        ("cudnn", {"width": 256}, "up to 128; it is 256"),
        ("cudnn", {"dtype": "float32"}, "takes bfloat16; q is float32"),
        ("cudnn", {"dropout": 0.1}, "no dropout of probabilities"),
    ],
)
def test_a_model_is_refused_before_it_is_traced(name, changes, error):
    fitting = {"width": 64, "dtype": "bfloat16", "dropout": 0.0, "platform": "gpu"}
    check_trainable(name, **fitting)
    with pytest.raises(ValueError, match=f"attention='{name}'.*{error}.*choose 'xla'"):
        check_trainable(name, **fitting | changes)
    for anywhere in ("xla", "auto"):
        check_trainable(anywhere, **fitting | changes)


def test_the_kernels_drop_probabilities_themselves():
    check_trainable("triton", width=64, dtype="float32", dropout=0.1, platform="gpu")


def test_without_the_backend_no_model_is_trained_by_kernels(monkeypatch):
    platforms.has_triton.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with (
        pytest.raises(ValueError, match="needs Pallas' Triton backend, which JAX"),
        pytest.warns(match="no Triton backend"),
    ):
        check_trainable("triton", width=64, dtype="float32", dropout=0, platform="gpu")
    platforms.has_triton.cache_clear()


def test_cudnn_is_called_as_jax_wants_it(on_gpu, monkeypatch):
    seen = {}

    def record(q, k, v, bias, mask, **options):
        seen.update(bias=bias, mask=mask, **options)
        return jnp.zeros_like(q)

    monkeypatch.setattr(jax.nn, "dot_product_attention", record)
    q, k = heads()
    bias, mask = jnp.zeros((1, 4, 32, 32)), jnp.ones((2, 1, 1, 32), bool)
    options = {"bias": bias, "mask": mask, "causal": True}
    attention_choice.attend(q, k, k, scale=0.5, implementation="cudnn", **options)
    assert seen["bias"].dtype == jnp.bfloat16 and seen["bias"].shape == bias.shape
    assert seen["mask"].shape == (2, 1, 32, 32)
    assert (seen["scale"], seen["is_causal"]) == (0.5, True)
    assert seen["implementation"] == "cudnn"


@pytest.mark.parametrize(
    "make",
    [T5Config, GPT2Config, GraniteConfig, partial(NumformerConfig, num_id=5)],
    ids=["t5", "gpt2", "granite", "numformer"],
)
def test_configs_refuse_other_names(make):
    assert make(attention="triton").attention == "triton"
    with pytest.raises(ValueError, match="attention is 'flash'; choose one of"):
        make(attention="flash")


def test_checkpoints_do_not_name_the_program():
    for module, make in ((t5, T5Config), (gpt2, GPT2Config), (granite, GraniteConfig)):
        assert "attention" not in module.write_config(make(attention="triton"))


TINY_T5 = T5Config(
    vocab_size=50,
    d_model=32,
    d_kv=16,
    d_ff=48,
    num_layers=2,
    num_decoder_layers=2,
    num_heads=2,
)
TINY_GRANITE = GraniteConfig(
    vocab_size=50,
    hidden_size=64,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
)
TINY_GPT2 = GPT2Config(vocab_size=50, n_positions=64, n_embd=32, n_layer=2, n_head=2)
TINY_NUMFORMER = NumformerConfig(
    vocab_size=50, num_id=49, d_model=32, d_ff=48, num_layers=2, num_heads=2
)
MODELS = {
    "t5": TINY_T5,
    "granite": TINY_GRANITE,
    "gpt2": TINY_GPT2,
    "numformer": TINY_NUMFORMER,
}


def test_of_t5_the_decoders_own_attention_is_causal(monkeypatch):
    """Its bias hides later tokens already: only so are tiles of them skipped."""
    seen = []

    def record(q, k, v, *, causal, **options):
        seen.append((q.shape[1], k.shape[1], causal))
        return jnp.zeros_like(q)

    monkeypatch.setattr(t5_layers, "attend", record)
    params = jax.eval_shape(partial(init_params, TINY_T5), jax.random.key(0))
    jax.eval_shape(partial(loss_of, TINY_T5), params, batch_of(4))
    assert set(seen) == {(20, 20, False), (9, 9, True), (9, 20, False)}


def loss_of(config, params, batch):
    """A loss with dropout; rows padded on either side."""
    ids, answers, mask = batch
    options = {"attention_mask": mask, "dropout_key": KEY}
    model, seen = bind(config, params), jnp.where(mask, 1.0, 0.0)[..., None]
    if isinstance(config, T5Config):
        return jnp.mean(jnp.square(model(ids, answers, **options)))
    if isinstance(config, NumformerConfig):
        logits, numbers = model(ids, jnp.ones(ids.shape), **options)
        numbers = jnp.mean(jnp.square(numbers * seen[..., 0]))
        return jnp.mean(jnp.square(logits * seen)) + numbers
    return jnp.mean(jnp.square(model(ids, **options) * seen))


def batch_of(rows: int):
    draw = np.random.default_rng(0).integers
    ids = draw(2, 49, (rows, 20), np.int32)
    mask = np.ones((rows, 20), bool)
    mask[1, 12:] = False
    mask[2, :6] = False
    return ids, draw(2, 49, (rows, 9), np.int32), mask


def step_of(config, mesh=None):
    """The loss and its gradients, of rows on one device or over a mesh's."""
    params, batch = init_params(config, jax.random.key(0)), batch_of(4)
    step = jax.value_and_grad(partial(loss_of, config))
    if mesh is None:
        return jax.device_get(jax.jit(step)(params, batch))
    shardings = param_shardings(config, params, mesh)

    def split(params, batch):
        with on_mesh(mesh):
            return step(params, batch)

    placed = (
        jax.device_put(params, shardings),
        jax.device_put(batch, batch_sharding(mesh)),
    )
    return jax.device_get(jax.jit(split, out_shardings=(None, shardings))(*placed))


@pytest.mark.parametrize(
    "name",
    [
        "t5",
        "granite",
        pytest.param("gpt2", marks=pytest.mark.slow),
        pytest.param("numformer", marks=pytest.mark.slow),
    ],
)
def test_a_step_by_the_kernels_equals_xlas(on_gpu, name):
    want, gradients = step_of(MODELS[name])
    config = dataclasses.replace(MODELS[name], attention="triton")
    got, others = step_of(config)
    assert abs(got - want) < TOLERANCE * abs(want)
    errors = relative_errors(others, gradients)
    assert max(errors.values()) < TOLERANCE, errors


@pytest.mark.slow
@pytest.mark.parametrize("remat", [False, True, "matmuls"])
@pytest.mark.parametrize("name", ["t5", "granite"])
def test_on_a_mesh_the_kernels_equal_xlas_on_one_device(on_gpu, name, remat):
    want, gradients = step_of(MODELS[name])
    config = dataclasses.replace(MODELS[name], attention="triton", remat=remat)
    got, others = step_of(config, make_mesh(2, 2, 2))
    assert abs(got - want) < TOLERANCE * abs(want)
    errors = relative_errors(others, gradients)
    assert max(errors.values()) < TOLERANCE, errors

"""Which program computes attention."""

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
from ntl_jax.kernels.attention.dispatch import check_trainable, choose_implementation
from ntl_jax.kernels.dropout import DropoutSite
from ntl_jax.models import (
    GPT2Config,
    GraniteConfig,
    NumformerConfig,
    T5Config,
)

KEY = jax.random.key(2)
DROP = DropoutSite(0.1, KEY)
TOLERANCE = 1e-5


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

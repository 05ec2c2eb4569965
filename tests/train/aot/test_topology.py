"""What `--topology` takes, and what it says of what it does not take."""

import importlib.util

import pytest

from train.aot.chips import CHIPS
from train.aot.gpu_targets import GPU_TARGETS
from train.aot.topology import find_devices
from train.config import ConfigError


@pytest.mark.parametrize(
    "topology",
    [
        "",
        "tpu",
        "v4",
        "v9:2x2",
        "v5e",
        "v5e:4",
        "v5e:0x2",
        "v5e:\u00b2x2",  # a digit that int() does not take
        "v5e:2x2x",
        "v5e:4by4",
        "h100",
        "h100:",
        "h100:0",
        "h100:-1",
        "h100:2x2x2",
        "h300:8",
    ],
)
def test_a_topology_that_is_none(topology):
    with pytest.raises(ConfigError, match=f"{topology}: give 'local', or one of"):
        find_devices(topology)


@pytest.mark.parametrize("topology", ["v5e:4x4x4", "v6e:2x2x2"])
def test_slices_that_are_flat_have_two_sides(topology):
    flat = topology.rpartition("x")[0]
    with pytest.raises(ConfigError, match=f"give two sides, such as {flat}\\."):
        find_devices(topology)


@pytest.mark.parametrize(
    ("topology", "remedy"),
    [
        ("v5e:3x3", r"one of 1x1, 2x2, .* 16x16\."),
        ("v5e:16x32", r"one of 1x1"),
        ("v6e:1x2", r"one of 1x1"),
        ("v4:3x3x3", "multiples of 4 alone, such as v4:2x2x4"),
        ("v4:2x8x8", "sides of 1, 2 and 4 chips, or"),
        ("v5p:4x4x6", "multiples of 4 alone, such as v5p:2x2x4"),
        ("v5p:8x8", "multiples of 4 alone"),
    ],
)
def test_slices_that_no_tpu_has(topology, remedy):
    expected = f"--topology {topology}: there is no such slice .*{remedy}"
    with pytest.raises(ConfigError, match=expected):
        find_devices(topology)


@pytest.mark.parametrize(
    "topology",
    ["v5e:1x1", "v5e:4x2", "v6e:16x16", "v4:2x4x4", "v4:8x4x4", "v5p:2x2", "v5p:4x4x8"],
)
def test_slices_of_tpus_are_taken(topology, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="takes the TPU compiler"):
        find_devices(topology)


@pytest.mark.parametrize(
    ("topology", "remedy"), [("v5e:2x2", "jax\\[tpu\\]"), ("h100:2", "cuda13-local")]
)
def test_a_compiler_that_is_not_installed(topology, remedy, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=remedy):
        find_devices(topology)


@pytest.mark.parametrize("name", GPU_TARGETS)
def test_what_gpus_can_do_is_known(name):
    target = GPU_TARGETS[name]
    chip = CHIPS[target.name]
    assert chip.memory == target.memory
    # FLOPs per byte of a kernel bound by neither memory nor matrix units.
    assert 100 < chip.flops / target.bandwidth < 400


@pytest.mark.slow
@pytest.mark.parametrize("name", GPU_TARGETS)
def test_the_compiler_takes_the_description(name):
    if importlib.util.find_spec("jax_cuda13_plugin") is None:
        pytest.skip("jax[cuda13-local], the GPU compiler, is not installed")
    devices = find_devices(f"{name}:2x4")
    assert [device.process_index for device in devices] == [0] * 4 + [1] * 4
    assert {device.device_kind for device in devices} == {GPU_TARGETS[name].name}

"""What `--topology` takes, and what it says of what it does not take."""

import importlib.util

import pytest

from train.chips import CHIPS
from train.config import ConfigError
from train.gpu_targets import GPU_TARGETS
from train.topology import find_devices


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
    # A sum of products that waits for neither memory nor units has so many a byte.
    assert 100 < chip.flops / chip.bandwidth < 400


@pytest.mark.slow
@pytest.mark.parametrize("name", GPU_TARGETS)
def test_the_compiler_takes_the_description(name):
    if importlib.util.find_spec("jax_cuda13_plugin") is None:
        pytest.skip("jax[cuda13-local], the GPU compiler, is not installed")
    devices = find_devices(f"{name}:2x4")
    assert [device.process_index for device in devices] == [0] * 4 + [1] * 4
    assert {device.device_kind for device in devices} == {GPU_TARGETS[name].name}

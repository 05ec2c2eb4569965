"""Strict JAX flags, eight simulated CPU devices, and where the raw data lies."""

import gc
import importlib.metadata
import logging
import os
import pathlib

if os.environ.setdefault("JAX_PLATFORMS", "cpu") == "cpu":
    # Most of the time goes into compiling: over half of it is saved. An empty XLA_FLAGS
    # in the environment tests the programs as users run them.
    quick = "--xla_backend_optimization_level=0"
    # Where other work holds the cores, simulated devices wait long for each other, and
    # after 40 s the process would end.
    quick += " --xla_cpu_collective_call_terminate_timeout_seconds=600"
    if importlib.metadata.version("jaxlib").startswith("0.10."):
        # Later versions end the process at a flag that they do not know.
        quick += " --xla_cpu_use_fusion_emitters=false"
    os.environ.setdefault("XLA_FLAGS", quick)

import hypothesis
import jax
import pytest
from absl import flags

# Each collection walks all that was imported and traced: a tenth of the time.
gc.set_threshold(50_000, 20, 50)
jax.config.update("jax_platforms", os.environ["JAX_PLATFORMS"])
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
if not flags.FLAGS.is_parsed():
    flags.FLAGS.mark_as_parsed()  # grain reads absl flags that nobody parses here

# No deadline for an example: the machine may be busy.
hypothesis.settings.register_profile("busy", deadline=None)
hypothesis.settings.load_profile("busy")

# No tests, and they import torch, which may be missing.
collect_ignore_glob = [
    "benchmarks/torch_losses.py",
    "golden/make_*.py",
    "parity/losses_table.py",
    "parity/torch_formulas.py",
    "parity/torch_losses.py",
]


MAPS = pathlib.Path("/proc/self/maps")
MOST_MAPS = 20_000


@pytest.fixture(autouse=True, scope="module")
def _room_for_programs():
    """Drops compiled programs before the kernel's limit on memory maps ends the tests.

    Every program takes several of the 65,530 maps that Linux gives a process; where
    they run out, the compiler aborts it.
    """
    yield
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()
        gc.collect()


@pytest.fixture(autouse=True)
def _no_command_line_logs():
    """What a test's command line made of the logger ends with that test."""
    yield
    logger = logging.getLogger("train")
    logger.handlers, logger.propagate = [], True
    logger.setLevel(logging.NOTSET)


@pytest.fixture(scope="session")
def data_dir() -> pathlib.Path:
    """The folder of raw data that NTL_DATA_DIR names; skips where there is none."""
    folder = os.environ.get("NTL_DATA_DIR")
    if not folder:
        pytest.skip("NTL_DATA_DIR is not set: no raw data to test on")
    return pathlib.Path(folder)

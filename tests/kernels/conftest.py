"""Kernels as on a GPU, interpreted."""

from functools import partial

import pytest

from ntl_jax.kernels.attention import dispatch as attention_choice
from ntl_jax.kernels.attention import flash as flash_attention
from tests.kernels.flash_cases import tiles_of


@pytest.fixture
def on_gpu(monkeypatch):
    """As if there were a GPU, whose kernels are interpreted."""
    monkeypatch.setattr(attention_choice, "traced_platform", lambda: "gpu")
    kernels = partial(
        flash_attention.flash_attention, interpret=True, tiles=tiles_of(16, 16)
    )
    monkeypatch.setattr(flash_attention, "flash_attention", kernels)

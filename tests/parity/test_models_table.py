"""The parity of the models, in docs/models.md, is within its bounds."""

import pytest

from tests.parity.models_table import FAMILIES, largest_differences
from tests.parity.variants_table import VARIANTS

BOUNDS = {"logits": 1e-4, "gradients": 1e-4, "blocks": 1e-5}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_every_model_is_within_its_bounds(name):
    pytest.importorskip("torch")
    found = largest_differences(*FAMILIES[name])
    assert found.keys() == BOUNDS.keys()
    for what, bound in BOUNDS.items():
        assert 0 < found[what] < bound, (what, found)


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_is_within_its_bounds(name):
    pytest.importorskip("torch")
    found = VARIANTS[name]()
    assert found.keys() == {"outputs", "gradients"}
    for what, difference in found.items():
        assert 0 < difference < 1e-4, (what, found)

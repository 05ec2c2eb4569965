"""The table of the models' parity: what the README says of it holds."""

import pytest

from tests.parity.models_table import FAMILIES, largest_differences

BOUNDS = {"logits": 1e-4, "gradients": 1e-4, "blocks": 1e-5}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_every_model_is_within_its_bounds(name):
    pytest.importorskip("torch")
    found = largest_differences(*FAMILIES[name])
    assert found.keys() == BOUNDS.keys()
    for what, bound in BOUNDS.items():
        assert 0 < found[what] < bound, (what, found)

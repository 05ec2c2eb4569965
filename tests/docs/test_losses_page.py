"""docs/losses.md: its examples run; every loss and option is described."""

import doctest
import inspect
import pathlib
import re

import pytest

from ntl_jax import compat, losses
from ntl_jax.losses import baselines, distances, objective
from ntl_jax.losses import terms as objective_terms
from tests.benchmarks.losses import digits_among, objectives
from tests.losses.public_losses import LOSSES

DOCS = pathlib.Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "losses.md").read_text()
# Explained once for all losses, at the top of the page.
COMMON = {"logits", "labels", "stats", "vocab", "weights", "reduction", "ignore_index"}


def names_of(module):
    """What a module offers, but for its submodules, types and what it borrows."""
    borrowed = ("ntl_jax.losses.checks", "ntl_jax.losses.targets")
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and inspect.isfunction(value)
        and value.__name__ == name  # and is no former name
        and value.__module__ not in borrowed
    ]


def is_a_loss(thing):
    base = compat.AbstractNTLoss
    return inspect.isclass(thing) and issubclass(thing, base) and thing is not base


def section_of(name):
    """The section about one loss, without its heading."""
    parts = re.split(rf"^### `{name}`$", PAGE, flags=re.MULTILINE)
    assert len(parts) == 2, f"{len(parts) - 1} sections about {name}"
    return re.split(r"^#+ ", parts[1], flags=re.MULTILINE)[0]


def options_of(name):
    """The options of a loss that are its own."""
    module = baselines if hasattr(baselines, name) else losses
    found = set()
    for function in (name, f"{name}_from_stats"):
        parameters = inspect.signature(getattr(module, function)).parameters
        found |= {p.name for p in parameters.values() if p.kind != p.VAR_KEYWORD}
    if name in ("ntl_mse", "ntl_mae", "ntl_huber"):
        found |= options_of("ntl_dot_product") - {"penalty"}
    return found - COMMON


def missing_names(text):
    """The public functions that a text does not name in code."""
    names = [n for module in (losses, baselines) for n in names_of(module)]
    shorter = {name.removesuffix("_from_stats") for name in names}
    return sorted(n for n in shorter if not re.search(rf"\b{n}\b", text))


def test_the_examples_print_what_they_say():
    result = doctest.testfile(str(DOCS / "losses.md"), module_relative=False)
    assert result.failed == 0
    assert result.attempted > 40


def test_every_public_function_is_on_the_page():
    assert missing_names(PAGE) == []
    assert missing_names(PAGE.replace("ntl_was_cdf", "")) == ["ntl_was_cdf"]
    costs = [n for n in names_of(distances) if n != "check_costs"]
    classes = [c.__name__ for c in vars(compat).values() if is_a_loss(c)]
    assert len(costs) >= 4 and len(classes) >= 3
    assert [n for n in costs if f"`{n}(" not in PAGE] == []
    assert [n for n in classes if f"`{n}`" not in PAGE] == []


@pytest.mark.parametrize("name", sorted({key.split()[0] for key in LOSSES}))
def test_every_loss_has_a_section_with_all_its_options(name):
    section = section_of(name)
    missing = [o for o in sorted(options_of(name)) if f"`{o}`" not in section]
    assert missing == []
    assert section.startswith("\n\n    ")  # the formula comes first


def test_an_option_left_out_would_be_noticed():
    assert {"target", "gaps", "reweigh", "support"} == options_of("ntl_was_cdf")
    assert {"delta", "reweigh", "support"} == options_of("ntl_huber")
    assert "`gaps`" not in section_of("ntl_was")


def test_every_term_of_an_objective_is_in_its_table():
    table = PAGE.split("| `Objective` field |")[1].split("\n\n")[0]
    assert [t for t in objective_terms.TERMS if f"`{t}`" not in table] == []
    defaults = objective.Objective()
    for name in defaults.names:
        assert f"`{name}` ({getattr(defaults, name)})" in table


def test_the_table_of_costs_has_a_row_for_each_benchmark():
    rows = re.findall(
        r"^\| (.+?) \|", PAGE.split("## Cost relative to CE")[1], re.MULTILINE
    )
    assert rows[1:] == list(objectives(digits_among(200)))

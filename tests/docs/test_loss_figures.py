"""docs/figures/plot_losses.py: it runs, and what it draws are the right numbers."""

import pathlib
import runpy
import sys
import types

import numpy as np
import pytest

FIGURES = pathlib.Path(__file__).parents[2] / "docs" / "figures"
SCRIPT = FIGURES / "plot_losses.py"
NAMES = ("losses_by_prediction.png", "losses_simplex.png")
LARGEST_FILE = 150_000  # bytes

# {panel: {digit that is bet on: loss}}, for label 4.
GOLDEN = {
    "CE": {4: 0.059448, 3: 5.049448, 5: 5.049448, 0: 5.049448, 9: 5.049448},
    "NTL-WAS": {4: 0.160322, 3: 1.096193, 5: 1.096193, 9: 4.839678},
    "NTL-MSE": {4: 0.001028, 3: 0.816867, 5: 0.936899, 9: 22.197486},
    "NTL-MAE": {4: 0.032064, 3: 0.903807, 5: 0.967936, 9: 4.711421},
    "NTL-Huber": {4: 0.000514, 3: 0.408434, 5: 0.468450, 9: 4.211421},
    "GCE": {4: 3.058723, 3: 3.842013, 9: 5.049441},
    "DIST2": {4: 1.162986, 3: 2.942415, 5: 2.942415, 9: 3.978001},
    "SMMD": {4: 0.003704, 3: 1.276647, 5: 1.290999, 9: 2.451457},
    # With the weight of a single digit, 2, and over 10 classes.
    "DEL": {4: 0.009325, 3: 0.951596, 5: 0.951596, 9: 0.951596},
}
DIGITS = np.arange(10.0)


@pytest.fixture(scope="module")
def script():
    """The names that the script defines, without drawing."""
    return types.SimpleNamespace(**runpy.run_path(str(SCRIPT)))


def values_by_title(panels):
    """{title: values}, also by the first word of a title."""
    by_word = {p.title.split(",")[0]: p.values for p in reversed(panels)}
    return by_word | {p.title: p.values for p in panels}


@pytest.fixture(scope="module")
def panels(script):
    return values_by_title(script.by_prediction())


@pytest.fixture(scope="module")
def triangle(script):
    """p3, p5 and {title: values}."""
    p3, p5 = script.simplex()
    return p3, p5, {t.title: t.values for t in script.over_simplex(p3, p5)}


def bets():
    """q [10, 10] in float64: row g bets on digit g."""
    weight = np.exp(np.full((10, 10), 0.01) + 4.99 * np.eye(10))
    return weight / weight.sum(axis=-1, keepdims=True)


def differ(values, golden):
    """The digits at which the loss is not the golden one."""
    return [d for d, x in golden.items() if abs(values[d] - x) > 2e-6 * (1 + x)]


def test_the_figure_by_prediction_has_the_golden_values(panels):
    for title, golden in GOLDEN.items():
        assert differ(panels[title], golden) == [], title
    wrong = {digit: 1.001 * loss for digit, loss in GOLDEN["NTL-WAS"].items()}
    assert differ(panels["NTL-WAS"], wrong) == list(wrong)


@pytest.mark.parametrize(
    ("title", "cost"),
    [
        ("NTL-WAS", np.abs(DIGITS - 4)),
        (
            "NTL-WAS, squashed, s = 3",
            np.where(DIGITS == 4, 0, 1 + (np.abs(DIGITS - 4) - 1) / 4),
        ),
        ("NTL-WAS, circular, p = 7", np.array([3, 3, 2, 1, 0, 1, 2, 3, 3, 2.0])),
    ],
)
def test_the_panels_with_costs_are_expected_costs(panels, title, cost):
    np.testing.assert_allclose(panels[title], bets() @ cost, rtol=2e-6)


def test_the_panel_with_a_soft_target_is_its_distance(panels):
    g = np.exp(-((DIGITS - 4) ** 2) / 2)
    moved = np.cumsum(bets() - g / g.sum(), axis=-1)
    expected = np.abs(moved).sum(axis=-1)
    (title,) = (t for t in panels if t.startswith("NTL-WAS to a Gaussian, "))
    np.testing.assert_allclose(panels[title], expected, rtol=5e-6)


def test_the_triangles_are_the_losses_in_closed_form(triangle):
    p3, p5, values = triangle
    assert p3.min() == p5.min() == 0 and p3.max() == p5.max() == (p3 + p5).max() == 1
    p4 = 1 - p3 - p5
    some = p4 > 1e-6
    np.testing.assert_allclose(values["CE"][some], -np.log(p4[some]), atol=2e-6)
    assert (values["CE"][~some] > 10).all()
    np.testing.assert_allclose(values["NTL-MSE"], (p5 - p3) ** 2, atol=5e-6)
    np.testing.assert_allclose(values["NTL-WAS"], p3 + p5, atol=2e-6)
    # Rows 3 to 5 of the kernel of width 2, and alpha, half over its mean row sum.
    near, far = np.exp(-1 / 8), np.exp(-4 / 8)
    kernel = np.array([[1, near, far], [near, 1, near], [far, near, 1]])
    degree = np.diag([4.817741, 4.941968, 4.941968])
    matrix = kernel + 0.118199451 * (degree - kernel)
    r = np.stack([p3, -(p3 + p5), p5])
    smmd = np.sum(r * (matrix @ r), axis=0)
    np.testing.assert_allclose(values["SMMD"], smmd, atol=5e-6)


@pytest.mark.parametrize(
    ("title", "offset"), [("DEL, logits log p", 0), ("DEL, logits log p + 10", 10)]
)
def test_the_triangles_of_del_are_weighted_binary_entropies(triangle, title, offset):
    p3, p5, values = triangle
    p4, shift = 1 - p3 - p5, np.exp(offset)
    wrong = p3 * np.log1p(shift * p3) + p5 * np.log1p(shift * p5)
    some = p4 > 1e-6
    right = np.where(some, p4 * np.log1p(1 / (shift * np.where(some, p4, 1))), 0)
    np.testing.assert_allclose(values[title], 0.2 * (wrong + right), atol=5e-6)


def test_another_label_would_be_noticed(script, triangle, monkeypatch):
    monkeypatch.setitem(script.by_prediction.__globals__, "LABEL", 5)
    wrong = values_by_title(script.by_prediction())
    for title, golden in GOLDEN.items():
        assert differ(wrong[title], golden), title
    p3, p5, right = triangle
    for t in script.over_simplex(p3, p5):
        assert np.abs(t.values - right[t.title]).max() > 0.01, t.title


def test_the_script_writes_both_figures(tmp_path, monkeypatch):
    image = pytest.importorskip("matplotlib.image")
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(tmp_path)])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    for name in NAMES:
        drawn = image.imread(tmp_path / name)
        kept = image.imread(FIGURES / name)
        assert drawn.shape[:2] == kept.shape[:2]
        assert len(np.unique(drawn.reshape(-1, drawn.shape[-1]), axis=0)) > 20
        assert (FIGURES / name).stat().st_size < LARGEST_FILE

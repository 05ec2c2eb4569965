"""Draws the two figures of docs/losses.md by evaluating the losses.

    python docs/figures/plot_losses.py [FOLDER]

It needs matplotlib (extra ``plots``) and writes losses_by_prediction.png and
losses_simplex.png to FOLDER, by default the folder of this file.
"""

import io
import pathlib
import sys
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ntl_jax import losses
from ntl_jax.losses import baselines, distances
from ntl_jax.numbers.vocab import NumberVocab

DIGITS = 10
LABEL = 4
# A language model has other tokens too; here they have probability 0.
VOCAB = NumberVocab.from_mapping(
    {str(d): d for d in range(DIGITS)} | {"a": DIGITS}, vocab_size=DIGITS + 1
)
CORNERS = (3, LABEL, 5)  # the digits of the second figure
OFFSET = 10.0  # added to all logits of its last panel
RESOLUTION = 80  # steps along a side of its triangles
BOUND = 5.0  # upper end of its colour scale; cross-entropy is unbounded

CROSS_ENTROPY, NTL, OTHER_PAPERS = "#555555", "#0b6e99", "#b5541c"


class Panel(NamedTuple):
    """A loss to draw.

    Attributes:
        title: its name and options.
        unit: of its values.
        values: one per prediction.
        colour: of its kind of loss.
    """

    title: str
    unit: str
    values: np.ndarray
    colour: str


class Triangle(NamedTuple):
    """A loss over all distributions on three digits.

    Attributes:
        title: its name.
        unit: of its values.
        values: [N], one per point of `simplex`.
    """

    title: str
    unit: str
    values: np.ndarray


def by_prediction() -> list[Panel]:
    """Every loss for label 4 and a model that bets on 0, 1, ... 9.

    The digit that is bet on has logit 5, the others 0.01, as in Figure 1b of Regress,
    Don't Guess.
    """
    logits = jnp.full((DIGITS, DIGITS), 0.01) + jnp.eye(DIGITS) * 4.99
    logits = with_no_text(logits)
    labels = jnp.full(DIGITS, LABEL)

    def of(loss, **options):
        return np.asarray(loss(logits, labels, VOCAB, **options))

    def alone(loss):  # rows of one position, for a loss that reads whole rows
        return np.asarray(loss(logits[:, None], labels[:, None], VOCAB))[:, 0]

    squashed = distances.squashed(VOCAB, 3.0)
    circular = distances.circular(VOCAB, 7)
    target = losses.gaussian_targets(labels, VOCAB, 1.0)
    ce = np.asarray(losses.cross_entropy(logits, labels))
    cdf = of(losses.ntl_was_cdf, target=target)
    gce = of(losses.gaussian_cross_entropy, sigma=1.0)
    return [
        Panel("CE", "nats", ce, CROSS_ENTROPY),
        Panel("NTL-WAS", "digits", of(losses.ntl_was), NTL),
        Panel(
            "NTL-WAS, squashed, s = 3",
            "no unit",
            of(losses.ntl_was, distance=squashed),
            NTL,
        ),
        Panel(
            "NTL-WAS, circular, p = 7",
            "digits",
            of(losses.ntl_was, distance=circular),
            NTL,
        ),
        Panel("NTL-MSE", "digits²", of(losses.ntl_mse), NTL),
        Panel("NTL-MAE", "digits", of(losses.ntl_mae), NTL),
        Panel(r"NTL-Huber, $\delta$ = 1", "digits²", of(losses.ntl_huber), NTL),
        Panel(r"NTL-WAS to a Gaussian, $\sigma$ = 1", "digits", cdf, NTL),
        Panel(r"GCE, $\sigma$ = 1", "nats", gce, OTHER_PAPERS),
        Panel(r"DIST2, $\tau$ = 1", "nats", of(baselines.dist2), OTHER_PAPERS),
        Panel("SMMD", "no unit", of(baselines.smmd), OTHER_PAPERS),
        Panel("DEL", "no unit", alone(baselines.digit_entropy), OTHER_PAPERS),
    ]


def simplex() -> tuple[np.ndarray, np.ndarray]:
    """(p3, p5), [N] each: probabilities of 3 and 5 on a grid; 4 has the remainder."""
    steps = np.arange(RESOLUTION + 1)
    first, last = np.meshgrid(steps, steps)
    inside = first + last <= RESOLUTION
    return first[inside] / RESOLUTION, last[inside] / RESOLUTION


def over_simplex(p3: np.ndarray, p5: np.ndarray) -> list[Triangle]:
    """Losses for label 4 where 3, 4 and 5 have all the probability.

    Args:
        p3: the probability of 3, [N].
        p5: the probability of 5, [N].

    Returns:
        A `Triangle` for each of six losses.
    """
    p = np.zeros((len(p3), DIGITS), np.float32)
    p[:, CORNERS] = np.stack([p3, 1 - p3 - p5, p5], axis=-1).clip(0)
    with np.errstate(divide="ignore"):
        logits = jnp.asarray(np.log(p))
    logits = with_no_text(logits)
    labels = jnp.full(len(p3), LABEL)

    def digit_entropy(offset):
        rows = (logits + offset)[:, None]
        return np.asarray(baselines.digit_entropy(rows, labels[:, None], VOCAB))[:, 0]

    def of(loss):
        return np.asarray(loss(logits, labels, VOCAB))

    ce = np.asarray(losses.cross_entropy(logits, labels))
    return [
        Triangle("CE", "nats", ce),
        Triangle("NTL-MSE", "digits²", of(losses.ntl_mse)),
        Triangle("NTL-WAS", "digits", of(losses.ntl_was)),
        Triangle("SMMD", "no unit", of(baselines.smmd)),
        Triangle("DEL, logits log p", "no unit", digit_entropy(0.0)),
        Triangle(f"DEL, logits log p + {OFFSET:g}", "no unit", digit_entropy(OFFSET)),
    ]


def with_no_text(logits: jnp.ndarray) -> jnp.ndarray:
    """Digit logits [N, 10] and a last column without probability."""
    return jnp.pad(logits, ((0, 0), (0, 1)), constant_values=-jnp.inf)


def draw_by_prediction(panels: list[Panel], path: pathlib.Path) -> None:
    """Writes the panels as small multiples."""
    plt = _pyplot()
    figure, axes = plt.subplots(
        3, 4, figsize=(11, 6.6), sharex=True, layout="constrained"
    )
    for axis, panel in zip(axes.flat, panels, strict=True):
        axis.axvline(LABEL, color="0.8", linewidth=6, zorder=0)
        axis.plot(panel.values, color=panel.colour, marker="o", markersize=4)
        axis.set_title(panel.title, fontsize=9.5, loc="left", color=panel.colour)
        axis.set_ylabel(panel.unit, fontsize=8)
        axis.set_ylim(0, 1.1 * panel.values.max())
        axis.set_xticks(range(DIGITS))
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("predicted digit (logit 5, the others 0.01)", fontsize=10)
    figure.suptitle("Loss of a position whose label is 4 (grey)", fontsize=11)
    _save(plt, figure, path)


def draw_simplex(
    p3: np.ndarray, p5: np.ndarray, triangles: list[Triangle], path: pathlib.Path
) -> None:
    """Writes the triangles as heat maps, with a dot at each lowest value."""
    plt = _pyplot()
    figure, axes = plt.subplots(2, 3, figsize=(10, 6.6), layout="constrained")
    for axis, triangle in zip(axes.flat, triangles, strict=True):
        values = np.minimum(triangle.values, BOUND)
        levels = np.linspace(values.min(), values.max(), 21)
        filled = axis.tricontourf(p3, p5, values, levels=levels, cmap="viridis")
        axis.tricontour(
            p3, p5, values, levels=levels[2:-1:3], colors="white", linewidths=0.5
        )
        lowest = values <= values.min() + 1e-6 * np.ptp(values)
        axis.plot(
            p3[lowest], p5[lowest], "o", color="#e8413b", markersize=4, clip_on=False
        )
        axis.set_title(triangle.title, fontsize=10, loc="left")
        axis.set(aspect="equal", xlabel="probability of 3", ylabel="probability of 5")
        axis.spines[["top", "right"]].set_visible(False)
        bar = figure.colorbar(filled, ax=axis, shrink=0.8, format="%.2f")
        bar.set_ticks(np.linspace(levels[0], levels[-1], 5))
        bar.ax.set_title(triangle.unit, fontsize=8)
        bar.ax.tick_params(labelsize=8)
        axis.tick_params(labelsize=8)
    figure.suptitle(
        "Loss where the label is 4, which has the rest of the probability "
        f"(red: lowest; CE cut at {BOUND:g})",
        fontsize=11,
    )
    _save(plt, figure, path)


def main(folder: pathlib.Path) -> None:
    """Draws both figures into a folder."""
    draw_by_prediction(by_prediction(), folder / "losses_by_prediction.png")
    points = simplex()
    draw_simplex(*points, over_simplex(*points), folder / "losses_simplex.png")


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _save(plt: Any, figure: Any, path: pathlib.Path) -> None:
    from PIL import Image  # comes with matplotlib

    # 256 colours are enough, at a third of the size.
    pixels = io.BytesIO()
    figure.savefig(pixels, dpi=120)
    plt.close(figure)
    Image.open(pixels).convert("RGB").quantize(256).save(path, optimize=True)


if __name__ == "__main__":
    here = pathlib.Path(__file__).parent
    main(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here)

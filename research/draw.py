"""The figures of research/ and the one on the front page, drawn from what make.py reads."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

if TYPE_CHECKING:
    import numpy as np
    from evaluations import Runs

CONTROLS = ("grpo", "grpo, small steps")
SHOWN = ("maxrl", "max@1+16+112, decay", "max@1+16+64 1:2:4, decay")
TABLES_ONLY = ("max@1+16+64 3:4:5, decay", "max@1+16+64, decay")
"""Arms whose points would cover that of `max@1+16+112, decay`."""
COLOURS = ("#4477aa", "#228833", "#aa3377", "#ccbb44", "#66ccee", "#999933", "#882255", "#117733",
           "#332288", "#44aa99", "#997700", "#8899dd")  # fmt: skip
plt.style.use(Path(__file__).parent.parent / "docs" / "figures.mplstyle")


def coloured(names: Iterable[str], *first: str) -> Iterator[tuple[str, str]]:
    """Each name with a colour, these before the others; colours repeat, no name is left out."""
    for name, colour in zip(names, chain(first, cycle(COLOURS)), strict=False):
        yield name, SMALL if name == "mean" else colour


BEFORE, GRPO, SMALL, MIXTURE = "#777777", "#bb5566", "#dd9aa4", "#004488"
"""Of one meaning on all pages: before training, one sample (twice), training for k."""
TINY_LINES = {
    "start": ("before training", BEFORE, 4, (8, -8), "left"),
    "grpo": ("GRPO", GRPO, 64, (0, -17), "center"),
    "grpo, small steps": ("GRPO, small steps", SMALL, 128, (6, 8), "center"),
    "max@1+16+112, decay": ("max@1+16+112", MIXTURE, 16, (-8, 5), "right"),
}
REAL_LINES = {
    "start": ("before training", BEFORE, 8, (9, -9), "left"),
    "grpo 2e-6": ("GRPO", GRPO, 4, (10, -9), "left"),
    "grpo 1e-6": ("GRPO, half the rate", SMALL, 16, (-7, 8), "right"),
    "max@1+4+16 2e-6": ("max@1+4+16", MIXTURE, 64, (-7, 6), "right"),
}
"""The lines of the front page: label, colour, and the label's k, offset and side."""


def over_k(axis: plt.Axes, ks: Sequence[int], ylabel: str, xlabel: str = "k") -> None:
    """A logarithmic axis with a tick at each k."""
    axis.set_xscale("log", base=2)
    axis.set_xticks(ks, [str(k) for k in ks])
    axis.set(xlabel=xlabel, ylabel=ylabel)


def draw_hero(tiny: tuple[Runs, np.ndarray], real: tuple[Runs, np.ndarray]) -> None:
    """pass@k over k: the start, GRPO at two rates, and the recommended mixture, on a tiny task and
    with a real model. Each has its runs and the start."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.2))
    titles = ("Countdown, 0.2 M parameters", "LeetCode, Qwen2.5-Coder-0.5B")
    panels = zip(axes, titles, (tiny, real), (TINY_LINES, REAL_LINES), strict=True)
    for axis, title, (runs, start), lines in panels:
        for arm, (label, colour, at, away, side) in lines.items():
            curve = (start if arm == "start" else runs.last(arm)).mean(axis=(0, 1))
            width, marker = (1.6, "s") if arm == "start" else (2.2, "o")
            axis.plot(runs.ks, curve, color=colour, lw=width, marker=marker, ms=4)
            where: Any = {"textcoords": "offset points", "ha": side, "color": colour}
            axis.annotate(label, (at, curve[runs.ks.index(at)]), away, weight="bold", **where)
        over_k(axis, runs.ks, "pass@k", "k samples per problem")
        axis.set_title(title, size=11, loc="left")
    figure.tight_layout()


CONSTRUCT_LINES: dict[str, Any] = {
    "start": ("before training", BEFORE, 4, (8, -14), "left", "start"),
    "one sample, chosen by max@16": ("one sample", GRPO, 32, (4, -16), "right", ("mean", "grpo")),
    "`max@1+4+16`": ("max@1+4+16", "#6699cc", 4, (-6, 7), "right", "max@1+"),
    "`max@16`": ("max@16", MIXTURE, 2, (8, -9), "left", "max@16"),
}
"""By row of the table: label, colour, the label's k, offset and side, and the runs of its kind."""
GUESTS_LINES: dict[str, Any] = {
    "start": ("before training", BEFORE, 4, (8, -14), "left", "start"),
    "one sample, chosen by max@16": ("one sample, at 16", GRPO, 64, (6, -52), "right", ()),
    "one sample, chosen by max@1": ("one sample", GRPO, 64, (6, -16), "right", ("mean", "grpo")),
    "`max@1+4+16`": ("max@1+4+16", "#6699cc", 4, (-6, 6), "right", "max@1+"),
    "`max@16`": ("max@16", MIXTURE, 16, (-8, 4), "right", "max@16"),
}


def draw_construct(
    ks: tuple[int, ...],
    found: dict[tuple[str, int], np.ndarray],
    picked: dict[str, tuple[str, int]],
    curves: tuple[tuple[int, ...], dict[str, np.ndarray]] | None = None,
    places: dict[str, Any] = CONSTRUCT_LINES,
) -> None:
    """max@k over k of the checkpoints that validation picks, or the `curves` that they have on test
    problems; best of 16 over the steps of every run, those of the picked checkpoints in bold."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2))
    many, start = ks.index(16), found[picked["start"]]
    shown, lines = curves or (ks, {name: found[key].mean(axis=0) for name, key in picked.items()})
    for name, (label, colour, k, away, side, runs) in places.items():
        curve = lines[name]
        left.plot(shown, curve, color=colour, lw=2.2, marker="o", ms=4)
        where: Any = {"textcoords": "offset points", "ha": side, "color": colour}
        left.annotate(label, (k, curve[shown.index(k)]), away, weight="bold", **where)
        for arm in sorted({arm for arm, step in found if step and arm.startswith(runs)}):
            steps = sorted(step for run, step in found if run == arm)
            path = [start, *(found[arm, step] for step in steps)]
            bold = arm in {run for run, _ in picked.values()}
            look = {"lw": 2.2, "marker": "o", "ms": 4} if bold else {"lw": 0.8, "alpha": 0.7}
            right.plot([0, *steps], [v[:, many].mean() for v in path], color=colour, **look)
    right.axhline(start[:, many].mean(), color=BEFORE, lw=1.2)
    over_k(left, shown, "reward of the best", "k samples per problem, the best is kept")
    right.set(xlabel="steps of training", ylabel="reward of the best of 16")
    left.set_title("At best of 16, training for k is ahead", size=11, loc="left")
    figure.tight_layout()


def draw_front(runs: Runs) -> None:
    """Left: pass@1 against pass@64, GRPO's checkpoints as a path. Right: curves over k."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.4))
    one, many = 0, runs.ks.index(64)
    for control, style in zip(CONTROLS, ("-", "--"), strict=True):
        path = runs.path(control).mean(axis=1)
        left.plot(path[:, one], path[:, many], style, color=GRPO, marker=".", lw=1)
        left.annotate(
            control, path[-1, [one, many]], (4, -12), textcoords="offset points", ha="center",
            color=GRPO,
        )  # fmt: skip
    start = runs.start().mean(axis=(0, 1))
    left.plot(start[one], start[many], "s", color=BEFORE)
    left.annotate("start", start[[one, many]], (-4, 7), textcoords="offset points", ha="center")
    drawn = [arm for arm in runs.arms if arm not in CONTROLS + TABLES_ONLY]
    for arm, colour in coloured(drawn):
        path = runs.path(arm).mean(axis=1)[:, [one, many]]
        left.plot(*path.T, color=colour, marker=".", ms=3, lw=0.6, alpha=0.5)
        means = runs.last(arm).mean(axis=1)
        middle, spread = means.mean(axis=0), means.std(axis=0, ddof=1)
        left.errorbar(middle[one], middle[many], spread[many], spread[one], "o", color=colour, ms=5)
        away, side = LABELS.get(arm, ((6, 6), "left"))
        where = {"textcoords": "offset points", "ha": side, "color": colour, "size": 9}
        left.annotate(arm, middle[[one, many]], away, **where)
    left.set(xlabel="pass@1", ylabel="pass@64")
    chosen = ("grpo", *(arm for arm in SHOWN if arm in runs.arms))
    right.plot(runs.ks, start, color=BEFORE, marker="s", ms=4, label="start")
    for arm in chosen:
        colour = GRPO if arm in CONTROLS else COLOURS[drawn.index(arm) % len(COLOURS)]
        right.plot(runs.ks, runs.last(arm).mean(axis=(0, 1)), color=colour, marker=".", label=arm)
    over_k(right, runs.ks, "pass@k")
    right.legend(frameon=False)
    figure.tight_layout()


def draw_tasks(maze: Runs, closeness: Runs) -> None:
    """The front on the two other tasks: one sample against 64, the mean over seeds, and GRPO's
    checkpoints as a path."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 4))
    for axis, (runs, metric, title) in zip(
        axes,
        ((maze, "pass", "Mazes"), (closeness, "max", "Countdown with partial credit")),
        strict=True,
    ):
        many = runs.ks.index(64)
        points = {"start": runs.start()} | {arm: runs.last(arm) for arm in runs.arms}
        if len(runs.steps("grpo")) > 2:
            path = runs.path("grpo").mean(axis=1)[:, [0, many]]
            axis.plot(*path.T, color=GRPO, marker=".", ms=3, lw=0.6, alpha=0.5)
        for arm, colour in coloured(points, BEFORE, GRPO):
            means = points[arm].mean(axis=1)
            (x, y), spread = means.mean(axis=0)[[0, many]], means.std(axis=0, ddof=1)
            axis.errorbar(x, y, spread[many], spread[0], "s" if arm == "start" else "o",
                          color=colour, ms=5)  # fmt: skip
            away, side = TASK_LABELS.get(arm, ((7, 6), "left"))
            axis.annotate(arm, (x, y), away, textcoords="offset points", ha=side, color=colour,
                          size=9)  # fmt: skip
        axis.margins(0.15)
        axis.set(title=title, xlabel=f"{metric}@1", ylabel=f"{metric}@64")
    figure.tight_layout()


def draw_real_model(runs: Runs, start: np.ndarray) -> None:
    """SmolLM2: pass@k over k, and how far above the start, one thin line per seed."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    left.plot(runs.ks, start.mean(axis=(0, 1)), color=BEFORE, marker="s", ms=4, label="start")
    for arm, colour in coloured(runs.arms, GRPO):
        last = runs.last(arm)
        left.plot(runs.ks, last.mean(axis=(0, 1)), color=colour, marker=".", label=arm)
        above = last.mean(axis=1) - start.mean(axis=(0, 1))
        right.plot(runs.ks, above.T, color=colour, lw=0.6, alpha=0.5)
        right.plot(runs.ks, above.mean(axis=0), color=colour, marker=".", label=arm)
    right.axhline(0, color=BEFORE, lw=1)
    for axis, label in ((left, "pass@k"), (right, "pass@k above the start")):
        over_k(axis, runs.ks, label)
    left.legend(frameon=False)
    figure.tight_layout()


def draw_curves(constant: Runs, falling: Runs, k: int) -> None:
    """max@k over rollouts and over time: lines, with a constant rate; points over rollouts, with a
    rate that falls to 0, where each is a run of its own length. 1,024 rollouts a batch."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True)
    at = constant.ks.index(k)
    for arm, colour in coloured(constant.arms, "black"):
        steps = constant.steps(arm)
        seconds = [constant.seconds[arm, step] for step in steps]
        values = constant.path(arm).mean(axis=1)[:, at]
        for axis, x in zip(axes, ([1.024 * step for step in steps], seconds), strict=True):
            axis.plot(x, values, color=colour, marker=".", lw=1, label=arm)
    for ending, marker, colour in ((" 1 step", "s", "black"), (" 6 passes, exact", "D", "#cc3311")):
        arms = [arm for arm in falling.arms if arm.endswith(ending)]
        ends = sorted((falling.steps(arm)[-1], arm) for arm in arms)
        values = [falling.last(arm)[..., at].mean() for _, arm in ends]
        label = f"{ending.strip()}, rate falls to 0"
        rollouts = [1.024 * step for step, _ in ends]
        axes[0].plot(rollouts, values, marker, color=colour, ms=6, mfc="none", label=label)
    axes[0].set(xlabel="thousand rollouts", ylabel=f"max@{k}")
    axes[1].set(xlabel="seconds of training on a CPU core")
    axes[0].legend(frameon=False)
    figure.tight_layout()


CORRECTIONS = ("#997700", "#228833", "#aa3377", "#6699cc", MIXTURE)
"""Blue where the gradient of the best of k stays exact."""


def draw_staleness(runs: Runs, control: str) -> None:
    """Loss of max@1 and max@8 against how many steps ahead batches were drawn, one line per
    correction; bars are standard errors over seeds of the difference to the control."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 4))
    names = dict.fromkeys(arm.rpartition(", ")[0] for arm in runs.arms if arm != control)
    for axis, k in zip(axes, (1, 8), strict=True):
        at = runs.ks.index(k)
        for place, (name, colour) in enumerate(zip(names, CORRECTIONS, strict=True)):
            found = {
                int(arm.rpartition(", ")[2].split()[0]): 100
                * (runs.last(control) - runs.last(arm))[..., at].mean(axis=1)
                for arm in runs.arms
                if arm.rpartition(", ")[0] == name
            }
            shown = [s * 1.03 ** (place - 2) for s in sorted(found)]
            middle = [found[s].mean() for s in sorted(found)]
            spread = [found[s].std(ddof=1) / len(found[s]) ** 0.5 for s in sorted(found)]
            axis.errorbar(shown, middle, spread, color=colour, marker="o", ms=4, lw=1.4, label=name)
        axis.axhline(0, color="gray", lw=1)
        axis.axhline(3, color="gray", lw=1, ls=":")
        over_k(axis, sorted(found), f"points of max@{k} lost", "steps ahead")
    axes[0].legend(frameon=False)
    figure.tight_layout()


LABELS = {
    "maxrl": ((8, -9), "left"),
    "max@1+64": ((8, 1), "left"),
    "max@1+16+64, KL": ((9, 3), "left"),
    "max@1+16+64 1:2:4, decay": ((9, 3), "left"),
    "max@1+16+112, decay": ((9, 3), "left"),
    "maxrl+max@64, KL": ((-8, -31), "right"),
    "passk-training@16": ((-8, 6), "right"),
    "max@1..16": ((-8, -7), "right"),
    "max@64": ((0, -15), "center"),
    "maxrl, KL": ((0, -27), "center"),
}
"""Where names stand beside their points: in points, and which end."""
TASK_LABELS = {
    "max@8": ((7, -13), "left"),
    "max@8:loo": ((-7, -13), "right"),
    "grpo": ((-8, -13), "right"),
    "grpo, small steps": ((-8, -4), "right"),
    "max@16": ((13, -4), "left"),
    "max@32": ((6, 8), "left"),
    "max@64": ((-2, 8), "center"),
    "max@112": ((0, -15), "center"),
    "maxrl": ((-8, -4), "right"),
    "passk-training@16": ((-2, 9), "center"),
    "max@8:zscore": ((-7, -4), "right"),
    "max@1+4+16": ((8, 1), "left"),
    "max@2": ((8, -8), "left"),
    "bon-max-mean": ((-7, -10), "right"),
    "bon-max-second": ((-4, 11), "center"),
}


def picture() -> str:
    """The figure that was drawn last, as SVG."""
    file = io.StringIO()
    plt.savefig(file, metadata={"Date": None})
    plt.close()
    return file.getvalue()

"""Power and error of `bestofk compare` against t, sign flips and Wilcoxon, for 8 to 60 problems.

    python research/power.py                     writes research/images/power.svg (half an hour)
    python research/power.py --trials 100        a quick look

Left and middle: how often a real difference is found. Right: how often runs that are equally good
are called different, where one problem in twelve falls from .9 to .1 and all others gain: tests
that assume symmetry are wrong there whenever the sample misses the losses.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.stats import ttest_1samp, wilcoxon

from bestofk.evaluation import compare, samples
from bestofk.evaluation.sign_flips import sign_flip_tests

PROBLEMS = (8, 10, 12, 15, 18, 22, 26, 29, 30, 34, 40, 50, 60)
N = 64
Chances = tuple[np.ndarray, np.ndarray]


def every_problem_gains(problems: int, rng: np.random.Generator) -> Chances:
    """The same gain in success probability, as far as there is room."""
    chance = rng.beta(0.4, 0.6, problems)
    return chance, np.minimum(chance + 0.06, 1.0)


def some_gain_some_lose(problems: int, rng: np.random.Generator) -> Chances:
    """A gain of .1 on average, and a spread of .15 over problems."""
    chance = rng.beta(2.0, 2.0, problems)
    return chance, np.clip(chance + rng.normal(0.1, 0.15, problems), 0.0, 1.0)


def rare_large_losses(problems: int, rng: np.random.Generator) -> Chances:
    """Equally good at k = 1: 1/12 · .8 = 11/12 · .8/11."""
    lost = rng.random(problems) < 1 / 12
    return np.where(lost, 0.9, 0.1), np.where(lost, 0.1, 0.1 + 0.8 / 11)


CASES: dict[str, tuple[Callable[[int, np.random.Generator], Chances], int, str]] = {
    "power: +.06 on every problem, pass@8": (every_problem_gains, 8, "found"),
    "power: +.1 ± .15, pass@1": (some_gain_some_lose, 1, "found"),
    "error: rare large losses, pass@1": (rare_large_losses, 1, "called different"),
}
TESTS = ("bestofk compare --at k", "paired t", "sign flips", "Wilcoxon")


def decisions(case: str, problems: int, trial: int) -> list[bool]:
    """Whether each of TESTS has p ≤ .05 on one simulated pair of runs."""
    draw, k, _ = CASES[case]
    rng = np.random.default_rng([trial, problems])
    a, b = (
        samples((rng.random((problems, N)) < chance[:, None]).astype(float), name=name)
        for chance, name in zip(draw(problems, rng), "ab")
    )
    one = compare([a, b], at=[k], resamples=1000, seed=trial)[0]
    gap = (one.values_b - one.values_a)[:, 0]
    flips = sign_flip_tests(gap[:, None], 0.95, 1000, rng).p_value[0]
    t = ttest_1samp(gap, 0.0).pvalue if np.ptp(gap) > 0 else float(not gap.any())
    signed = wilcoxon(gap).pvalue if np.abs(gap).max() > 1e-9 else 1.0
    return [bool(p <= 0.05) for p in (one.p_value[0], t, flips, signed)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--out", type=Path, default=Path("research/images/power.svg"))
    chosen = parser.parse_args()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from bestofk.evaluation.charts import COLOURS, STYLE

    with rc_context(STYLE):
        figure = Figure(figsize=(9.0, 3.1), layout="constrained")
        for axes, case in zip(figure.subplots(1, 3), CASES):
            shares = np.array(
                [
                    np.mean([decisions(case, p, trial) for trial in range(chosen.trials)], axis=0)
                    for p in PROBLEMS
                ]
            )
            print(case)
            for p, row in zip(PROBLEMS, shares):
                print(f"  {p:3d} problems  " + "  ".join(f"{x:.3f}" for x in row), flush=True)
            for name, line, colour in zip(TESTS, shares.T, (COLOURS[1], *COLOURS[2:5])):
                own = name == TESTS[0]
                axes.plot(PROBLEMS, line, label=name, color=colour, lw=2.2 if own else 1.1)
            axes.set(title=case, xlabel="problems", ylabel=f"share {CASES[case][2]}", ylim=(0, 1))
            if case.startswith("error"):
                axes.axhline(0.05, color="#59606b", lw=0.8, ls=":")
                axes.set_ylim(0, 0.5)
                axes.legend()
        figure.supxlabel(
            f"n = {N} samples per problem; two-sided tests at .05; {chosen.trials} simulated pairs "
            "of runs a point (standard error at most "
            f"{0.5 / np.sqrt(chosen.trials):.3f}); dotted: .05",
            fontsize=6,
            color="#59606b",
        )
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(chosen.out, metadata={"Date": None})


if __name__ == "__main__":
    main()

"""How often intervals hold: simulated runs whose truth is known.

    python benchmarks/coverage.py                                            a quick look
    python benchmarks/coverage.py --trials 400 --write research/coverage.md      the published page

Problems are drawn from Beta(a, b), n samples from each; the truth over problems is
1 - B(a, b + k)/B(a, b), the truth for a fixed set is its own mean of 1 - (1 - p)^k.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from dataclasses import dataclass, field
from math import exp, lgamma
from pathlib import Path
from typing import Any

import numpy as np

from bestofk.evaluation import Samples, compare, curve, plan, population, samples
from bestofk.evaluation.intervals import t_quantile
from bestofk.evaluation.planning import pair_of

POPULATIONS = {
    "easy, Beta(8, 1)": (8.0, 1.0),
    "easy, Beta(2, 1)": (2.0, 1.0),
    "middling, Beta(2, 2)": (2.0, 2.0),
    "U-shaped, Beta(.3, .3)": (0.3, 0.3),
    "hard, Beta(.3, 3)": (0.3, 3.0),
    "hard, Beta(.1, 2)": (0.1, 2.0),
}
PROBLEMS = (30, 100, 500)


def truth(a: float, b: float, k: int) -> float:
    return 1 - exp(lgamma(b + k) - lgamma(b) + lgamma(a + b) - lgamma(a + b + k))


@dataclass
class Tally:
    """Counts at one k."""

    interval: int = 0
    fixed: int = 0
    widths: list[float] = field(default_factory=list)


def simulate(
    shape: tuple[float, float], problems: int, n: int, ks: list[int], trials: int, resamples: int
) -> tuple[dict[int, Tally], float]:
    """Tallies by k, and the share of trials whose band held at every k."""
    rng = np.random.default_rng(0)
    tallies = {k: Tally() for k in ks}
    every = np.array([truth(*shape, k) for k in range(1, n + 1)])
    band = 0
    for trial in range(trials):
        chance = rng.beta(*shape, problems)
        drawn = rng.random((problems, n)) < chance[:, None]
        found = curve(samples(drawn.astype(float)), "pass@k", resamples=resamples, seed=trial)
        band += bool(((found.band.low <= every) & (every <= found.band.high)).all())
        for k, tally in tallies.items():
            at = k - 1
            here = float((1 - (1 - chance) ** k).mean())
            held = bool(found.interval.low[at] <= every[at] <= found.interval.high[at])
            tally.interval += held
            tally.fixed += bool(found.fixed.low[at] <= here <= found.fixed.high[at])
            tally.widths.append(float(found.interval.high[at] - found.interval.low[at]))
    return tallies, band / trials


def pair(chances: tuple[np.ndarray, np.ndarray], n: int, rng: np.random.Generator) -> list[Samples]:
    return [
        samples((rng.random((len(chance), n)) < chance[:, None]).astype(float), name=name)
        for name, chance in zip("ab", chances)
    ]


def equal_runs(kind: str, problems: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Success probabilities of two runs that are equally good over all problems."""
    if kind == "rare large losses":  # one problem in twelve falls from .9 to .1, the rest gain
        lost = rng.random(problems) < 1 / 12
        return np.where(lost, 0.9, 0.1), np.where(lost, 0.1, 0.1 + 0.8 / 11)
    shape = POPULATIONS[kind]
    first, second = rng.beta(*shape, problems), rng.beta(*shape, problems)
    swap = rng.random(problems) < 0.5
    return np.where(swap, first, second), np.where(swap, second, first)


def paired(kind: str, problems: int, n: int, trials: int) -> tuple[float, float, float]:
    """Equally good runs: how often the band holds 0 at every k, any k is called different, and the

    verdict and the band contradict each other at some k. Only k = 1 is equal for rare losses.
    """
    rng = np.random.default_rng(1)
    held = wrong = apart = 0
    for trial in range(trials):
        runs = pair(equal_runs(kind, problems, rng), n, rng)
        at = [1] if kind == "rare large losses" else None
        found = compare(runs, at=at, resamples=1000, seed=trial)[0]
        outside = (found.band.low > 0) | (found.band.high < 0)
        held += not outside.any()
        wrong += bool((found.p_value <= 0.05).any())
        apart += bool((outside != (found.p_value <= 0.05)).any())
    return held / trials, wrong / trials, apart / trials


def power(problems: int, gain: float, k: int, n: int, trials: int) -> tuple[float, float, float]:
    """How often a gain is found at k: over all k, at this k alone, and by a paired t test."""
    rng = np.random.default_rng(2)
    every = alone = student = 0
    for trial in range(trials):
        chance = rng.beta(0.4, 0.6, problems)
        runs = pair((chance, np.clip(chance + gain, 0, 1)), n, rng)
        every += bool(compare(runs, resamples=1000, seed=trial)[0].p_value[k - 1] <= 0.05)
        one = compare(runs, at=[k], resamples=1000, seed=trial)[0]
        alone += bool(one.p_value[0] <= 0.05)
        gap = (one.values_b - one.values_a)[:, 0]
        t = abs(gap.mean()) / (gap.std(ddof=1) / np.sqrt(problems))
        student += bool(t > t_quantile(0.975, problems - 1))
    return every / trials, alone / trials, student / trials


def planned(k: int, n: int, effect: float, trials: int) -> tuple[int, float, float]:
    """A plan for power .8 over all k: its problems, the power promised and what came."""
    people = population(shape=(0.4, 0.6))
    row = plan(k, power=0.8, effect=effect, people=people, n=[n]).best
    drawn = pair_of(people, k, effect)
    rng = np.random.default_rng(3)
    found = 0
    for trial in range(trials):
        first, second = drawn[:, rng.integers(0, drawn.shape[1], row.problems)]
        runs = pair((first, second), n, rng)
        found += bool(compare(runs, resamples=1000, seed=trial)[0].p_value[k - 1] <= 0.05)
    return row.problems, row.value, found / trials


def share(count: int, total: int) -> str:
    return f"{count / total:.3f}" if total >= 20 else "-"


# section of the page: its table's head, and what each part of it takes beside the trials
HEADS = {
    "curve": "| population | problems | truth | over problems | mean width | fixed set | band |",
    "pairs": "| population | problems | band holds 0 | any k called different | contradictions |",
    "power": "| problems | gain in p | k | over all k | at this k alone | paired t |",
    "plans": "| k | n | effect | problems planned | power promised | power that came |",
}
NULLS = ("easy, Beta(2, 1)", "U-shaped, Beta(.3, .3)", "hard, Beta(.1, 2)", "rare large losses")
PARTS: dict[str, list[tuple[Any, ...]]] = {
    "curve": [(name, problems) for name in POPULATIONS for problems in PROBLEMS],
    "pairs": [(name, problems) for name in NULLS for problems in (12, *PROBLEMS)],
    "power": [(30, 0.05, 8), (60, 0.05, 8), (100, 0.03, 1), (100, 0.03, 16)],
    "plans": [(1, 16, 0.05), (8, 16, 0.05), (8, 32, 0.08)],
}


def rows(part: tuple[str, int, int, int, int]) -> tuple[str, int, list[str]]:
    """The rows of a table that one part gives: (section, which part, trials, n, resamples)."""
    section, number, trials, n, resamples = part
    given = PARTS[section][number]
    if section == "curve":
        return section, number, curve_rows(*given, n, trials, resamples)
    if section == "pairs":
        cells = [f"{each:.3f}" for each in paired(*given, n, trials)]
    elif section == "power":
        cells = [f"{each:.2f}" for each in power(*given, 32, trials)]
    else:
        problems, promised, came = planned(*given, trials)
        cells = [f"{problems}", f"{promised:.2f}", f"{came:.2f}"]
    return section, number, ["| " + " | ".join([*map(str, given), *cells]) + " |"]


def curve_rows(name: str, problems: int, n: int, trials: int, resamples: int) -> list[str]:
    """One row; a cell has its figure at k = 1, 8 and n."""
    shape, ks = POPULATIONS[name], [1, 8, n]
    tallies, band = simulate(shape, problems, n, ks, trials, resamples)
    cells = [
        [f"{truth(*shape, k):.3f}" for k in ks],
        [share(tallies[k].interval, trials) for k in ks],
        [f"{np.mean(tallies[k].widths):.3f}" for k in ks],
        [share(tallies[k].fixed, trials) for k in ks],
    ]
    told = [", ".join(each) for each in cells]
    return ["| " + " | ".join([name, f"{problems}", *told, f"{band:.3f}"]) + " |"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--n", type=int, default=64)
    parser.add_argument("--resamples", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--rows", type=Path, help="keep finished parts here, and continue")
    parser.add_argument("--write", type=Path)
    asked = parser.parse_args()
    done: dict[tuple[str, int], list[str]] = {}
    if asked.rows and asked.rows.exists():
        for line in asked.rows.read_text(encoding="utf-8").splitlines():
            section, number, lines = json.loads(line)
            done[section, number] = lines
    left = [
        (section, number, asked.trials, asked.n, asked.resamples)
        for section in reversed(PARTS)  # the slow ones first
        for number in range(len(PARTS[section]))
        if (section, number) not in done
    ]
    with multiprocessing.Pool(asked.jobs) as pool:
        for section, number, lines in pool.imap_unordered(rows, left):
            done[section, number] = lines
            print(*lines, sep="\n", flush=True)
            if asked.rows:
                with asked.rows.open("a", encoding="utf-8") as file:
                    print(json.dumps([section, number, lines]), file=file)
    if asked.write:
        tables = {
            section: "\n".join(
                [head, "|---|" + "---:|" * (head.count("|") - 2)]
                + [line for number in range(len(PARTS[section])) for line in done[section, number]]
            )
            for section, head in HEADS.items()
        }
        asked.write.write_text(page(asked, tables), encoding="utf-8")


def page(asked: argparse.Namespace, tables: dict[str, str]) -> str:
    error = np.sqrt(0.95 * 0.05 / asked.trials)
    return f"""# How often the intervals hold

Written by `python benchmarks/coverage.py --trials {asked.trials} --write research/coverage.md`:
simulated runs of n = {asked.n} samples per problem, {asked.resamples} resamples, pass@k, 95%
intervals, {asked.trials} runs a row, fixed seeds (standard error of a share of .95: {error:.3f}).
How to read the intervals: [evaluation](../docs/evaluation.md).

Cells have k = 1, 8 and {asked.n}. *Over problems* is the interval that is quoted (the bounded
bootstrap), for the population that the problems come from; *fixed set* the interval for these
problems alone; *band* holds for all k at once.

{tables["curve"]}

## Two runs of equal worth

Neither run is better, but they differ from problem to problem. *Any k called different* is the
share of comparisons with p ≤ .05 at some k ≤ {asked.n}: .05 is right, but for noise.
*Contradictions*: comparisons with a k at which p ≤ .05 and a band that holds 0, or the reverse.
In *rare large losses* one problem in twelve falls from .9 to .1 and the others gain, so that the
runs are equally good at k = 1 (tested with `--at 1`). Sign flips alone are wrong there in about 31%
of the comparisons at 12 problems; [`compare` allows for it](../docs/evaluation.md#comparing-runs).

{tables["pairs"]}

## Power

Run b gains the same success probability on every problem (clipped at 1), Beta(.4, .6), n = 32.
`compare` tests every k, `compare --at K` one that was chosen beforehand. Student's t finds more
small gains because it does not allow for rare large losses.

{tables["power"]}

## Plans

`plan` for power .8 of the test over all k, Beta(.4, .6), and the share of simulated
comparisons that found the effect.

{tables["plans"]}
"""


if __name__ == "__main__":
    main()

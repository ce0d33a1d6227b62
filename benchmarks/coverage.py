"""How often intervals hold: simulated runs whose truth is known.

    python benchmarks/coverage.py                                          a quick look
    python benchmarks/coverage.py --trials 1000 --write docs/coverage.md   the published table

Problems are drawn from Beta(a, b), n samples from each; the truth over problems is
1 - B(a, b + k)/B(a, b), the truth for a fixed set is its own mean of 1 - (1 - p)^k.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from math import exp, lgamma
from pathlib import Path

import numpy as np

from bestofk.evaluation import compare, curve, samples
from bestofk.evaluation.intervals import LEAST_INFORMATIVE

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

    trials: int = 0
    informative: int = 0
    interval: int = 0
    interval_informative: int = 0
    t_given: int = 0
    t: int = 0
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
            enough = bool(found.informative[at] >= LEAST_INFORMATIVE)
            tally.trials += 1
            tally.informative += enough
            tally.interval += held
            tally.interval_informative += held and enough
            tally.fixed += bool(found.fixed.low[at] <= here <= found.fixed.high[at])
            if not np.isnan(found.t.low[at]):
                tally.t_given += 1
                tally.t += bool(found.t.low[at] <= every[at] <= found.t.high[at])
            tally.widths.append(float(found.interval.high[at] - found.interval.low[at]))
    return tallies, band / trials


def paired(
    shape: tuple[float, float], problems: int, n: int, k: int, trials: int
) -> tuple[float, float]:
    """Two runs of equal worth: how often the interval at k holds 0, and any k is called different.

    They differ on every problem (each is better on half of them), so the differences have a spread.
    """
    rng = np.random.default_rng(1)
    held = wrong = 0
    for trial in range(trials):
        first, second = rng.beta(*shape, problems), rng.beta(*shape, problems)
        swap = rng.random(problems) < 0.5
        chances = np.where(swap, first, second), np.where(swap, second, first)
        runs = [
            samples((rng.random((problems, n)) < chance[:, None]).astype(float), name=name)
            for name, chance in zip("ab", chances)
        ]
        found = compare(runs, resamples=1000, seed=trial)[0]
        held += bool(found.interval.low[k - 1] <= 0 <= found.interval.high[k - 1])
        wrong += bool((found.p_value <= 0.05).any())
    return held / trials, wrong / trials


def share(count: int, total: int) -> str:
    return f"{count / total:.3f}" if total >= 20 else "-"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--n", type=int, default=64)
    parser.add_argument("--resamples", type=int, default=1000)
    parser.add_argument("--write", type=Path)
    asked = parser.parse_args()
    ks = [1, 8, asked.n]
    head = (
        "| population | problems | k | truth | ≥ 10 differ | **over problems** | where ≥ 10 differ "
        "| mean width | t: given | t: holds | fixed set | band, all k |"
    )
    lines = [head, "|---|" + "---:|" * 11]
    for name, shape in POPULATIONS.items():
        for problems in PROBLEMS:
            tallies, band = simulate(shape, problems, asked.n, ks, asked.trials, asked.resamples)
            for k, tally in tallies.items():
                cells = [
                    name,
                    f"{problems}",
                    f"{k}",
                    f"{truth(*shape, k):.3f}",
                    f"{tally.informative / tally.trials:.2f}",
                    f"**{share(tally.interval, tally.trials)}**",
                    share(tally.interval_informative, tally.informative),
                    f"{np.mean(tally.widths):.3f}",
                    f"{tally.t_given / tally.trials:.2f}",
                    share(tally.t, tally.t_given),
                    share(tally.fixed, tally.trials),
                    f"{band:.3f}" if k == ks[0] else "",
                ]
                lines.append("| " + " | ".join(cells) + " |")
                print(lines[-1], flush=True)
    pairs = ["| population | problems | interval at k = 8 holds 0 | any k called different |"]
    pairs.append("|---|---:|---:|---:|")
    for name in ("easy, Beta(2, 1)", "U-shaped, Beta(.3, .3)", "hard, Beta(.1, 2)"):
        for problems in PROBLEMS:
            held, wrong = paired(POPULATIONS[name], problems, asked.n, 8, asked.trials)
            pairs.append(f"| {name} | {problems} | {held:.3f} | {wrong:.3f} |")
            print(pairs[-1], flush=True)
    if asked.write:
        asked.write.write_text(page(asked, lines, pairs), encoding="utf-8")


def page(asked: argparse.Namespace, lines: list[str], pairs: list[str]) -> str:
    error = np.sqrt(0.95 * 0.05 / asked.trials)
    return f"""# How often the intervals hold

Written by `python benchmarks/coverage.py --trials {asked.trials} --write docs/coverage.md`:
{asked.trials} runs per row, n = {asked.n} samples per problem, {asked.resamples} resamples,
pass@k, 95 % intervals. The standard error of a share of .95 is {error:.3f}. How to read the
intervals: [evaluation](evaluation.md).

- **over problems**: the interval that is quoted (the bounded bootstrap), for the population that
  the problems come from; *where ≥ 10 differ*: the same among runs in which ten or more problems
  differ from the floor and from the ceiling.
- **t: given / holds**: the share of runs in which Student's t is shown, and how often it holds.
- **fixed set**: the interval for these problems alone. **band**: all k at once.

{chr(10).join(lines)}

## Two runs of equal worth

Neither run is better, but they differ from problem to problem. The last column is the share of
comparisons that call any k ≤ {asked.n} different at p ≤ .05: .05 is right, but for noise.

{chr(10).join(pairs)}
"""


if __name__ == "__main__":
    main()

"""Do several optimiser steps per batch of rollouts pay? Learning curves of many small runs.

Every arm trains the same tiny policy on the same number of rollouts and differs in how it uses
them: one step per batch, mini-batches, or several passes. A run writes one JSON line: its
evaluations with the successes of every problem, its inner steps and its ratios.

    python benchmarks/inner_steps.py tune maze curves.jsonl          # a grid of learning rates
    python benchmarks/inner_steps.py final maze finals.jsonl --rates '{"one loo-1": 6e-4}'
    python benchmarks/inner_steps.py [--figure]      # the runs that docs/off-policy.md reports

Several processes may work on one file: each run is claimed by one of them.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import shutil
import signal
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np

RECIPES = Path(__file__).parent.parent / "recipes"
RESULTS = Path(__file__).parent / "results" / "inner-steps.jsonl"
SAMPLES = 32
"""n of training and of evaluation."""
ROLLOUTS = 40 * 64 * SAMPLES
"""Rollouts of a run; the arms with several passes see 40 % of them."""

SIZES = {"batch": 64, "large": 256, "small": 8}
"""Prompts in a batch."""


def arm(
    size: str = "batch",
    baseline: str = "loo-1",
    share: float = 1.0,
    objective: dict[str, Any] | None = None,
    loss: dict[str, Any] | None = None,
    **off_policy: Any,
) -> dict[str, Any]:
    """The settings of an arm, as nested tables of a recipe. A tenth of the steps is warm-up."""
    prompts = SIZES[size]
    steps = round(ROLLOUTS * share / (prompts * SAMPLES))
    inner = off_policy.get("passes", 1) * off_policy.get("mini_batches", 1)
    return {
        "objective": f"max@8:{baseline}" if baseline != "canonical" else "max@8",
        "objective_options": objective or {},
        "loss": loss or {},
        "off_policy": off_policy,
        "sampling": {"prompts_per_step": prompts},
        "evaluation": {"every": max(1, round(steps / (share * 5)))},
        "optimizer": {"warmup_steps": round(steps * inner / 10)},
        "run": {"steps": steps},
    }


PASSES = {
    "exact canonical": {"baseline": "canonical"},
    "exact loo-1": {"baseline": "loo-1"},
    "exact loo-1 region": {"baseline": "loo-1", "trust_region": [0.2, 0.2]},
    "first-order": {"baseline": "canonical", "objective": {"off_policy": "first-order"}},
    "clipped": {"baseline": "canonical", "loss": {"name": "clipped"}},
    "clipped none kl": {
        "baseline": "none",
        "loss": {"name": "clipped", "kl": 0.01, "kl_estimator": "k3"},
    },
}
"""What is compared over several passes; the last is as close to the max@k paper as we can say."""

ARMS: dict[str, tuple[dict[str, Any], tuple[float, ...]]] = {
    **{f"one {b}": (arm(baseline=b), (1.5e-4, 3e-4, 6e-4)) for b in ("canonical", "loo-1")},
    **{
        f"mini-batches {m} {b}": (arm(baseline=b, mini_batches=m), rates)
        for m, rates in ((4, (6e-5, 1.2e-4, 2.4e-4)), (8, (4e-5, 8e-5, 1.6e-4)))
        for b in ("canonical", "loo-1")
    },
    **{f"large one {b}": (arm("large", b), (3e-4, 6e-4, 1.2e-3)) for b in ("canonical", "loo-1")},
    **{
        f"large mini-batches 8 {b}": (arm("large", b, mini_batches=8), (8e-5, 1.6e-4, 3.2e-4))
        for b in ("canonical", "loo-1")
    },
    **{
        f"passes 3 {name}": (arm(share=0.4, passes=3, **settings), (1e-4, 2e-4))
        for name, settings in PASSES.items()
    },
    **{f"small one {b}": (arm("small", b), (6e-5, 1.2e-4)) for b in ("canonical", "loo-1")},
    **{
        f"passes 8 {name}": (arm(share=0.4, passes=8, **settings), (5e-5, 1e-4))
        for name, settings in PASSES.items()
    },
}
"""Name → settings and the learning rates to try."""


PAIRS = (
    ("mini-batches 8 loo-1", "one loo-1"),
    ("mini-batches 8 canonical", "one canonical"),
    ("large mini-batches 8 loo-1", "large one loo-1"),
    ("large one loo-1", "one loo-1"),
    ("one loo-1", "one canonical"),
    ("mini-batches 8 loo-1", "mini-batches 8 canonical"),
    ("large mini-batches 8 loo-1", "large mini-batches 8 canonical"),
    ("passes 3 exact loo-1", "one loo-1"),
    ("passes 3 clipped", "one loo-1"),
    ("passes 3 first-order", "one loo-1"),
)
"""Differences that `show` prints."""
DRAWN = {
    "one loo-1": "1 step, 64 prompts",
    "mini-batches 8 loo-1": "8 mini-batches, 64 prompts",
    "large one loo-1": "1 step, 256 prompts",
    "large mini-batches 8 loo-1": "8 mini-batches, 256 prompts",
    "passes 3 exact loo-1": "3 passes, exact",
    "passes 3 first-order": "3 passes, first order",
}
"""Arms of the figure, with their labels."""
Runs = dict[int, list[dict[str, Any]]]
"""Seed → evaluations."""


def jobs_of(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Runs in the order in which they are worth having."""
    names = [name for name in ARMS if options.arms is None or name in options.arms]
    if options.stage == "tune":
        pairs = [(name, rate) for name in names for rate in ARMS[name][1]]
        seeds, split = options.seeds or [100], "validation"
    else:
        rates = json.loads(options.rates)
        pairs = [(name, rate) for name, rate in rates.items()]
        seeds, split = options.seeds or [0, 1, 2], "test"
    return [
        {"task": options.task, "arm": name, "rate": rate, "seed": seed, "split": split}
        for seed in seeds
        for name, rate in pairs
    ]


def run(job: dict[str, Any], seconds: float, steps: int | None) -> dict[str, Any]:
    """Train one run for at most so many seconds; the line it is remembered by."""
    from bestofk.config import merged, read
    from bestofk.training.resolve import resolve
    from bestofk.training.train import train

    folder = Path(tempfile.mkdtemp(prefix="inner-steps-"))
    settings = ARMS[job["arm"]][0]
    config = merged(read(RECIPES / f"{job['task']}-tiny" / "run.toml"), settings)
    config = merged(
        config,
        {
            "model": {"device": "cpu"},
            "optimizer": {"learning_rate": job["rate"]},
            "evaluation": {"split": job["split"], "prompts": 200, "samples_per_prompt": SAMPLES},
            "run": {
                "dir": str(folder / "run"),
                "seed": job["seed"],
                "checkpoint_every": 100_000,
                "advanced": {"keep_best": False},
                **({"steps": steps} if steps else {}),
            },
        },
    )
    began, failure = time.monotonic(), None
    signal.signal(signal.SIGALRM, _time_is_up)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1))
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            train(resolve(config))
    except TimeoutError:
        failure = "out of time"
    except Exception:
        failure = traceback.format_exc()[-1500:]
    signal.setitimer(signal.ITIMER_REAL, 0)
    line = {**job, "seconds": round(time.monotonic() - began, 1), "failure": failure}
    line |= remembered(folder / "run")
    shutil.rmtree(folder, ignore_errors=True)
    return line


def _time_is_up(*_: Any) -> None:
    raise TimeoutError


def remembered(folder: Path) -> dict[str, Any]:
    """The evaluations and ratios of a run, small."""
    file = folder / "metrics.jsonl"
    rows = [json.loads(row) for row in file.read_text().splitlines()] if file.is_file() else []
    steps = [row for row in rows if row["kind"] == "train"]
    inner = np.cumsum([row["inner_steps"] for row in steps])
    evaluations = []
    for row in rows:
        if row["kind"] != "evaluation":
            continue
        done = row["step"]
        evaluations.append(
            {
                "batch": done,
                "rollouts": done * steps[0]["groups"] * SAMPLES if done else 0,
                "optimiser_steps": int(inner[done - 1]) if done else 0,
                "max": {k: round(row["results"][f"max@{k}"]["value"], 5) for k in (1, 8, 32)},
                "entropy": round(row["entropy"], 4),
                "successes": successes(folder / "evaluations" / f"{done:06d}.jsonl"),
            }
        )

    def mean(key: str) -> float | None:
        values = [row[key] for row in steps if key in row]
        return round(float(np.mean(values)), 4) if values else None

    keys = ("inner_steps", "ess", "masked", "log_ratio_std", "log_ratio_max", "grad_norm")
    phases = {
        name: round(sum(row["seconds"].get(name, 0.0) for row in steps), 1)
        for name in ("sample", "learn")
    }
    return {"evaluations": evaluations, "phases": phases, **{key: mean(key) for key in keys}}


DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def successes(file: Path) -> str:
    """Number of right samples of every problem, a digit each (base 36)."""
    counts: dict[str, int] = {}
    for row in map(json.loads, file.read_text().splitlines() if file.is_file() else []):
        problem = str(row.get("problem", row.get("prompt_id", row.get("id"))))
        counts[problem] = counts.get(problem, 0) + int(row["reward"] >= 1.0)
    return "".join(DIGITS[counts[problem]] for problem in sorted(counts))


def work(options: argparse.Namespace) -> None:
    """Claim runs until all are done or the time is over; one line each."""
    end = time.monotonic() + options.seconds
    claims = Path(f"{options.out}.claims")
    claims.mkdir(parents=True, exist_ok=True)
    for job in jobs_of(options):
        if end - time.monotonic() < 30:
            return
        name = "-".join(str(job[key]) for key in ("task", "arm", "rate", "seed", "split"))
        try:
            os.close(os.open(claims / name.replace(" ", "_"), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        line = json.dumps(run(job, end - time.monotonic(), options.steps)) + "\n"
        with open(options.out, "a", encoding="utf-8") as file:
            file.write(line)


def max_at(evaluation: dict[str, Any], k: int) -> np.ndarray:
    """max@k of every problem, from its successes."""
    share = [1 - math.comb(SAMPLES - c, k) / math.comb(SAMPLES, k) for c in range(SAMPLES + 1)]
    return np.array([share[DIGITS.index(digit)] for digit in evaluation["successes"]])


def by_arm(file: str) -> dict[tuple[str, str, str, float], dict[int, list[dict[str, Any]]]]:
    """(task, split, arm, rate) → seed → evaluations, of the runs that ended."""
    arms: dict[tuple[str, str, str, float], dict[int, list[dict[str, Any]]]] = {}
    for row in map(json.loads, Path(file).read_text(encoding="utf-8").splitlines()):
        if row["failure"] is None and row["evaluations"]:
            key = (row["task"], row["split"], row["arm"], row["rate"])
            arms.setdefault(key, {})[row["seed"]] = row["evaluations"]
    return arms


def difference(first: Runs, second: Runs, k: int) -> tuple[float, float, int]:
    """Mean over seeds and common evaluations after the start, half a 95 % interval, seeds.

    The interval is over problems, each the mean over seeds and evaluations.
    """
    seeds, parts = sorted(first.keys() & second.keys()), []
    for seed in seeds:
        other = {each["rollouts"]: each for each in second[seed]}
        parts += [
            max_at(each, k) - max_at(other[each["rollouts"]], k)
            for each in first[seed]
            if each["rollouts"] and each["rollouts"] in other
        ]
    per_problem = np.mean(parts, axis=0)
    return (
        float(per_problem.mean()),
        float(1.972 * per_problem.std(ddof=1) / math.sqrt(len(per_problem))),
        len(seeds),
    )


def show(options: argparse.Namespace) -> None:
    """max@8 at every evaluation, the mean over the seeds of an arm, and paired differences."""
    arms = {key: runs for key, runs in by_arm(options.out).items() if key[0] == options.task}
    for (_, split, name, rate), runs in sorted(arms.items()):
        shortest = min(map(len, runs.values()))
        curves = np.array([[e["max"]["8"] for e in run[:shortest]] for run in runs.values()])
        curve = " ".join(f"{value:.3f}" for value in curves.mean(axis=0))
        mean = curves[:, 1:].mean()
        print(f"{split:10} {name:30} {rate:.1e} {len(runs)} seeds  {curve}  mean {mean:.4f}")
    final = {name: runs for (_, split, name, _), runs in arms.items() if split == "test"}
    for first, second in PAIRS:
        if first in final and second in final:
            for k in (1, 8):
                mean, half, seeds = difference(final[first], final[second], k)
                ends = f"[{mean - half:+.4f}, {mean + half:+.4f}]"
                print(f"{first} minus {second}, max@{k}: {mean:+.4f} {ends}, {seeds} seeds")
    if options.figure:
        draw(final)


def draw(final: dict[str, Runs]) -> None:
    """research/images/inner-steps.svg."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "bestofk", "svg.fonttype": "none", "font.size": 11,
                         "axes.spines.top": False, "axes.spines.right": False})  # fmt: skip
    figure, axes = plt.subplots(1, 2, figsize=(9, 4.2), sharex=True, layout="constrained")
    for axis, k in zip(axes, (8, 1)):
        for name, label in DRAWN.items():
            runs = list(final[name].values())
            shortest = min(map(len, runs))
            x = [each["rollouts"] / 1000 for each in runs[0][:shortest]]
            y = [[e["max"][str(k)] for e in run[:shortest]] for run in runs]
            axis.plot(x, np.mean(y, axis=0), marker="o", markersize=3, label=label)
        axis.set_xlabel("thousand rollouts")
        axis.set_ylabel(f"max@{k} on the test split")
        axis.grid(alpha=0.3)
    lines, labels = axes[0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    target = Path(__file__).resolve().parent.parent / "research/images/inner-steps.svg"
    figure.savefig(target, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("stage", choices=("tune", "final", "show"), nargs="?", default="show")
    parser.add_argument("task", choices=("maze", "countdown"), nargs="?", default="maze")
    parser.add_argument("out", nargs="?", help="file of runs")
    parser.add_argument("--arms", nargs="*", help="only these")
    parser.add_argument("--rates", default="{}", help="final: arm → learning rate, as JSON")
    parser.add_argument("--seeds", type=int, nargs="*")
    parser.add_argument("--figure", action="store_true", help="show: draw it too")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--steps", type=int, help="batches of rollouts, for trying out")
    options = parser.parse_args()
    if options.out is None:
        if options.stage != "show":
            parser.error("name the file that the runs are written to")
        options.out = str(RESULTS)
    (show if options.stage == "show" else work)(options)


if __name__ == "__main__":
    main()

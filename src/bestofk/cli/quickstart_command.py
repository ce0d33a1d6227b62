"""`bestofk quickstart`: two trainings of one tiny policy, side by side, in minutes on two cores."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bestofk.cli._options import VerbOptions, option, parsed
from bestofk.config import Config, from_dict

ONE_SAMPLE = "grpo"
STEPS = 100
RATE = 1.5e-4


def config(objective: str, folder: Path, *, steps: int, problems: int, seed: int) -> Config:
    """The run of one objective; the two differ in nothing but its name."""
    return from_dict(
        Config,
        {
            "objective": objective,
            "model": {"path": "tiny-countdown", "device": "cpu"},
            "task": {"name": "countdown", "options": {"style": "compact"}},
            "sampling": {"prompts_per_step": 32, "samples_per_prompt": 32, "max_new_tokens": 24},
            "optimizer": {"learning_rate": RATE, "warmup_steps": 5},
            "evaluation": {
                "every": steps,
                "split": "test",
                "prompts": problems,
                "samples_per_prompt": 64,
            },
            "run": {
                "dir": str(folder),
                "steps": steps,
                "seed": seed,
                "checkpoint_every": max(1, steps // 2),
                "options": {"keep_best": False},
            },
        },
    )


@dataclass(frozen=True, kw_only=True)
class QuickstartOptions(VerbOptions):
    """Train a tiny policy on countdown for one sample and for k; compare best-of-k.

    Two runs with equally many rollouts, from one start; minutes on two CPU cores.
    """

    objective: str = "passk-training@16"
    """Objective of the k-sample run; the other uses grpo."""
    dir: Path = option("FOLDER", default=Path("runs/quickstart"))
    """Folder for the two runs and the page; those of an earlier quickstart are replaced."""
    steps: int = STEPS
    """Steps of each run."""
    problems: int = 200
    """Problems of the test split that pass@k is estimated on."""
    seed: int = 0
    """Seed of both runs."""


def main(argv: list[str]) -> int:
    arguments = parsed(QuickstartOptions, argv, "bestofk quickstart")
    size = {"steps": arguments.steps, "problems": arguments.problems, "seed": arguments.seed}
    if not arguments.json:
        return run(arguments.objective, arguments.dir, **size)
    with contextlib.redirect_stdout(sys.stderr):
        status = run(arguments.objective, arguments.dir, **size)
    if not status:
        print(json.dumps(as_json(arguments.objective, arguments.dir), indent=2))
    return status


def as_json(objective: str, folder: Path) -> dict[str, Any]:
    """What `--json` prints: pass@k of the start and of both runs, with intervals."""
    rows = results(places(objective, folder))
    return {
        "folder": str(folder),
        "page": str(folder / "report.html"),
        "results": {name: line["results"] for name, line in rows.items()},
    }


def places(objective: str, folder: Path) -> dict[str, Path]:
    """Objective: folder of its run."""
    return {ONE_SAMPLE: folder / "one-sample", objective: folder / "k-samples"}


def run(objective: str, folder: Path, **size: int) -> int:
    from bestofk.training.checks import check

    runs = places(objective, folder)
    if len(runs) < 2:
        raise ValueError(f"the two runs differ by their objective, got {ONE_SAMPLE} for both")
    configs = {name: config(name, path, **size) for name, path in runs.items()}
    for chosen in configs.values():
        check(chosen)
    clear(folder, list(runs.values()))
    began = time.monotonic()
    try:
        from bestofk.training.train import train
    except ModuleNotFoundError as error:
        raise ValueError(f"training needs {error.name}: pip install 'bestofk[train]'") from error
    for chosen in configs.values():
        outcome = train(chosen)
        if outcome.signal is not None:
            return 128 + outcome.signal
    print()
    print(summary(runs, configs[objective]))
    page = folder / "report.html"
    for line in report(runs, page):
        print(line)
    print(f"\n{time.monotonic() - began:.0f} s; the page: {page}; the runs: {folder}")
    return 0


def clear(folder: Path, runs: Sequence[Path]) -> None:
    """Remove an earlier quickstart's runs, and nothing else."""
    for path in runs:
        if (path / "config.toml").is_file():
            shutil.rmtree(path)
        elif path.exists():
            raise FileExistsError(f"{path} is not a run: name another --dir")
    folder.mkdir(parents=True, exist_ok=True)


def summary(runs: Mapping[str, Path], chosen: Config) -> str:
    """pass@k of the start and of both runs, each with its interval."""
    rows = results(runs)
    names = [f"pass@{k}" for k in (1, 4, 16, 64)]
    width = max(map(len, rows))
    requested, line = chosen.sampling, rows["start"]
    head = (
        f"countdown, {chosen.evaluation.split} split: {line['prompts']} problems × "
        f"{line['samples_per_prompt']} samples, 95% intervals over problems; "
        f"{chosen.run.steps} steps × {requested.prompts_per_step} × {requested.samples_per_prompt} "
        f"rollouts each, seed {chosen.run.seed}"
    )
    table = [f"{'':<{width}}  " + "  ".join(f"{name:<18}" for name in names)]
    for name, line in rows.items():
        cells = [line["results"][key] for key in names]
        shown = [f"{c['value']:.3f} [{c['low']:.2f}, {c['high']:.2f}]" for c in cells]
        table.append(f"{name:<{width}}  " + "  ".join(f"{cell:<18}" for cell in shown))
    return "\n".join([head, "", *table, ""])


def results(runs: Mapping[str, Path]) -> dict[str, Mapping[str, Any]]:
    """The evaluation of the start and the last one of each run."""
    from bestofk.runs import read_metrics

    history = {name: evaluations(read_metrics(path)) for name, path in runs.items()}
    return {"start": history[ONE_SAMPLE][0]} | {name: lines[-1] for name, lines in history.items()}


def evaluations(lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [line for line in lines if line["kind"] == "evaluation"]


def report(runs: Mapping[str, Path], page: Path) -> list[str]:
    """Write the page; say in words which run is better where."""
    from bestofk.reports import load, make

    first = next(iter(runs.values()))
    start = f"start={first / 'evaluations' / '000000.jsonl'}"
    sources = load([start, *(f"{name}={path}" for name, path in runs.items())])
    built = make(sources, page)
    return [f"{one.metric}: {one.verdict}" for one in built.findings.comparisons]

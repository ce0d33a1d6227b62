"""`bestofk quickstart`: two trainings of one tiny policy, side by side, in minutes on two cores."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bestofk.cli._options import VerbOptions, option, parsed
from bestofk.cli._terminal import in_columns
from bestofk.cli.train_command import stated_by
from bestofk.config import leaves, read

if TYPE_CHECKING:
    from bestofk.evaluation import Comparison, Estimate
    from bestofk.training.resolve import RunSettings

ONE_SAMPLE = "grpo"
RECIPE = "construct-tiny"
SHOWN = (1, 4, 16)
QUOTED = 16
"""The k of the sentence above table and page."""
OPENING = (
    "Nine guests, some pairs do not get along: invite as many as you can without such a pair. "
    "A list with one is worth nothing, any other its length over the best. A tiny model is "
    "trained for it twice from the same start, for one sample ({}) and for k ({}): about three "
    "minutes on two cores. After Ctrl-C the same command resumes.\n"
)


class QuickstartOptions(VerbOptions):
    """Train a tiny policy for one sample and for k on a graded problem, and compare.

    Two runs with equally many rollouts, from one start; minutes on two CPU cores.
    After Ctrl-C the same command resumes.
    """

    objective: str = "max@1+4+16"
    """Objective of the k-sample run; the other uses grpo."""
    dir: Path = option("FOLDER", default=Path("runs/quickstart"))
    """Folder for the two runs and the page; those of a finished quickstart are replaced."""
    steps: int = 100
    """Steps of each run."""
    problems: int = 200
    """Problems of the test split that best-of-k is estimated on."""
    seed: int = 0
    """Seed of both runs."""


def run_settings(objective: str, folder: Path, options: QuickstartOptions) -> RunSettings:
    """The recipe construct-tiny for one objective; the two runs differ in nothing but its name."""
    from bestofk.training.resolve import resolve

    changes = {
        "objective": objective,
        "model.device": "cpu",
        "evaluation.every": options.steps,
        "evaluation.split": "test",
        "evaluation.prompts": options.problems,
        "run.dir": str(folder),
        "run.steps": options.steps,
        "run.seed": options.seed,
        "run.checkpoint_every": max(1, options.steps // 2),
        "run.advanced.keep_best": False,
    }
    return resolve(stated_by(RECIPE, changes))


def main(argv: list[str]) -> int:
    arguments = parsed(QuickstartOptions, argv, "bestofk quickstart")
    objective, folder = arguments.objective, arguments.dir
    runs = {ONE_SAMPLE: folder / "one-sample", objective: folder / "k-samples"}
    if len(runs) < 2:
        raise ValueError(f"the two runs differ by their objective, got {ONE_SAMPLE} for both")
    settings = {name: run_settings(name, path, arguments) for name, path in runs.items()}
    with contextlib.redirect_stdout(sys.stderr) if arguments.as_json else contextlib.nullcontext():
        status = run(settings, folder, again=shlex.join(["bestofk", "quickstart", *argv]))
    if arguments.as_json and not status:
        cells = {name: line["results"] for name, line in results(runs).items()}
        page = str(folder / "report.html")
        print(json.dumps({"folder": str(folder), "page": page, "results": cells}, indent=2))
    return status


def run(settings: Mapping[str, RunSettings], folder: Path, *, again: str) -> int:
    """Train what is not trained yet, print the table, write the page.

    Args:
        settings: by objective; GRPO's first.
        again: The command, for those who interrupt it.
    """
    from bestofk.training.train import train

    runs = {name: Path(chosen.run.dir) for name, chosen in settings.items()}
    states = {name: state_of(chosen) for name, chosen in settings.items()}
    page = folder / "report.html"
    if set(states.values()) == {"finished"} and page.is_file():
        states = dict.fromkeys(states, "other")  # a finished quickstart starts over
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    print(in_columns(OPENING.format(*settings), 80))
    for name, chosen in reversed(list(settings.items())):
        if states[name] == "finished":
            continue
        if states[name] == "other":
            shutil.rmtree(runs[name])
        outcome = train(replace(chosen, resume=states[name] == "begun"))
        if outcome.signal is not None:
            print(f"stopped at step {outcome.step} of {name}; to resume: {again}")
            return 128 + outcome.signal
    gains, verdicts = report(runs, page)
    print(f"\n{summary(runs, settings[ONE_SAMPLE], gains)}\n")
    print(in_columns("\n".join(verdicts), 80))
    print(f"\n{time.monotonic() - began:.0f} s; the page: {page}; the runs: {folder}")
    return 0


def state_of(chosen: RunSettings) -> str:
    """Whether the folder of a run is new, begun or finished with these settings, or another's."""
    path = Path(chosen.run.dir)
    if not path.exists():
        return "new"
    if not (path / "config.toml").is_file():
        raise FileExistsError(f"{path} is not a run: name another --dir")
    if dict(leaves(read(path / "config.toml"))) != dict(leaves(chosen.recipe)):
        return "other"
    return "finished" if (path / "final").is_dir() else "begun"


def summary(runs: Mapping[str, Path], chosen: RunSettings, gains: Sequence[Comparison]) -> str:
    """What training for k gains; best of k before and after, in 80 columns."""
    from bestofk.evaluation import Estimate

    rows = results(runs)
    sampling, line = chosen.sampling, rows["start"]
    head = (
        f"{sentence(gains)}\n\n{chosen.evaluation.split} split: {line['prompts']} "
        f"problems × {line['samples_per_prompt']} samples; {chosen.run.steps} steps × "
        f"{sampling.prompts_per_step} × {sampling.samples_per_prompt} rollouts each, seed "
        f"{chosen.run.seed}. Brackets: 95% intervals over problems; those of the difference hold "
        "for all k together.\n"
    )
    table = [["best of", *rows, f"minus {ONE_SAMPLE}"]]
    for k in SHOWN:
        cells = [row["results"][f"max@{k}"] for row in rows.values()]
        estimates = [Estimate(cell["value"], cell["low"], cell["high"]) for cell in cells]
        table.append([str(k), *map(short, estimates), short(gains[0].at(k), "+")])
    widths = [max(map(len, column)) for column in zip(*table)]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in table]
    return "\n".join([in_columns(head, 80), *lines])


def short(estimate: Estimate, sign: str = "") -> str:
    """Of the same length for every number from -1 to 1.

    >>> from bestofk.evaluation import Estimate
    >>> short(Estimate(0.6123, 0.57, 1.0)), short(Estimate(-0.1, -0.2, 0.01), "+")
    ('.612 [.57, 1.0]', '-.100 [-.20, +.01]')
    """
    texts = (
        f"{number:{sign}.{digits}f}"
        for number, digits in ((estimate.value, 3), (estimate.low, 2), (estimate.high, 2))
    )
    value, low, high = (
        text.replace("0.", ".") if abs(float(text)) < 1 else text[:-1] for text in texts
    )
    return f"{value} [{low}, {high}]"


def sentence(gains: Sequence[Comparison]) -> str:
    """What training for k gains over each of the others, for the head of table and page."""
    changes = " and ".join(map(change, gains))
    return f"At best of {QUOTED}, training for {gains[0].b} {changes}; 100 is the optimum"


def change(gain: Comparison) -> str:
    at = gain.at(QUOTED)
    if at.low <= 0 <= at.high:
        interval = f"95%: {100 * at.low:+.1f} to {100 * at.high:+.1f}"
        return f"does not differ significantly from {gain.a} ({100 * at.value:+.1f}, {interval})"
    low, high = sorted((abs(at.low), abs(at.high)))
    verb, over = ("gains", "over") if at.value > 0 else ("loses", "against")
    points = f"{verb} {100 * abs(at.value):.1f} points {over} {gain.a}"
    return f"{points} (95%: {100 * low:.1f} to {100 * high:.1f})"


def results(runs: Mapping[str, Path]) -> dict[str, Mapping[str, Any]]:
    """The evaluation of the start and the last one of each run."""
    from bestofk.runs import read_metrics

    history = {
        name: [line for line in read_metrics(path) if line["kind"] == "evaluation"]
        for name, path in runs.items()
    }
    return {"start": history[ONE_SAMPLE][0]} | {name: lines[-1] for name, lines in history.items()}


def report(runs: Mapping[str, Path], page: Path) -> tuple[list[Comparison], list[str]]:
    """Write the page; the k-sample run against GRPO and against the start, and all comparisons in
    words."""
    from bestofk.reports import load, make

    start = f"start={runs[ONE_SAMPLE] / 'evaluations' / '000000.jsonl'}"
    sources = load([start, *(f"{name}={path}" for name, path in runs.items())])

    def gains(comparisons: Sequence[Comparison]) -> list[Comparison]:
        return [one for one in reversed(comparisons) if one.b != ONE_SAMPLE]

    written = make(
        sources, page, metrics=("max@k",), title=lambda found: sentence(gains(found.comparisons))
    )
    comparisons = written.findings.comparisons
    return gains(comparisons), [f"{one.metric}: {one.verdict}" for one in comparisons]

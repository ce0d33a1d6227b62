"""Training curves of run folders, from the lines of their metrics.jsonl."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bestofk import metrics

from .sources import Source

Line = Mapping[str, Any]
Pick = Callable[[Line], float | None]


def no_signal_share(line: Line) -> float | None:
    total = line.get(metrics.GROUPS)
    return line.get(metrics.GROUPS_NO_SIGNAL, math.nan) / total if total else None


def value(name: str) -> Pick:
    return lambda line: line.get(name)


def ending(name: str) -> Pick:
    return lambda line: line[metrics.ENDED_BY].get(name, 0.0) if metrics.ENDED_BY in line else None


REWARD = ("Mean reward", "Of a step's samples, on training prompts.", value(metrics.REWARD))
STEPS: tuple[tuple[str, str, Pick], ...] = (
    (
        "No-signal share",
        "Groups with advantages of zero only: they teach nothing.",
        no_signal_share,
    ),
    ("Entropy", "Of the policy, nats per token.", value(metrics.ENTROPY)),
    ("Turns", "Messages of the model in a trajectory.", value(metrics.TURNS)),
    ("Tool errors", "In a trajectory; the model was told.", value(metrics.TOOL_ERRORS)),
    ("Gradient norm", "Before clipping.", value(metrics.GRAD_NORM)),
    ("Effective sample share", "Of the k-subsets; small: the data are stale.", value(metrics.ESS)),
)


def training_curves(sources: Sequence[Source]) -> list[dict[str, Any]]:
    """One block per figure: a label, and step and value of every run that recorded it."""
    result = [_evaluation(sources, name) for name in _evaluated(sources)]
    every_line = [line for source in sources for line in source.metrics]
    names = {name for line in every_line for name in line} - {"max@1"}
    best = sorted(name for name in names if re.fullmatch(r"max@\d+", name))
    ends = sorted({end for line in every_line for end in line.get(metrics.ENDED_BY, ())})
    kinds = [
        REWARD,
        *((f"Training {key}", "Expected best reward among k samples.", value(key)) for key in best),
        *STEPS,
        *((f"Ended by: {end}", "Share of trajectories.", ending(end)) for end in ends),
    ]
    for label, about, pick in kinds:
        curves: list[dict[str, Any]] = []
        for run, source in enumerate(sources):
            steps, values = _series(source, pick)
            if steps:
                curves.append({"run": run, "step": steps, "value": values})
        if curves:
            facts = _facts(sources, [curve["run"] for curve in curves])
            shared = {"kind": "train", "zero": True, "facts": facts, "curves": curves}
            result.append({"label": label, "about": about, **shared})
    return result


def evaluation_curves(sources: Sequence[Source]) -> list[dict[str, Any]]:
    """pass@k against k at the first and at the last evaluation of every run that had some; max@k
    where rewards lie between 0 and 1."""
    result = []
    for run, source in enumerate(sources):
        lines = _evaluations(source)
        for when, line in zip(("first", "last"), (lines[0], lines[-1]) if lines else ()):
            cells_by_name = line[metrics.RESULTS]
            metric = metric_of(cells_by_name)
            ks = depths(cells_by_name, metric)
            cells = [cells_by_name[f"{metric}@{k}"] for k in ks]
            if cells and (when == "last" or len(lines) > 1):
                result.append({
                    "run": run,
                    "when": when,
                    "split": split_of(line),
                    "step": line["step"],
                    "n": line.get("samples_per_prompt"),
                    "problems": line.get("prompts"),
                    "metric": f"{metric}@k",
                    "k": ks,
                    "mean": [cell["value"] for cell in cells],
                    **{end: [cell[end] for cell in cells] for end in ("low", "high")},
                })  # fmt: skip
    return result


def progress(source: Source) -> str | None:
    """Where a run stands, for the head of a page that follows it; None for a file of samples.

    max@8 · step 40 of 200 · about 16 min left · test max@8 0.412 [0.36, 0.46] → 0.530 [0.47, 0.59]
    """
    steps = list(_lines(source, "train"))
    lines = _evaluations(source)
    tests = [line[metrics.RESULTS] for line in lines]
    total = source.config.get("run.steps")
    if total is None:
        return None
    step = steps[-1]["step"] if steps else 0
    said = [str(source.config.get("objective", "")), f"step {step} of {total}"]
    timed = [
        line[metrics.SECONDS] for line in steps if isinstance(line.get(metrics.SECONDS), Mapping)
    ]
    if timed and step < total:
        recent = [sum(seconds.values()) for seconds in timed[-20:]]
        seconds_left = sum(recent) / len(recent) * (total - step)
        minutes = f"{seconds_left / 60:.0f} min" if seconds_left >= 90 else f"{seconds_left:.0f} s"
        said.append(f"about {minutes} left")
    k = max((int(name) for name in re.findall(r"\d+", said[0])), default=1)
    names = [name for name in (f"max@{k}", "max@8", "max@1") if tests and name in tests[-1]]
    if names:
        cells = [tests[0][names[0]], tests[-1][names[0]]][: len(tests)]
        shown = [f"{c['value']:.3f} [{c['low']:.2f}, {c['high']:.2f}]" for c in cells]
        said.append(f"{split_of(lines[-1])} {names[0]} {' → '.join(shown)}")
    return " · ".join(said)


def metric_of(results: Mapping[str, Any]) -> str:
    """What an evaluation is shown by: "max" where rewards are graded, else "pass"."""
    one = results.get("pass@1")
    return "pass" if results.get("max@1", one) == one else "max"


def depths(names: Iterable[str], metric: str) -> list[int]:
    """The k of "pass@1", "pass@8", …

    >>> depths(["max@1", "pass@8", "pass@1"], "pass")
    [1, 8]
    """
    return sorted(
        int(name[len(metric) + 1 :]) for name in names if re.match(rf"{metric}@\d+$", name)
    )


def split_of(line: Line) -> str:
    """The split that a line of an evaluation is about; early runs did not record it."""
    return str(line.get("split", "validation"))


def _lines(source: Source, kind: str) -> Iterable[Line]:
    return (line for line in source.metrics if line.get("kind") == kind)


def _series(source: Source, pick: Pick) -> tuple[list[int], list[float]]:
    pairs = [(line["step"], pick(line)) for line in _lines(source, "train")]
    finite = [(s, v) for s, v in pairs if isinstance(v, int | float) and math.isfinite(v)]
    return [s for s, _ in finite], [float(v) for _, v in finite]


def _evaluations(source: Source) -> list[Line]:
    return [line for line in _lines(source, "evaluation") if line.get(metrics.RESULTS)]


def _evaluated(sources: Sequence[Source]) -> list[str]:
    """pass@1 (max@1 where rewards are graded) and the same at the largest k that every run with
    evaluations has measured."""
    by_run = [
        [line[metrics.RESULTS] for line in lines] for s in sources if (lines := _evaluations(s))
    ]
    if not by_run:
        return []
    graded = any(metric_of(results) == "max" for run in by_run for results in run)
    metric = "max" if graded else "pass"
    ks = depths(set.intersection(*(set().union(*run) for run in by_run)), metric)
    return [f"{metric}@{k}" for k in sorted({ks[0], ks[-1]})] if ks else []


def _evaluation(sources: Sequence[Source], name: str) -> dict[str, Any]:
    curves: list[dict[str, Any]] = []
    facts: list[str] = []
    splits: dict[str, None] = {}
    for run, source in enumerate(sources):
        lines = [line for line in _evaluations(source) if line[metrics.RESULTS].get(name)]
        if lines:
            cells = [line[metrics.RESULTS][name] for line in lines]
            splits |= dict.fromkeys(map(split_of, lines))
            curves.append({
                "run": run,
                "step": [line["step"] for line in lines],
                **{key: [cell.get(key) for cell in cells] for key in ("value", "low", "high")},
            })  # fmt: skip
            facts.append(f"n = {lines[-1].get('samples_per_prompt')}, "
                         f"{lines[-1].get('prompts')} problems")  # fmt: skip
    k, seed = name.partition("@")[2], _setting(sources, [c["run"] for c in curves], "run.seed")
    counts = facts[0] if len(set(facts)) == 1 else "; ".join(facts)
    return {
        "label": f"{' and '.join(splits).capitalize()} {name}",
        "about": f"On {' and '.join(splits)} problems, with 95% intervals over problems.",
        "kind": "evaluation",
        "zero": False,
        "facts": f"k = {k} · {counts} · seed {seed}",
        "curves": curves,
    }


def _facts(sources: Sequence[Source], runs: Sequence[int]) -> str:
    names = ("objective", "sampling.samples_per_prompt", "sampling.prompts_per_step", "run.seed")
    objective, n, prompts, seed = (_setting(sources, runs, name) for name in names)
    return f"objective {objective} · n = {n} · {prompts} problems per step · seed {seed}"


def _setting(sources: Sequence[Source], runs: Sequence[int], name: str) -> str:
    values = (str(sources[run].config.get(name, "not recorded")) for run in runs)
    return " / ".join(dict.fromkeys(values))

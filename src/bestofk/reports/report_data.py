"""What was found, as the plain data that the page's script reads.

Every block carries the n, k, number of problems, seeds and confidence that its figure states.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bestofk.evaluation.results import (
    MEASURES,
    Comparison,
    Curve,
    Diversity,
    Interval,
    Measure,
)
from bestofk.evaluation.verdict_words import effects, meaning

from .report_results import Findings
from .run_colours import palette_places
from .sources import Source
from .training import evaluation_curves, training_curves

METHODS = (
    "pass@k and max@k are unbiased: averages over all k-subsets of the scored samples of each "
    "problem, then over problems. No number is given for k above the number of scored samples.",
    "Unscored samples (the verifier broke, not the answer) are left out of n and counted; they are "
    "never zeros.",
    "Intervals over problems cover new problems of the same kind, by a bounded bootstrap that "
    "keeps its width at 0 and 1. Intervals for these problems only are narrower: they cover "
    "drawing their samples again.",
    "Differences are paired by problem; p-values and bands come from one test, corrected over k "
    "and over all pairs of runs in that metric (max-T by sign flips): p ≤ .05 exactly where the "
    "95% band excludes 0.",
)


def page_data(
    findings: Findings,
    excerpts: dict[str, Any] | None,
    *,
    title: str,
    version: str,
    created: str | None,
) -> dict[str, Any]:
    """Everything the page shows, as JSON values."""
    sources = findings.sources
    when = created or datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    names = [source.name for source in sources]
    first = next(iter(findings.curves.values()), ())
    return {
        "title": title,
        "version": version,
        "created": when,
        "verdicts": verdicts(findings),
        "notes": list(findings.notes),
        "runs": [
            run_facts(source) | {"colour": colour}
            for source, colour in zip(sources, palette_places([*map(described, sources)]))
        ],
        "measures": [measure(key, curves, names) for key, curves in findings.curves.items()],
        "by_turns": [
            {**curve_data(curve, names.index(curve.name)), "turns": turns, "measure": curve.metric}
            for turns, curve in findings.by_turns
        ],
        "means": [
            {"run": names.index(c.name), "mean": c.estimate[0], **ends(c.interval, 0)}
            for c in findings.means
        ],
        "summary_k": summary_k(first),
        "differences": [difference_data(one, names) for one in trained_first(findings)],
        "per_problem": per_problem(findings),
        "solved": solved(findings),
        "diversity": diversity(findings.diversities, names),
        "training": training_curves(sources),
        "evaluations": evaluation_curves(sources),
        "samples": excerpts,
        "config": settings(sources),
        "methods": list(METHODS),
    }  # fmt: skip


def trained_first(findings: Findings) -> list[Comparison]:
    """The comparisons, those of trained runs before those with the start."""
    starts = {source.name for source in findings.sources if described(source) == "start"}
    return sorted(findings.comparisons, key=lambda one: one.a in starts or one.b in starts)


def verdicts(findings: Findings) -> list[str]:
    """The effects in the first metric: against the first trained run, and against the first run."""
    ordered, first = trained_first(findings), findings.comparisons[:1]
    pairs = {(one.metric, one.a) for one in (*ordered[:1], *first)}
    return [effects(one) for one in ordered if (one.metric, one.a) in pairs]


def described(source: Source) -> str:
    """What a run is known by: the start, its objective, or its name. A run's folder is no start."""
    step = None if source.samples is None else source.samples.metadata.get("step")
    if step == 0 and not source.metrics:
        return "start"
    return str(source.config.get("objective") or source.name)


def run_facts(source: Source) -> dict[str, Any]:
    samples = source.samples
    live = samples.live if samples is not None else np.zeros(0, int)
    low, high = (int(live.min()), int(live.max())) if live.size else (0, 0)
    return {
        "name": source.name,
        "source": source.path,
        "format": source.format,
        "task": source.fact("task"),
        "model": source.fact("model"),
        "sampling": source.fact("sampling"),
        "seeds": source.fact("seed") or "not recorded",
        "n": "–" if not live.size else str(low) if low == high else f"{low}–{high}",
        "n_max": high,
        "problems": 0 if samples is None else len(samples.problems),
        "samples": 0 if samples is None else int(samples.rewards.size),
        "unscored": 0 if samples is None else samples.unscored,
    }


def measure(key: str, curves: Sequence[Curve], names: Sequence[str]) -> dict[str, Any]:
    rewards = any(curve.bounds != (0.0, 1.0) for curve in curves)
    about = meaning(key)
    about = about[0].upper() + about[1:]
    threshold = curves[0].threshold
    if threshold is not None and key not in ("max@k", "subsets@k"):
        about += f"; a sample passes when its reward is at least {threshold:g}"
    return {
        "key": key,
        "about": about + ".",
        "ceiling": None if rewards else 1,
        "curves": [curve_data(curve, names.index(curve.name)) for curve in curves],
    }


def thin(last: int, count: int = 72) -> list[int]:
    """About `count` values of k, evenly spaced on a log axis, all powers of two among them.

    >>> thin(6), len(thin(1024))
    ([1, 2, 3, 4, 5, 6], 63)
    """
    spaced = {round(k) for k in np.geomspace(1, last, count)}
    powers = {2**i for i in range(int(math.log2(last)) + 1)}
    return sorted(spaced | powers | {1, last})


def curve_data(curve: Curve, run: int) -> dict[str, Any]:
    ks = thin(int(curve.k[-1])) if len(curve.k) == curve.k[-1] else curve.k.tolist()
    at = np.searchsorted(curve.k, ks)
    return {
        "run": run,
        "k": ks,
        "mean": curve.estimate[at],
        **ends(curve.interval, at),
        "band": ends(curve.band, at),
        "fixed": ends(curve.fixed, at),
        "n": curve.n,
        **about(curve),
    }


def ends(interval: Interval, at: Any) -> dict[str, Any]:
    return {"low": interval.low[at], "high": interval.high[at]}


def about(result: Curve | Comparison) -> dict[str, Any]:
    """What its figure states beside k and n."""
    shared = ("clusters", "confidence", "resamples", "seed", "notes")
    return {"problems": len(result.problems)} | {name: getattr(result, name) for name in shared}


def difference_data(one: Comparison, names: Sequence[str]) -> dict[str, Any]:
    ks = thin(int(one.k[-1])) if len(one.k) == one.k[-1] else one.k.tolist()
    at = np.searchsorted(one.k, ks)
    crossing = one.crossing
    return {
        "a": names.index(one.a),
        "b": names.index(one.b),
        "measure": one.metric,
        "k": ks,
        **{name: values[at] for name, values in one.numbers().items()},
        **{name: getattr(one, name)[at] for name in ("wins", "losses", "ties")},
        "crossing": crossing
        and {
            "k": crossing.k,
            "low": crossing.low,
            "high": crossing.high,  # infinity becomes null
            "better": crossing.better_after,
        },
        "verdict": one.verdict,
        "effects": effects(one),
        "n_a": one.n_a,
        "n_b": one.n_b,
        **about(one),
    }


def summary_k(curves: Sequence[Curve]) -> list[int]:
    """1, then every power of four, then the last k that every run has."""
    if not curves:
        return []
    last = min(int(curve.k[-1]) for curve in curves)
    return sorted({1, last} | {4**i for i in range(1, 7) if 4**i < last})


def per_problem(findings: Findings) -> dict[str, Any]:
    """Each problem's estimate in each run, at a few k, for the scatter."""
    ids = findings.problems
    position = {problem: i for i, problem in enumerate(ids)}
    names = [source.name for source in findings.sources]
    measures = []
    for key, curves in findings.curves.items():
        ks = summary_k(curves)
        values = np.full((len(ks), len(findings.sources), len(ids)), np.nan)
        for curve in curves:
            rows = [position[problem] for problem in curve.problems]
            values[:, names.index(curve.name), rows] = curve.values[
                :, [curve.place(k) for k in ks]
            ].T
        low, high = np.nanmin(values, initial=0.0), np.nanmax(values, initial=1.0)
        measures.append({"key": key, "k": ks, "limits": [low, high], "values": values.round(4)})
    return {"ids": list(ids), "measures": measures}


def solved(findings: Findings) -> dict[str, Any] | None:
    """The problems that every run has, by the set of runs with at least one passing sample."""
    if not findings.passes.size:
        return None
    table = findings.passes
    common = [i for i in range(len(findings.problems)) if not np.isnan(table[:, i]).any()]
    runs = [i for i, source in enumerate(findings.sources) if source.samples is not None]
    sets: dict[tuple[int, ...], list[int]] = {}
    for i in common:
        by = tuple(run for run, hits in zip(runs, table[:, i]) if hits > 0)
        sets.setdefault(by, []).append(i)
    order = sorted(sets, key=lambda by: (len(by) in (0, len(runs)), -len(sets[by])))
    rule = (
        "A problem counts as solved when at least one of its n samples has a reward of at least "
        f"{findings.threshold:g}. With few samples, unsolved may only mean unlucky."
    )
    listed = [{"runs": list(by), "problems": sets[by]} for by in order]
    return {"sets": listed, "rule": rule, "total": len(common)}


def diversity(measured: Sequence[Diversity], names: Sequence[str]) -> dict[str, Any] | None:
    if not measured:
        return None
    rows = []
    for field, label, about in MEASURES:
        values: list[Measure] = [getattr(one, field) for one in measured]
        if any(not math.isnan(value.value) for value in values):
            cells = [{"value": v.value, "low": v.low, "high": v.high} for v in values]
            rows.append({"label": label, "about": about, "values": cells})
    blank = [{"value": one.no_answer, "low": None, "high": None} for one in measured]
    if any(not math.isnan(one.no_answer) for one in measured):
        rows.append({"label": "share without an answer", "about": "of samples", "values": blank})
    return {
        "runs": [names.index(one.name) for one in measured],
        "m": [one.m for one in measured],
        "rows": rows,
        "confidence": measured[0].confidence,
        "notes": [f"{one.name}: {note}" for one in measured for note in one.notes],
    }


def settings(sources: Sequence[Source]) -> dict[str, Any]:
    """Every recorded setting of every run that recorded any; where they differ comes first."""
    runs = [i for i, source in enumerate(sources) if source.config]
    keys = dict.fromkeys(key for i in runs for key in sources[i].config)
    rows = []
    for key in keys:
        values = [
            None if key not in sources[i].config else str(sources[i].config[key]) for i in runs
        ]
        rows.append({"key": key, "values": values, "same": len(set(values)) == 1})
    return {"runs": runs, "rows": sorted(rows, key=lambda row: bool(row["same"]))}

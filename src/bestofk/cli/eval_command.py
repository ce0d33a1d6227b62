"""`bestofk eval`: what best-of-k is worth, from files of samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from bestofk.cli._files import FileOptions, metrics_of, read_all
from bestofk.cli._options import argument, parsed

if TYPE_CHECKING:
    from bestofk.samples import Samples


class EvalOptions(FileOptions):
    """What best-of-k is worth: pass@k, max@k or maj@k at every k, with intervals.

    Reads files of inspect, lm-eval, verifiers, evalplus, verl, TRL and others.
    To draw samples from a model or an endpoint, use bestofk sample.
    """

    examples: ClassVar = ("bestofk eval a.jsonl b.parquet --k 1,4,16,64",)

    groups: ClassVar = {
        "Files": ("targets", "map", "where"),
        "Numbers": ("k", "metric", "scores", "value", "price", "threshold", "bounds", "cluster"),
        "Output": ("wide", "diversity", "latex", "methods"),
    }

    targets: tuple[str, ...] = argument("FILE ...")
    """Files, log folders or run folders, each PATH or NAME=PATH; - is JSON lines on
    standard input."""
    diversity: bool = True
    """Leave out how different the samples of a problem are."""


def main(argv: list[str]) -> int:
    chosen = parsed(EvalOptions, argv, "bestofk eval")
    return show(read_all(chosen.targets, chosen), chosen)


def show(runs: list[Samples], chosen: EvalOptions) -> int:
    """Everything asked for, as tables or as JSON."""
    from bestofk.cli import _tables

    everything = [findings(run, chosen) for run in runs]
    if chosen.as_json:
        print(_tables.as_json(everything))
        return 0
    for run, result in zip(runs, everything):
        _tables.print_source(run)
        for each in result["curves"]:
            _tables.print_curve(each, wide=chosen.wide)
            _tables.print_for_papers(each, latex=chosen.latex, methods=chosen.methods)
        _tables.print_turns(result["by_turns"])
        if result["diversity"] is not None:
            _tables.print_diversity(result["diversity"])
    return 0


def findings(run: Samples, chosen: EvalOptions) -> dict[str, Any]:
    """The results on one run."""
    from bestofk.evaluation import curve, curves_by_turns, diversity
    from bestofk.evaluation.per_problem import options_of, rules_of
    from bestofk.evaluation.results import OF_PASSES

    numbers = chosen.numbers()
    metrics = metrics_of(chosen, [run])
    own = {name: numbers.pop(name) for name in ("price", "value")}
    rules_of(metrics, **own)
    metric = metrics[0]
    if not chosen.metric and metric == "max@k":
        metrics.append("mean")
    if not chosen.metric and metric == "pass@k" and run.answers is not None:
        metrics.append("maj@k")
    passing: dict[str, Any] = {"threshold": chosen.threshold, "confidence": chosen.confidence}
    judged = metric.startswith((*OF_PASSES, "retry")) or chosen.threshold is not None
    return {
        "name": run.name,
        "metadata": dict(run.metadata),
        "curves": [curve(run, each, **numbers, **options_of(each, **own)) for each in metrics],
        "by_turns": curves_by_turns(run, metric, **numbers),
        "diversity": diversity(run, **passing) if chosen.diversity and judged else None,
    }

"""`bestofk compare`: is one run better than another, at which k, and how sure is that?"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from bestofk.cli._files import FileOptions, metrics_of, read_all, whole_numbers
from bestofk.cli._options import argument, option, parsed


class CompareOptions(FileOptions):
    """Compare runs on the same problems, paired by problem, at every k.

    The others are compared with the first; two metrics, two uses of one file.
    """

    examples: ClassVar = (
        "bestofk compare base=a.jsonl trained=b.jsonl",
        "bestofk compare a.jsonl --metric maj@k,select@k --scores judge",
    )

    groups: ClassVar = {
        "Files": ("runs", "map", "where"),
        "Test": ("at", "all_pairs", "cluster", "metric", "scores", "value", "threshold", "bounds"),
        "Output": ("wide", "k", "latex", "methods"),
    }

    runs: tuple[str, ...] = argument("FILE FILE ...")
    """Files or run folders, each PATH or NAME=PATH."""
    at: str = option("K", default="")
    """Test this k alone (or these, separated by commas), chosen before the data were seen: finds
    smaller differences than the test over every k."""
    all_pairs: bool = False
    """Compare every two runs; corrected over all."""


def main(argv: list[str]) -> int:
    chosen = parsed(CompareOptions, argv, "bestofk compare")
    from bestofk.cli import _tables
    from bestofk.evaluation import compare

    at = whole_numbers(chosen.at, "--at")
    if at and chosen.ks():
        raise ValueError("--at chooses the k that are tested and shown: leave --k out")
    runs = sources = read_all(chosen.runs, chosen)
    metrics = metrics_of(chosen, runs)
    if len(runs) == 1 and len(metrics) > 1:
        runs = [replace(runs[0], name=each) for each in metrics]
    result = compare(
        runs,
        metrics if len(metrics) > 1 else metrics[0],
        at=at or None,
        pairs="all" if chosen.all_pairs else "first",
        **chosen.numbers(),
    )
    if chosen.as_json:
        print(_tables.as_json(result))
        return 0
    for source in sources:
        _tables.print_source(source)
    for each in result:
        _tables.print_comparison(each, wide=chosen.wide)
        _tables.print_for_papers(each, latex=chosen.latex, methods=chosen.methods)
    return 0

"""`bestofk compare`: is one run better than another, at which k, and how sure is that?"""

from __future__ import annotations

from dataclasses import dataclass

import tyro

from bestofk.cli._files import Reading, metric_of, read_all


@dataclass(frozen=True, kw_only=True)
class Options(Reading):
    """Compare runs on the same problems, paired by problem, at every k.

    Takes files of samples or run folders, each PATH or NAME=PATH; the first is the one the others
    are compared with: bestofk compare base=a.jsonl trained=b.jsonl
    """

    runs: tyro.conf.Positional[tuple[str, ...]]
    """Two or more files or run folders."""
    resamples: int = 4000
    """Sign flips for p-values and draws for the crossing."""


def main(argv: list[str]) -> int:
    chosen = tyro.cli(Options, args=argv, prog="bestofk compare")
    from bestofk.cli import _show
    from bestofk.evaluation import compare

    runs = read_all(chosen.runs, chosen)
    found = compare(runs, metric_of(chosen, runs), resamples=chosen.resamples, **chosen.numbers())
    if chosen.json:
        print(_show.as_json(found))
        return 0
    for run in runs:
        _show.source(run)
    for each in found:
        _show.comparison(each, chosen.ks())
    return 0

"""`bestofk report`: runs and files of samples → one page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

from bestofk.cli._files import ReadingOptions
from bestofk.cli._options import argument, option, parsed
from bestofk.cli._terminal import say
from bestofk.evaluation.per_problem import check_metric
from bestofk.messages import counted, is_quiet, printable
from bestofk.reports import SAMPLES, Report, load, make, page_of
from bestofk.sections import Count, NaturalNumber


class ReportOptions(ReadingOptions):
    """One self-contained page on what best-of-k is worth, and which run is better.

    The others are compared with the first.
    """

    examples: ClassVar = (
        "bestofk report base=a.jsonl trained=b.jsonl -o report.html",
        "bestofk report --watch runs/a",
    )

    groups: ClassVar = {
        "Files": ("runs", "out", "title"),
        "Page": ("metrics", "scores", "value", "threshold", "bounds", "cluster", "k", "samples"),
        "Follow a run": ("watch", "port"),
    }

    runs: tuple[str, ...] = argument("RUN ...")
    """Run folders and files of samples of many tools, each PATH or NAME=PATH."""
    out: Path = option("FILE", "-o", default=Path("report.html"))
    """Where the page goes. An existing file is replaced."""
    title: str | None = None
    """Title of the page; by default the runs' names."""
    metrics: tuple[str, ...] | None = option("METRIC ...", default=None)
    """Curves to show: pass@k, max@k, maj@k, select@k, retry@k, pass^k, atleast2@k, maj@k:weighted,
    ...; by default pass@k, and max@k where rewards are graded."""
    k: Count | None = None
    """The largest k; problems with fewer scored samples are left out and counted."""
    samples: NaturalNumber = SAMPLES
    """About how many samples go on the page; 0 for none (under 1 MB then)."""
    resamples: int | None = None
    """Draws of the bootstrap and sign flips; by default as many as the printed digits need."""
    watch: bool = False
    """Serve the page on this machine and follow the runs while they train; writes no file."""
    port: int = 8877
    """Port for --watch; 0 takes a free one."""


def main(argv: list[str]) -> int:
    chosen = parsed(ReportOptions, argv, "bestofk report")
    for metric in chosen.metrics or ():
        check_metric(metric)
    if chosen.watch:
        follow(chosen)
        return 0
    report = run(chosen)
    if chosen.as_json:
        print(json.dumps(summary(report), indent=2))
    else:
        show(report)
    return 0


def run(chosen: ReportOptions) -> Report:
    """The report, with a line of progress on standard error where a person looks on."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, quiet=is_quiet())
    with console.status("reading", spinner="dots") as status:

        def tell(what: str) -> None:
            status.update(Text(printable(what)))

        return make(
            load(chosen.runs, say=lambda what: tell(f"reading {what}"), **chosen.reading()),
            chosen.out,
            say=tell,
            **page_options(chosen),
        )


def page_options(chosen: ReportOptions) -> dict[str, Any]:
    """What the page is made with, wherever it goes."""
    names = ("title", "metrics", "samples")
    return {**chosen.numbers(), "k_max": chosen.k, **{n: getattr(chosen, n) for n in names}}


def follow(chosen: ReportOptions) -> None:
    """Serve the page until interrupted, and make it again while the runs grow."""
    from bestofk.reports.watching import watch

    paths = [watched(argument) for argument in chosen.runs]
    if not paths:
        raise ValueError("--watch needs at least one run folder or file of samples")

    def page() -> str:
        return page_of(load(chosen.runs, **chosen.reading()), live=True, **page_options(chosen))[1]

    def tell(text: str) -> None:
        print(json.dumps({"said": text}) if chosen.as_json else printable(text), flush=True)

    watch(paths, page, chosen.port, tell)


def watched(argument: str) -> Path:
    """The path of PATH or NAME=PATH, which may not be there yet."""
    from bestofk.samples import split_name

    try:
        return split_name(argument)[1]
    except FileNotFoundError:
        return Path(argument.rpartition("=")[2])


def summary(report: Report) -> dict[str, Any]:
    """What `--json` prints."""
    findings = report.findings
    return {
        "page": str(report.page),
        "bytes": report.size,
        "runs": [each.name for each in findings.sources],
        "problems": len(findings.problems),
        "verdicts": [
            {"a": one.a, "b": one.b, "metric": one.metric, "verdict": one.verdict}
            for one in findings.comparisons
        ],
        "notes": list(findings.notes),
    }


def show(report: Report) -> None:
    """What was found, in words, and what was written."""
    findings = report.findings
    for one in findings.comparisons:
        say(f"{one.metric}: {one.verdict}")
    for note in findings.notes:
        say(f"note: {note}")
    samples = sum(s.samples.rewards.size for s in findings.sources if s.samples is not None)
    print(
        f"{report.page}: {counted(len(findings.sources), 'run')}, "
        f"{counted(len(findings.problems), 'problem')}, {counted(samples, 'sample')}; "
        f"{report.size / 1e6:.2f} MB"
    )

"""`bestofk report`: runs and files of samples → one page, figures and tables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from bestofk.cli._files import pairs
from bestofk.reports import SAMPLES, Reading, Report, load, make, page_of


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """One self-contained page on what best-of-k is worth, and which run is better.

    Takes run folders and files of samples, each PATH or NAME=PATH; the first is the one the others
    are compared with: bestofk report base=a.jsonl trained=b.jsonl -o report.html
    """

    runs: tyro.conf.Positional[tuple[str, ...]]
    """Run folders and files of samples: JSONL, CSV, parquet, of many tools."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("report.html")
    """Where the page goes. An existing file is replaced."""
    title: str | None = None
    """At the head of the page; by default the runs' names."""
    metrics: tuple[Literal["pass@k", "max@k", "maj@k", "pass^k"], ...] | None = None
    """Curves to show; by default pass@k, and max@k where rewards are graded."""
    threshold: float | None = None
    """A reward of at least this passes; by default 1, where rewards lie in [0, 1]."""
    bounds: tuple[float, float] | None = None
    """The least and the greatest reward there can be, where that is not 0 and 1."""
    map: Annotated[tuple[str, ...], tyro.conf.arg(aliases=["--columns"])] = ()
    """role=column, to override the detected mapping; `role=` leaves a column out."""
    where: tuple[str, ...] = ()
    """column=value: only such records count."""
    encoding: str = "utf-8"
    """Of text files."""
    k: int | None = None
    """The largest k; problems with fewer scored samples are left out and counted."""
    beyond: int = 16
    """Extrapolate pass@k to this many times n, at most 16; 0 for not at all."""
    confidence: float = 0.95
    """Level of the intervals."""
    resamples: int | None = None
    """Draws of the bootstrap and sign flips; by default as many as the printed digits need."""
    seed: int = 0
    """Seed of the bootstrap: the same seed gives the same page."""
    samples: int = SAMPLES
    """About how many samples go on the page; 0 for none (under 1 MB then)."""
    png: Path | None = None
    """Also write the figures into this folder, as PNG (needs matplotlib)."""
    svg: Path | None = None
    """The same as SVG."""
    csv: Path | None = None
    """Also write the numbers into this folder, as CSV."""
    watch: bool = False
    """Serve the page on this machine and follow the runs while they train; writes no file."""
    port: int = 8877
    """Port for --watch; 0 takes a free one."""


def main(argv: list[str]) -> int:
    chosen = tyro.cli(ReportOptions, args=argv, prog="bestofk report")
    if chosen.watch:
        follow(chosen)
        return 0
    report = run(chosen)
    show(report)
    return 0


def run(chosen: ReportOptions) -> Report:
    """The report, with a line of progress on standard error where a person looks on."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    with console.status("reading", spinner="dots") as status:

        def say(what: str) -> None:
            status.update(Text(printable(what)))

        reading = Reading(
            columns=pairs(chosen.map, "--map"),
            where=pairs(chosen.where, "--where"),
            encoding=chosen.encoding,
            say=lambda what: say(f"reading {what}"),
        )
        sources = load(chosen.runs, reading)
        return make(
            sources,
            chosen.out,
            png=chosen.png,
            svg=chosen.svg,
            csv=chosen.csv,
            say=say,
            **numbers(chosen),
        )


def numbers(chosen: ReportOptions) -> dict[str, Any]:
    """What the page is made with, wherever it goes."""
    return {
        "title": chosen.title,
        "metrics": chosen.metrics,
        "threshold": chosen.threshold,
        "bounds": chosen.bounds,
        "k_max": chosen.k,
        "beyond": chosen.beyond,
        "confidence": chosen.confidence,
        "resamples": chosen.resamples,
        "seed": chosen.seed,
        "samples": chosen.samples,
    }


def follow(chosen: ReportOptions) -> None:
    """Serve the page until interrupted, and make it again while the runs grow."""
    from bestofk.reports.sources import split_name
    from bestofk.reports.watching import watch

    reading = Reading(
        columns=pairs(chosen.map, "--map"),
        where=pairs(chosen.where, "--where"),
        encoding=chosen.encoding,
    )
    paths = [split_name(argument)[1] for argument in chosen.runs]
    if not paths:
        raise ValueError("--watch needs at least one run folder or file of samples")

    def page() -> str:
        return page_of(load(chosen.runs, reading), live=True, **numbers(chosen))[2]

    watch(paths, page, chosen.port, lambda text: print(printable(text), flush=True))


def show(report: Report) -> None:
    """What was found, in words, and what was written."""
    findings = report.findings
    for one in findings.comparisons:
        print(printable(f"{one.metric}: {one.verdict}"))
    for note in (*findings.notes, *(note for s in findings.sources for note in s.notes)):
        print(printable(f"note: {note}"))
    samples = sum(s.samples.rewards.size for s in findings.sources if s.samples is not None)
    print(
        f"{report.page}: {len(findings.sources)} runs, {len(findings.problems)} problems, "
        f"{samples} samples; {report.size / 1e6:.2f} MB"
    )
    for path in report.files:
        print(path)


def printable(text: str) -> str:
    """Text for a terminal: ids and names come from files, and may hold escape sequences.

    >>> printable("a" + chr(27) + "[31mb")
    'a�[31mb'
    """
    return "".join(c if c.isprintable() else "�" for c in text)

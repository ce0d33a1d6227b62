"""Reports: one self-contained HTML page from runs and files of samples."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bestofk.storage import check_writable, write_atomically

from .chosen_samples import excerpts
from .page import render
from .report_data import page_data
from .report_results import Findings, evaluate
from .sources import Source, load
from .training import progress

__all__ = ["Findings", "Report", "Source", "evaluate", "load", "make", "page_of"]

SAMPLES = 2000
"""Samples that go on a page unless told otherwise: some megabytes at most."""


@dataclass(frozen=True)
class Report:
    """What was made."""

    findings: Findings
    page: Path
    """The HTML file."""
    size: int
    """Of the page, in bytes."""


def make(sources: Sequence[Source], out: Path, **options: Any) -> Report:
    """Write a report on `sources` to `out`, whole or not at all.

    Args:
        options: as `page_of` takes them.

    Raises:
        ValueError: see `evaluate`. OSError: cannot write.
    """
    check_writable(out)  # before the work, not after it
    findings, text = page_of(sources, **options)
    write_atomically(out, text, sync=False)
    return Report(findings, out, len(text.encode("utf-8")))


def page_of(
    sources: Sequence[Source],
    *,
    title: str | Callable[[Findings], str] | None = None,
    created: str | None = None,
    samples: int = SAMPLES,
    live: bool = False,
    say: Callable[[str], None] = lambda _: None,
    **numbers: Any,
) -> tuple[Findings, str]:
    """What was found, and the page.

    Args:
        title: at the head of the page, or what makes it from the findings; by default the runs'
            names.
        created: the time stated on the page; by default now.
        samples: about how many samples go on the page; 0 for none.
        live: the page asks its server for a newer one (`watching`).
        say: told what is being done.
        numbers: metrics, threshold, k_max, confidence, ...: what `evaluate` takes.
    """
    findings = evaluate(sources, say=say, **numbers)
    say("the page")
    shown = excerpts(sources, findings.problems, findings.passes, findings.threshold, samples)
    heading = title(findings) if callable(title) else title
    heading = heading or default_title([source.name for source in sources])
    version = importlib.metadata.version("bestofk")
    data = page_data(findings, shown, title=heading, version=version, created=created)
    head = sources if live or len(sources) == 1 else ()
    data["progress"] = list(filter(None, map(progress, head)))
    return findings, render(data, title=heading, version=version, live=live)


def default_title(names: Sequence[str]) -> str:
    """
    >>> default_title(["base", "grpo", "max@16"]), default_title(["a"])
    ('base, grpo and max@16', 'a')
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"

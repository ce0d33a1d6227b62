"""Reports: one self-contained HTML page from runs and files of samples, and figures for papers."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bestofk.common import check_writable

from .chosen_samples import excerpts
from .page import render, write
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
    files: tuple[Path, ...]
    """Figures written beside it."""


def make(
    sources: Sequence[Source],
    out: Path,
    *,
    title: str | Callable[[Findings], str] | None = None,
    created: str | None = None,
    samples: int = SAMPLES,
    png: Path | None = None,
    svg: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
    **numbers: Any,
) -> Report:
    """Write a report on `sources` to `out`, whole or not at all.

    Args:
        title: at the head of the page, or what makes it from the findings; by default the runs'
            names.
        created: the time stated on the page; by default now.
        samples: about how many samples go on the page; 0 for none.
        png, svg: folders for the figures; made where they are missing.
        say: told what is being done.
        numbers: metrics, threshold, k_max, confidence, ...: what `evaluate` takes.

    Raises:
        ValueError: see `evaluate`; matplotlib is missing. OSError: cannot write.
    """
    check_places(out, {"png": png, "svg": svg})
    findings, data, text = page_of(
        sources, title=title, created=created, samples=samples, say=say, **numbers
    )
    write(out, text)
    files: list[Path] = []
    for kind, folder in (("png", png), ("svg", svg)):
        if folder is not None:
            from .figures import write_figures

            say(f"{kind} figures")
            files += write_figures(data, folder, kind)
    return Report(findings, out, len(text.encode("utf-8")), tuple(files))


def page_of(
    sources: Sequence[Source],
    *,
    title: str | Callable[[Findings], str] | None = None,
    created: str | None = None,
    samples: int = SAMPLES,
    live: bool = False,
    say: Callable[[str], None] = lambda _: None,
    **numbers: Any,
) -> tuple[Findings, dict[str, Any], str]:
    """What was found, the data of the page, and the page. Arguments as in `make`."""
    findings = evaluate(sources, say=say, **numbers)
    say("the page")
    shown = excerpts(sources, findings.problems, findings.passes, findings.threshold, samples)
    heading = title(findings) if callable(title) else title
    heading = heading or default_title([source.name for source in sources])
    version = importlib.metadata.version("bestofk")
    data = page_data(findings, shown, title=heading, version=version, created=created)
    data["progress"] = list(filter(None, map(progress, sources))) if live else []
    return findings, data, render(data, title=heading, version=version, live=live)


def check_places(out: Path, folders: Mapping[str, Path | None]) -> None:
    """Find out before the work what would stop it after; make the folders.

    Raises:
        ValueError: matplotlib is missing. OSError: a place that cannot be written to.
    """
    from .figures import require_matplotlib

    check_writable(out)
    for kind, folder in folders.items():
        if folder is None:
            continue
        require_matplotlib()
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(f"--{kind} takes a folder for its files; {folder} is a file")
        folder.mkdir(parents=True, exist_ok=True)


def default_title(names: Sequence[str]) -> str:
    """
    >>> default_title(["base", "grpo", "max@16"]), default_title(["a"])
    ('base, grpo and max@16', 'a')
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"

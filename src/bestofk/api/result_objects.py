"""A report that was written, and the signal of a batch, as objects that show themselves."""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from bestofk.objectives.diagnostics import Signal
from bestofk.samples import Samples


@runtime_checkable
class SampledRun(Protocol):
    """A trained run, as far as evaluation and reports need it."""

    @property
    def path(self) -> Path: ...

    def sample(
        self, split: str | None = None, n: int | None = None, prompts: int | None = None
    ) -> Samples: ...


@dataclass(frozen=True, repr=False)
class ReportFile:
    """A report that was written."""

    path: Path
    size: int
    """Bytes of the page."""
    verdicts: tuple[str, ...]

    def __repr__(self) -> str:
        return "\n".join([f"{self.path} ({self.size / 1e6:.1f} MB)", *self.verdicts])

    def _repr_html_(self) -> str:
        paragraphs = "".join(f"<p>{html.escape(text)}</p>" for text in self.verdicts)
        path = html.escape(str(self.path), quote=True)
        return f'<p><a href="{path}">{path}</a></p>{paragraphs}'


class SignalResult(Signal):
    """How many groups of a batch teach an objective something."""

    def __repr__(self) -> str:
        used = self.groups - self.dropped
        lost = f"; {self.unscored} samples unscored" if self.unscored else ""
        return f"{used - self.silent} of {used} groups carry signal; k ≤ {self.largest_k}{lost}"

    __str__ = __repr__

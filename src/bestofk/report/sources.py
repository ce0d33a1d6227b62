"""What `report` is given: run folders and files of samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bestofk.evaluation.results import Samples


@dataclass(frozen=True, kw_only=True)
class Source:
    """One run: its samples, and what its folder says about how it was made."""

    name: str
    label: str
    format: str
    samples: Samples | None
    metrics: tuple[Mapping[str, Any], ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)

    def fact(self, key: str) -> str | None:
        return (
            None
            if self.samples is None or self.samples.metadata.get(key) is None
            else str(self.samples.metadata[key])
        )

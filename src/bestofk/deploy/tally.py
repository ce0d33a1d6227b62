"""What /metrics of `serve` shows, in Prometheus' text format."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from bestofk.deploy.racing import Race

SECONDS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Bounds of the histogram of a request's time."""


class Tally:
    """Counts since the server started."""

    def __init__(self) -> None:
        self.counts = Counter[tuple[str, str]]()
        self.in_progress = 0

    def add(self, name: str, label: str, value: float = 1) -> None:
        self.counts[name, label] += value  # type: ignore[assignment]  # seconds are no integers

    def time(self, seconds: float) -> None:
        """A request that took so long, in the histogram."""
        for bound in (*SECONDS, math.inf):
            text = "+Inf" if bound == math.inf else f"{bound:g}"
            self.add("request_seconds_bucket", f'le="{text}"', int(seconds <= bound))
        self.add("request_seconds_sum", "", seconds)
        self.add("request_seconds_count", "")

    def draws(self, race: Race) -> None:
        self.add("draws_total", 'end="finished"', len(race.lines))
        self.add("draws_total", 'end="failed"', len(race.failures))
        self.add("draws_total", 'end="cancelled"', race.cancelled)
        self.add("late_total", "", int(race.is_late))
        unscored = sum(line["status"] == "unscored" for line in race.lines)
        self.add("verdicts_unscored_total", "", unscored)

    def answer(self, answer: Mapping[str, Any]) -> None:
        told = answer["bestofk"]
        self.add("answers_total", f'chosen_by="{told["chosen_by"]}"')
        self.add("answers_passed_total", "", int(told["passed"]))
        self.add("tokens_total", 'kind="completion"', answer["usage"]["completion_tokens"])
        self.add("tokens_total", 'kind="prompt"', answer["usage"]["prompt_tokens"])

    def text(self) -> str:
        kinds = {"request_seconds_bucket": "histogram", "in_progress": "gauge"}
        lines, typed = [], set[str]()
        self.counts["in_progress", ""] = self.in_progress
        for (name, label), value in sorted(self.counts.items(), key=lambda item: item[0][0]):
            base = name.removesuffix("_bucket")
            if name not in typed and not name.endswith(("seconds_sum", "seconds_count")):
                lines.append(f"# TYPE bestofk_{base} {kinds.get(name, 'counter')}")
            typed.add(name)
            lines.append(f"bestofk_{name}{f'{{{label}}}' if label else ''} {value:g}")
        return "\n".join(lines) + "\n"

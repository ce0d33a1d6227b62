"""What a person sees: a live table on a terminal, plain lines elsewhere, trackers beside either."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bestofk.training.processes import Processes


class Display:
    """Plain lines, one per step; and the trackers. Silent on all processes but the first."""

    def __init__(self, processes: Processes, steps: int, k: int) -> None:
        self.processes, self.steps, self.k = processes, steps, k
        self._began, self._first = time.monotonic(), 0

    def start(self, step: int, title: str, notes: list[str], config: Mapping[str, Any]) -> None:
        """`step` steps are done already (a resumed run)."""
        self._began, self._first = time.monotonic(), step
        if self.processes.accelerator.trackers or self.processes.accelerator.log_with:
            plain = {name: value if isinstance(value, int | float | str) else str(value)
                     for name, value in config.items()}  # fmt: skip
            folder = Path(config["run.dir"])
            self.processes.accelerator.init_trackers(
                "bestofk",
                config=plain,
                init_kwargs={
                    "wandb": {"name": folder.name, "group": folder.name, "dir": str(folder)},
                    "trackio": {"name": folder.name, "resume": "allow"},
                },
            )
        if self.processes.main:
            self.say(title)
            for line in notes:
                self.say(f"note: {line}")

    def say(self, line: str) -> None:
        print(line, flush=True)

    def step(self, line: Mapping[str, Any]) -> None:
        self._track(line)
        if self.processes.main and not is_quiet():
            self.say(step_line(line, self.steps, self.k, self.eta(line["step"])))

    def evaluation(self, line: Mapping[str, Any]) -> None:
        self._track(line)
        if self.processes.main:
            self.say(evaluation_line(line))

    def eta(self, step: int) -> float:
        """Seconds to go, from the pace of this session."""
        done = max(step - self._first, 1)
        return (time.monotonic() - self._began) / done * (self.steps - step)

    def _track(self, line: Mapping[str, Any]) -> None:
        prefix = "validation/" if line["kind"] == "evaluation" else "train/"
        numbers = {prefix + name: value for name, value in flat(line)}
        self.processes.accelerator.log(numbers, step=line["step"])

    def close(self) -> None:
        """Leave the terminal as it was."""


class LiveDisplay(Display):
    """A table that is drawn again at every step; what must be kept scrolls above it."""

    def __init__(self, processes: Processes, steps: int, k: int) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__(processes, steps, k)
        self.console = Console()
        self._line: Mapping[str, Any] = {}
        self._checked: Mapping[str, Any] = {}
        self._live = Live(console=self.console, auto_refresh=False, transient=False)
        self._live.start()

    def say(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False)

    def step(self, line: Mapping[str, Any]) -> None:
        self._track(line)
        self._line = line
        self._draw()

    def evaluation(self, line: Mapping[str, Any]) -> None:
        super().evaluation(line)
        self._checked = line

    def _draw(self) -> None:
        from rich.table import Table

        line, table = self._line, Table.grid(padding=(0, 2))
        step = line["step"]
        bar = "━" * round(24 * step / self.steps)
        table.add_row("step", f"{step} / {self.steps}  {bar:<24}  {clock(self.eta(step))} to go")
        table.add_row("reward", rewards_text(line, self.k))
        table.add_row("groups", groups_text(line))
        table.add_row("policy", f"entropy {number(line.get('entropy'))}   grad norm "
                      f"{number(line.get('grad_norm'))}   sampler gap "
                      f"{number(line.get('sampler_gap_mean'))}")  # fmt: skip
        table.add_row("speed", f"{line['tokens_per_second']:,.0f} tokens/s   {phases(line)}")
        self._live.update(table, refresh=True)

    def close(self) -> None:
        self._live.stop()


def is_quiet() -> bool:
    """Whether the command was given --quiet: no lines of progress."""
    return bool(os.environ.get("BESTOFK_QUIET"))


def make_display(processes: Processes, steps: int, k: int) -> Display:
    live = processes.main and sys.stdout.isatty() and not is_quiet()
    return (LiveDisplay if live else Display)(processes, steps, k)


def step_line(line: Mapping[str, Any], steps: int, k: int, eta: float) -> str:
    """One step in one line."""
    return (
        f"step {line['step']}/{steps}  reward {rewards_text(line, k)}  {groups_text(line)}  "
        f"entropy {number(line.get('entropy'))}  gap {number(line.get('sampler_gap_mean'))}  "
        f"{line['tokens_per_second']:,.0f} tok/s  "
        f"{phases(line)}  {clock(eta)} to go"
    )


def rewards_text(line: Mapping[str, Any], k: int) -> str:
    names = dict.fromkeys(("reward", "pass@1", f"max@{k}"))
    return "  ".join(f"{name} {number(line.get(name))}" for name in names).removeprefix("reward ")


def groups_text(line: Mapping[str, Any]) -> str:
    text = f"signal {line.get('groups_with_signal', 0)}/{line.get('groups', 0)} groups"
    shown = {"groups_dropped": "dropped", "unscored": "unscored", "refilled": "refilled"}
    for name, what in shown.items():
        if line.get(name):
            text += f", {line[name]} {what}"
    return text


def evaluation_line(line: Mapping[str, Any]) -> str:
    """One evaluation in one line, each figure with its interval."""
    shown = "pass@" if "pass@1" in line["results"] else "max@"
    parts = [f"{name} {number(cell['value'])} [{number(cell['low'])}, {number(cell['high'])}]"
             for name, cell in line["results"].items() if name.startswith(shown)]  # fmt: skip
    return (
        f"validation at step {line['step']} ({line['prompts']} prompts × "
        f"{line['samples_per_prompt']} samples, 95%): {'  '.join(parts)}"
    )


def phases(line: Mapping[str, Any]) -> str:
    """Seconds of each phase; on a GPU with the share of the card's speed that it reached."""
    reached = line.get("floor_share", {})
    peak = {name: f" ({share:.0%} of peak)" for name, share in reached.items()}
    return " ".join(f"{name} {s:.1f}s{peak.get(name, '')}" for name, s in line["seconds"].items())


def flat(line: Mapping[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    """Numbers of nested mappings under slashed names."""
    result: list[tuple[str, float]] = []
    for name, value in line.items():
        if isinstance(value, Mapping):
            result += flat(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            result.append((prefix + name, float(value)))
    return result


def number(value: float | None) -> str:
    """Three digits after the point, or four significant ones where small."""
    if value is None or value != value:
        return "–"
    return f"{value:.3f}" if value == 0 or abs(value) >= 0.01 else f"{value:.1e}"


def clock(seconds: float) -> str:
    """h:mm:ss."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"

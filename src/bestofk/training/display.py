"""What a person sees, one line a step; and the trackers."""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from bestofk import metrics
from bestofk.messages import is_quiet
from bestofk.training.processes import Processes
from bestofk.training.trackers import start_trackers


class Display:
    """Plain lines, one per step; and the trackers. Silent on all processes but the first."""

    def __init__(self, processes: Processes, steps: int, k: int, evaluate_every: int = 0) -> None:
        self.processes, self.steps, self.k = processes, steps, k
        self._pace, self.trackers = Pace(steps, evaluate_every), list[Any]()

    def start(self, title: str, notes: list[str], config: Mapping[str, Any]) -> None:
        self._pace.start(time.monotonic())
        if self.processes.main:
            self.trackers = start_trackers(config["run.trackers"], config)
            if not is_quiet():
                self.say(title)
            for line in notes:
                self.say(f"note: {line}")

    def say(self, line: str) -> None:
        print(line, flush=True)

    def step(self, line: Mapping[str, Any]) -> None:
        self._track(line)
        if self.processes.main and not is_quiet():
            width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
            self._pace.take("step", line["step"], time.monotonic())
            eta = self._pace.seconds_to_go(line["step"])
            self.say(step_line(line, self.steps, self.k, eta, width))

    def evaluation(self, line: Mapping[str, Any]) -> None:
        self._track(line)
        self._pace.take("evaluation", line["step"], time.monotonic())
        if self.processes.main:
            self.say(evaluation_line(line))

    def _track(self, line: Mapping[str, Any]) -> None:
        prefix = "train/" if line["kind"] == "train" else f"{line.get('set', line['split'])}/"
        numbers = {prefix + name: value for name, value in flat(line)}
        for tracker in self.trackers:
            tracker.log(numbers, step=line["step"])

    def close(self) -> None:
        for tracker in self.trackers:
            tracker.finish()


class Pace:
    """Seconds that a step and an evaluation take, since this process began."""

    def __init__(self, steps: int, evaluate_every: int) -> None:
        self.steps, self.evaluate_every = steps, evaluate_every
        self._spent = {"step": 0.0, "evaluation": 0.0}
        self._taken: dict[str, set[int]] = {"step": set(), "evaluation": set()}
        """The steps after which one ended: several sets are one evaluation."""
        self._last = 0.0

    def start(self, now: float) -> None:
        self._last = now

    def take(self, kind: Literal["step", "evaluation"], step: int, now: float) -> None:
        """What has ended now began when the last one ended."""
        self._spent[kind] += now - self._last
        self._taken[kind].add(step)
        self._last = now

    def seconds_to_go(self, step: int) -> float:
        every = self.evaluate_every
        evaluations = -(-self.steps // every) - step // every if every else 0
        to_go = {"step": self.steps - step, "evaluation": evaluations}
        mean = {kind: self._spent[kind] / max(len(self._taken[kind]), 1) for kind in to_go}
        return sum(mean[kind] * to_go[kind] for kind in to_go)


def step_line(
    line: Mapping[str, Any], steps: int, k: int, eta: float, width: int | None = None
) -> str:
    """One step in one line: as many facts as fit into a terminal of this width, else all."""
    parts = [
        f"step {line['step']}/{steps}  {clock(eta)} to go  {rewards_text(line, k)}",
        groups_text(line),
        f"entropy {number(line.get(metrics.ENTROPY))}",
        speed(line),
        f"gap {number(line.get(metrics.GAP_MEAN))}",
        phases(line),
    ]
    while width is not None and len(parts) > 1 and len("  ".join(parts)) > width:
        parts.pop()
    return "  ".join(parts)


def rewards_text(line: Mapping[str, Any], k: int) -> str:
    names = dict.fromkeys((metrics.REWARD, metrics.PASS_1, f"max@{k}"))
    return "  ".join(f"{name} {number(line.get(name))}" for name in names)


def groups_text(line: Mapping[str, Any]) -> str:
    text = f"signal {line.get(metrics.GROUPS_WITH_SIGNAL, 0)}/{line.get(metrics.GROUPS, 0)} groups"
    shown = {
        metrics.GROUPS_DROPPED: "dropped",
        metrics.UNSCORED: "unscored",
        metrics.REFILLED: "refilled",
    }
    for name, what in shown.items():
        if line.get(name):
            text += f", {line[name]} {what}"
    ends = line.get(metrics.ENDED_BY, {})
    cut_off = sum(ends.get(name, 0.0) for name in ("length", "turn_tokens", "own_tokens"))
    cut_off = max(cut_off, line.get(metrics.AT_LENGTH_LIMIT, 0.0))
    if cut_off > 0.1:
        text += f", {cut_off:.0%} cut off"
    if line.get(metrics.TOOL_ERRORS):
        text += f", {number(line[metrics.TOOL_ERRORS])} tool errors a trajectory"
    return text


def evaluation_line(line: Mapping[str, Any]) -> str:
    """One evaluation in one line, each figure with its interval: max@k for graded rewards."""
    cells = line[metrics.RESULTS]
    zero_one = cells.get(metrics.PASS_1, {}).get("value") == cells.get("max@1", {}).get("value")
    shown = "pass@" if metrics.PASS_1 in cells and zero_one else "max@"
    parts = [f"{name} {number(cell['value'])} [{number(cell['low'])}, {number(cell['high'])}]"
             for name, cell in cells.items()
             if name.startswith((shown, "select", "retry", "maj", "pass^", "atleast"))]  # fmt: skip
    left_out = line.get(metrics.PROMPTS_LEFT_OUT, 0)
    left_out = f"; {left_out} left out: too few of their samples are scored" if left_out else ""
    return (
        f"{line.get('set', line['split'])} at step {line['step']} ({line['prompts']} prompts × "
        f"{line['samples_per_prompt']} samples, 95%{left_out}): {'  '.join(parts)}"
    )


def speed(line: Mapping[str, Any]) -> str:
    """Sampled tokens per second of the whole step, and of its sampling alone."""
    of_step, of_sampling = line[metrics.SPEED], line.get(metrics.SAMPLING_SPEED)
    alone = "" if of_sampling is None else f" (sampling {of_sampling:,.0f})"
    return f"{of_step:,.0f} tok/s{alone}"


def phases(line: Mapping[str, Any]) -> str:
    """Seconds of each phase."""
    return " ".join(f"{name} {seconds:.1f}s" for name, seconds in line[metrics.SECONDS].items())


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
    rounded = round(seconds)
    return f"{rounded // 3600}:{rounded // 60 % 60:02d}:{rounded % 60:02d}"


FIRST_WORD, NEXT_WORD = 5.0, 15.0
"""Seconds until a long first phase is spoken of, and between two words."""


@contextlib.contextmanager
def say_while_waiting(say: Callable[[str], None], what: str) -> Iterator[None]:
    """Say now and then that something still goes on: the first step compiles its kernels."""
    over, began = threading.Event(), time.monotonic()

    def watch() -> None:
        wait = FIRST_WORD
        while not over.wait(wait):
            spent = time.monotonic() - began
            say(f"{what} for {spent:.0f} s so far: the first step compiles for this GPU")
            wait = NEXT_WORD

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()

"""What every part of a running step needs: settings, processes, parts, seeds and clocks."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import torch

from bestofk.learning import Learner
from bestofk.messages import is_quiet
from bestofk.objectives import Objective
from bestofk.tasks import Split
from bestofk.training.display import Display, say_while_waiting
from bestofk.training.processes import Processes
from bestofk.training.resolve import RunSettings
from bestofk.training.setup import RunParts
from bestofk.types import Prompt


@dataclass(frozen=True)
class RunState:
    """What a run must remember beside the learner's state."""

    step: int = 0
    """Steps done."""
    position: int = 0
    """Position of the next prompt in the training stream."""
    validated: int = -1
    """The step of the last evaluation."""
    best: float | None = None
    """The best value so far of the metric that picks the best checkpoint."""
    last_prompt: str | None = None
    """Id of the prompt before `position`: tells when the data changed."""

    @property
    def is_validated(self) -> bool:
        return self.validated == self.step


@dataclass
class StepContext:
    """A run in progress, as all its parts see it."""

    settings: RunSettings
    processes: Processes
    parts: RunParts
    display: Display
    state: RunState
    seconds: dict[str, float] = field(default_factory=dict)
    """Time spent in each phase of the present step."""
    steps_taken: int = 0
    """Steps that this process has taken."""

    @property
    def objective(self) -> Objective:
        return self.settings.objective

    @property
    def learner(self) -> Learner:
        return self.parts.learner

    @property
    def progress(self) -> float:
        """The share of the run done, which schedules depend on."""
        return self.state.step / self.settings.run.steps

    @cached_property
    def stream(self) -> Split:
        """The training prompts; it never ends."""
        return self.parts.task.split(self.settings.task.split)

    def prompt_at(self, position: int) -> Prompt:
        return self.stream.at(position)

    def seed(self, *parts: int | str) -> int:
        """A seed fixed by the run's seed and these parts."""
        text = json.dumps([self.settings.run.seed, *parts])
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7])

    @contextlib.contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the time spent inside to a phase of the present step."""
        began = time.perf_counter()
        try:
            with memory_named(phase, self.learner):
                yield
        finally:
            spent = time.perf_counter() - began
            self.seconds[phase] = self.seconds.get(phase, 0.0) + spent

    def while_compiling(self, step: int, what: str) -> contextlib.AbstractContextManager[None]:
        """In the first step of this process on a GPU: words while kernels compile."""
        compiles = self.steps_taken == 0 and self.learner.device.type == "cuda"
        if not compiles or not self.processes.main or is_quiet():
            return contextlib.nullcontext()
        return say_while_waiting(self.display.say, f"step {step}: {what}")

    def of_any(self, message: str) -> str:
        """A message that any process has; every process gets the same."""
        return next(filter(None, self.processes.gather(message)), "")


@contextlib.contextmanager
def memory_named(phase: str, learner: Learner) -> Iterator[None]:
    """Where the GPU's memory is full, say in which phase, and what takes less."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        less = (
            f"lower model.advanced.tokens_per_micro_batch (now {learner.batching.budget:,}), or "
            "set model.advanced.gradient_checkpointing"
            if phase == "learn"
            else "lower sampling.advanced.max_rows"
        )
        cause = str(error).partition(". GPU ")[0].rstrip(".")
        raise ValueError(
            f"the GPU's memory is full ({phase}: {cause}): {less}; or end what else runs on this "
            "GPU (nvidia-smi lists it). Then go on with --resume"
        ) from error

"""Batches drawn and judged: the sampler with its present weights, and a server that may be lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, TypeVar, cast

from bestofk import metrics
from bestofk.agreement.one_model import check_output
from bestofk.agreement.sampler_and_learner import Agreement
from bestofk.sampling import Sampling, ServerLost, WeightHolder
from bestofk.sampling.prompts import encode
from bestofk.sampling.weights import named_weights
from bestofk.training.batch import (
    JudgingAside,
    RolloutBatch,
    unscored_without_score,
    with_penalties,
)
from bestofk.training.context import StepContext
from bestofk.types import Group, Prompt, Verdict

Answer = TypeVar("Answer")
ATTEMPTS = 5
"""Times in a row that a server may be lost and come back."""


@dataclass
class Rollouts:
    """The sampler and the judge of a run in progress."""

    context: StepContext
    queue: deque[Future[RolloutBatch]] = field(default_factory=deque)
    """Batches that are drawn and not learnt from yet, in order."""
    sampler_check: dict[str, float] = field(default_factory=dict)
    """Gaps to the learner before and after the sampler got its present weights."""
    was_probed: bool = False
    """Whether sampler and learner were compared since this process started."""
    times_lost: int = 0
    """Times that the server was lost since the last recorded step."""

    def __post_init__(self) -> None:
        self.sampler: Any = self.context.parts.sampler
        self.source: Any = self.context.parts.environment or self.sampler
        """What batches are drawn from; the sampler alone is compared with the learner."""
        self.has_own_weights = isinstance(self.sampler, WeightHolder)
        self.overlaps = self.has_own_weights and self.context.settings.off_policy.ahead > 0
        """Whether batches are drawn ahead while the learner works: by a server, which is apart."""

    @cached_property
    def executor(self) -> ThreadPoolExecutor | InTurns:
        return ThreadPoolExecutor(1, "bestofk-rollouts") if self.overlaps else InTurns()

    @cached_property
    def agreement(self) -> Agreement:
        settings = self.context.settings
        checks_turns = hasattr(self.sampler, "converse") and not self.has_own_weights  # the engine
        return Agreement(
            self.sampler,
            self.context.learner,
            self.context.processes,
            settings.sampling,
            settings.largest_gap,
            named_weights if self.has_own_weights else None,
            several_turns=self.source is not self.sampler and not checks_turns,
        )

    @property
    def probed_gap(self) -> dict[str, float]:
        """The gap between sampler and learner when the sampler got its present weights."""
        gap = self.sampler_check.get(metrics.PROBE_AFTER, 0.0)
        return {metrics.GAP_MEAN: gap, metrics.GAP_MAX: gap}

    def sample(self, step: int, prompts: Sequence[Prompt], attempt: int) -> list[Group]:
        """A group of n completions for each prompt; the draws are fixed by seed, step, attempt."""
        context, source, sampling = self.context, self.source, self.context.settings.sampling
        seed = context.seed("train", step, attempt)
        with (
            context.timed("sample"),
            context.while_compiling(step, "sampling"),
            self.agreement.whole_policy(),
        ):
            if not hasattr(source, "stream"):
                return self.draw(prompts, seed, sampling, wait=not self.overlaps)
            if not prompts:  # inside: all processes gather the weights, also one without prompts
                return []
            groups: dict[int, Group] = {}
            for at, group in source.stream(prompts, seed=seed, sampling=sampling):
                groups[at] = group
                self._aside.submit(group)
            return [groups[at] for at in range(len(prompts))]

    def draw(
        self, prompts: Sequence[Prompt], seed: int, sampling: Sampling, *, wait: bool = True
    ) -> list[Group]:
        """A group for each prompt; with `wait`, a server that is lost is waited for."""

        def ask() -> list[Group]:
            if not prompts:
                return []
            return list(self.source.sample(prompts, seed=seed, sampling=sampling))

        return self._served(ask) if wait else ask()

    @cached_property
    def _aside(self) -> JudgingAside:
        return JudgingAside(self.context.parts.sets[0].judge)

    def judge(self, groups: Sequence[Group]) -> list[list[Verdict]]:
        """A verdict for each completion; groups that were sampled first may have theirs already."""
        settings, is_streamed = self.context.settings, hasattr(self.source, "stream")
        with self.context.timed("judge"):
            judge = self._aside.collect if is_streamed else self.context.parts.sets[0].judge
            verdicts = judge(groups)
            if "scores" in self.context.objective.needs:
                verdicts = unscored_without_score(verdicts, self.context.objective)
            return with_penalties(
                groups,
                verdicts,
                limit=settings.sampling.max_new_tokens,
                buffer=settings.task.advanced.overlong_tokens,
                penalty=settings.task.advanced.overlong_penalty,
            )

    def refresh(self) -> None:
        """Give the sampler the present weights where it has its own, and check what it draws."""
        context = self.context
        if self.has_own_weights:
            with context.timed("update"):
                prompt = context.prompt_at(context.learner.steps)
                self.sampler_check = self._served(partial(self.agreement.refresh, prompt))
        elif not self.was_probed:
            prompt, policy = context.prompt_at(context.state.position), context.parts.policy
            with self.agreement.whole_policy():
                check_output(policy.model, encode(policy.tokenizer, prompt), context.state.step)
            self.agreement.check(*self.agreement.probe(prompt))
        self.was_probed = True

    def is_lost(self) -> bool:
        """Whether the server was lost while it drew the next batch beside the learner, for any
        process; waits for that batch."""
        return self.overlaps and self.context.processes.any(is_server_lost(self.queue[0]))

    def drop_lost(self) -> str:
        """Wait for the batches in the queue. Those the server did not finish are left out, and
        drawn again later; what was said of them, the same on every process."""
        lost = [str(each.exception()) if is_server_lost(each) else "" for each in self.queue]
        complete = min(self.context.processes.gather([*map(bool, lost), True].index(True)))
        while len(self.queue) > complete:
            self.queue.pop()
        return self.context.of_any("".join(lost))

    def recover(self) -> None:
        """Where batches are drawn beside the learner and the server was lost, wait for it."""
        if self.overlaps:  # each batch is drawn with one set of weights
            with self.context.timed("wait"):
                lost = self.drop_lost()
            if lost:
                self._wait_for_server(lost)

    def _served(self, ask: Callable[[], Answer]) -> Answer:
        """What is asked of a sampler. A server that is lost is waited for, gets the weights again
        and is asked once more."""
        if not self.has_own_weights:
            return ask()
        again = False
        while True:
            answer, lost = None, ""
            try:
                if again:
                    prompt = self.context.prompt_at(self.context.learner.steps)
                    self.agreement.refresh(prompt)
                answer = ask()
            except ServerLost as error:
                lost = str(error)
            if not (lost := self.context.of_any(lost)):
                return cast("Answer", answer)
            self._wait_for_server(lost)
            again = True

    def _wait_for_server(self, lost: str) -> None:
        """Wait for a server that was lost and so has none of our weights. All processes call it."""
        self.sampler.version, self.times_lost, gone = None, self.times_lost + 1, ""
        if self.times_lost == ATTEMPTS:
            raise ServerLost(f"{lost}; it answers, and failed {ATTEMPTS} times in a row")
        if self.context.processes.main:
            self.context.display.say(f"{lost}\nwaiting for it")
        try:
            self.sampler.wait()
        except ServerLost as error:
            gone = str(error)
        if gone := self.context.of_any(gone):
            raise ServerLost(gone)


def is_server_lost(batch: Future[RolloutBatch]) -> bool:
    """Whether a batch was not drawn because the server was lost; waits for it."""
    return isinstance(batch.exception(), ServerLost)


def finished(value: Any) -> Future[Any]:
    """A future that has its result."""
    future: Future[Any] = Future()
    future.set_result(value)
    return future


class InTurns:
    """An executor that does at once what is submitted."""

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        return finished(function(*args))

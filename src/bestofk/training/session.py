"""What stands around the loop: the run's parts, its folder, its state, signals, display, timing."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch

from bestofk import runs
from bestofk.common import json_safe
from bestofk.config import Config, leaves
from bestofk.learning import Learner, NonFinite
from bestofk.objectives import Objective
from bestofk.rewards import BatchVerifier
from bestofk.sampling import Sampling, ServerLost, WeightHolder
from bestofk.sampling.draw import AGREEMENT
from bestofk.training.agreement import Agreement
from bestofk.training.batch import JudgingAside, RolloutBatch, with_penalties
from bestofk.training.checks import (
    best_metric,
    cautions,
    check,
    check_installed,
    check_output,
    unsound_weight,
)
from bestofk.training.display import Display, is_quiet, patient
from bestofk.training.processes import Processes, StopSignal, watching
from bestofk.training.record import (
    failure_writer,
    metrics_line,
    model_writer,
    nothing_learnt,
    out_of_reach,
    sample_rows,
    title,
)
from bestofk.training.resume import (
    RunState,
    keep_plan,
    keep_settings,
    open_folder,
    restore,
    save_checkpoint,
    take_plan,
)
from bestofk.training.setup import RunParts, make_parts, with_usual
from bestofk.training.validation import evaluate
from bestofk.types import Group, Prompt, Verdict, Verifier

Answer = TypeVar("Answer")
ATTEMPTS = 5
"""Times in a row that a server may be lost and come back."""
SILENT_STEPS = 3
"""Steps in a row without a signal after which the likely cause is said."""


@dataclass(frozen=True)
class TrainingEnd:
    """How a run ended."""

    path: Path
    step: int
    """Steps done."""
    signal: int | None = None
    """The signal that ended it early."""


@dataclass
class Session:
    """A run in progress, as the loop sees it."""

    config: Config
    objective: Objective
    processes: Processes
    run: runs.Run
    parts: RunParts
    state: RunState
    stop: StopSignal
    display: Display
    queue: deque[Future[RolloutBatch]] = field(default_factory=deque)
    """Batches that are drawn and not learnt from yet, in order."""
    saved: int = -1
    """The step of the last checkpoint."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Time spent in each phase of the present step."""
    sampler_check: dict[str, float] = field(default_factory=dict)
    recorded: int = 0
    """Steps this process has taken."""
    largest: float = -math.inf
    """Reward of the steps this process has taken."""
    silent: int = 0
    """Steps in a row without a signal, or with one and the same reward for all."""
    callback: Callable[[Mapping[str, Any]], object] | None = None
    ended: bool = False
    """Whether the callback ended the run."""
    probed: bool = False
    """Whether sampler and learner were compared since this process started."""
    losses: int = 0
    """Times that the server was lost since the last recorded step."""

    @property
    def learner(self) -> Learner:
        return self.parts.learner

    @property
    def progress(self) -> float:
        """The share of the run done, which schedules depend on."""
        return self.state.step / self.config.run.steps

    @property
    def gap_limit(self) -> float:
        """The largest gap between sampler and learner that a run goes on with, per token."""
        return self.config.sampling.advanced.agreement or AGREEMENT[self.config.model.precision]

    @property
    def sampler_has_own_weights(self) -> bool:
        return isinstance(self.parts.sampler, WeightHolder)

    @property
    def overlaps(self) -> bool:
        """Whether batches are drawn ahead while the learner works: by a server, which is apart."""
        return self.config.off_policy.ahead > 0 and getattr(self.parts.sampler, "shared", False)

    @cached_property
    def rollouts(self) -> ThreadPoolExecutor | InTurns:
        return ThreadPoolExecutor(1, "bestofk-rollouts") if self.overlaps else InTurns()

    @property
    def probed_gap(self) -> dict[str, float]:
        """The gap between sampler and learner when the sampler got its present weights."""
        gap = self.sampler_check.get("probe_after", 0.0)
        return {"sampler_gap_mean": gap, "sampler_gap_max": gap}

    @cached_property
    def _stream(self) -> Any:
        return self.parts.task.split(self.config.task.split)

    def prompt_at(self, position: int) -> Prompt:
        """The prompt at a position of the training stream, which never ends."""
        return self._stream.at(position)

    def steps(self) -> Iterator[int]:
        """The numbers of the steps to take; evaluates and saves in between.

        Ends after the last step, or when any process was asked to leave, with a checkpoint.
        """
        last = self.config.run.steps
        while not self.leaving():
            self.seconds = {}
            if self.overlaps:  # each batch is drawn with one set of weights
                with self.timed("wait"):
                    lost = self._drop_lost_batches()
                if lost:
                    self._wait_for_server(lost)
            self._refresh_sampler()
            if self._evaluation_due():
                self._evaluate()
            if self._due(self.config.run.checkpoint_every):
                self._save()
            if self.state.step >= last or self.ended:
                return
            yield self.state.step + 1
        self._drop_lost_batches()
        self._save()

    def leaving(self) -> bool:
        """Whether any process was asked to leave; every process gets the same answer."""
        return self.processes.any(self.stop.is_set)

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

    def sample(self, step: int, prompts: Sequence[Prompt], attempt: int) -> list[Group]:
        """A group of n completions for each prompt; the draws are fixed by seed, step, attempt."""
        seed = seed_of(self.config.run.seed, "train", step, attempt)
        sampler = self.parts.sampler
        with (
            self.timed("sample"),
            self._patient(step, "sampling"),
            self._agreement.whole_policy(),
        ):
            if not hasattr(sampler, "stream"):
                ask = partial(self._draw, prompts, seed, self.config.sampling)
                return ask() if self.overlaps else self._served(ask)
            if not prompts:  # inside: all processes gather the weights, also one without prompts
                return []
            result: dict[int, Group] = {}
            for at, group in sampler.stream(prompts, seed=seed, sampling=self.config.sampling):
                result[at] = group
                self._aside.submit(group)
            return [result[at] for at in range(len(prompts))]

    def _draw(self, prompts: Sequence[Prompt], seed: int, sampling: Sampling) -> list[Group]:
        sampler = self.parts.sampler
        return list(sampler.sample(prompts, seed=seed, sampling=sampling)) if prompts else []

    def _served(self, ask: Callable[[], Answer]) -> Answer:
        """What is asked of a sampler. A server that is lost is waited for, gets the weights again
        and is asked once more."""
        if not getattr(self.parts.sampler, "shared", False):
            return ask()
        again = False
        while True:
            answer, lost = None, ""
            try:
                if again:
                    self._agreement.refresh(self.prompt_at(self.learner.steps))
                answer = ask()
            except ServerLost as error:
                lost = str(error)
            if not (lost := self._of_any(lost)):
                return cast("Answer", answer)
            self._wait_for_server(lost)
            again = True

    def _of_any(self, message: str) -> str:
        """A message that any process has; every process gets the same."""
        return next(filter(None, self.processes.gather(message)), "")

    def _wait_for_server(self, lost: str) -> None:
        """Wait for a server that was lost: it has none of our weights then. All processes call it.

        Raises:
            ServerLost: it does not come back, or comes back and fails again and again.
        """
        sampler: Any = self.parts.sampler
        sampler.version, self.losses, gone = None, self.losses + 1, ""
        if self.losses == ATTEMPTS:
            raise ServerLost(f"{lost}; it answers, and failed {ATTEMPTS} times in a row")
        if self.processes.main:
            self.display.say(f"{lost}\nwaiting for it")
        try:
            sampler.wait()
        except ServerLost as error:
            gone = str(error)
        if gone := self._of_any(gone):
            raise ServerLost(gone)

    def is_lost(self) -> bool:
        """Whether the server was lost while it drew the next batch beside the learner, for any
        process; waits for that batch."""
        return self.overlaps and self.processes.any(is_server_lost(self.queue[0]))

    def _drop_lost_batches(self) -> str:
        """Wait for the batches in the queue. Those the server did not finish are left out, and
        drawn again later; what was said of them, the same on every process."""
        lost = [str(each.exception()) if is_server_lost(each) else "" for each in self.queue]
        whole = min(self.processes.gather([*map(bool, lost), True].index(True)))
        while len(self.queue) > whole:
            self.queue.pop()
        return self._of_any("".join(lost))

    def server_lost(self, error: ServerLost) -> ServerLost:
        """Save the run whose server is gone; the error with the way to resume it."""
        self._save()
        return ServerLost(
            f"{error}\n{max(self.saved, 0)} steps are saved; resume with: bestofk train --resume "
            f"{self.run.path}"
        )

    def _patient(self, step: int, what: str) -> contextlib.AbstractContextManager[None]:
        """In the first step of this process on a GPU: words while kernels compile."""
        first = self.recorded == 0 and self.learner.device.type == "cuda"
        shown = first and self.processes.main and not is_quiet()
        return patient(self.display.say, f"step {step}: {what}", is_on=shown)

    @cached_property
    def _aside(self) -> JudgingAside:
        return JudgingAside(self.parts.judge)

    def judge(self, groups: Sequence[Group]) -> list[list[Verdict]]:
        """A verdict for each completion; groups that were sampled first may have theirs already."""
        with self.timed("judge"):
            if hasattr(self.parts.sampler, "stream"):
                verdicts = self._aside.collect(groups)
            else:
                verdicts = self.parts.judge(groups)
            options = self.config.task.advanced
            return with_penalties(
                groups,
                verdicts,
                limit=self.config.sampling.max_new_tokens,
                buffer=options.overlong_tokens,
                penalty=options.overlong_penalty,
            )

    @contextlib.contextmanager
    def learning(self, step: int, batch: RolloutBatch) -> Iterator[None]:
        """Around the optimiser steps: a step that fails leaves its batch in the run's folder."""
        if isinstance(self.parts.sampler, WeightHolder):
            self.parts.sampler.sleep()  # frees its memory while the learner works
        try:
            with self.timed("learn"), self._patient(step, "learning"):
                yield
        except NonFinite as error:
            raise ValueError(
                f"step {step} was stopped before it changed the weights: {error}; its batch is in "
                f"{self._keep_failed(step, batch, error)}; the last checkpoint is intact; in a new "
                "run, lower optimizer.learning_rate or set objective_options.truncate"
            ) from error
        self._check_weights(step, batch)

    def _keep_failed(self, step: int, batch: RolloutBatch, error: Exception) -> Path:
        """Write the batch of a step that failed into the run's folder; all processes call it."""
        rows = self.processes.gather(sample_rows(step, batch, tokens=True))
        if not self.processes.main:
            return self.run.path
        return self.run.save_failure(step, failure_writer(rows, error))

    def _check_weights(self, step: int, batch: RolloutBatch) -> None:
        """Raise where a step has made a weight NaN or infinite, before anything is saved."""
        result = self.processes.gather(unsound_weight(self.learner.model))
        name = next((name for name in result if name is not None), None)
        if name is None:
            return
        error = ValueError(f"the weight {name} is not finite after step {step}")
        raise ValueError(
            f"{error}; nothing of this step is saved but its batch, in "
            f"{self._keep_failed(step, batch, error)}; the last checkpoint is intact; in a new "
            "run, lower optimizer.learning_rate"
        )

    def _check_gap(self, step: int, batch: RolloutBatch, gap: float) -> None:
        """Raise where the groups of a step were not drawn from the policy the learner scored."""
        if self.config.sampling.truncated:
            return  # their log-probs are of the truncated distribution; the first probe is not
        try:
            self._agreement.check(gap, batch.groups[:1])
        except ValueError as error:
            kept = self._keep_failed(step, batch, error)
            raise ValueError(
                f"step {step}: {error}. Its batch is in {kept}; the last checkpoint is intact"
            ) from None

    def record(
        self, step: int, batch: RolloutBatch, weights: np.ndarray, stats: dict[str, float]
    ) -> None:
        """Write down a step: its metrics, and the completions of all processes with weights."""
        self._check_gap(step, batch, stats["sampler_gap_mean"])
        self.queue.popleft()
        self.state = replace(
            self.state,
            step=step,
            position=batch.position,
            last_prompt=self.prompt_at(batch.position - 1).id,
        )
        line = metrics_line(
            step,
            batch,
            {**stats, **self.sampler_check},
            self.config,
            self.objective,
            self.processes,
            seconds=self.seconds,
        )
        rows = self.processes.gather(sample_rows(step, batch, weights))
        self.recorded, self.losses = self.recorded + 1, 0
        if self.processes.main:
            keep_plan(self.parts.sampler, self.run.path)
            self.run.record(line)
            self.run.record_samples(step, chain.from_iterable(rows))
        self.display.step(line)
        self._tell(line)
        constant = line["reward_min"] == line["reward_max"]
        self.silent = 0 if line["groups_with_signal"] and not constant else self.silent + 1
        if self.processes.main and self.silent == SILENT_STEPS:
            self.display.say(nothing_learnt(line, self.silent, batch))
        self.largest = max(self.largest, line["reward_max"])
        if self.processes.main and self.recorded == SILENT_STEPS:
            for sentence in out_of_reach(self.config, self.largest, self.recorded):
                self.display.say(sentence)

    def _tell(self, line: Mapping[str, Any]) -> None:
        """Show a line of metrics to the callback, which may end the run."""
        if self.callback is not None:
            asked = self.processes.main and self.callback(json_safe(line)) is True
            self.ended = self.processes.any(asked) or self.ended

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to do: the last step is taken and, where asked for, evaluated."""
        evaluated = self.state.is_validated or not self.config.evaluation.every
        return (self.state.step >= self.config.run.steps or self.ended) and evaluated

    @property
    def end(self) -> TrainingEnd:
        signal = None if self.is_complete else self.stop.signal
        return TrainingEnd(self.run.path, self.state.step, signal)

    def _evaluation_due(self) -> bool:
        begun = self.state.step > 0 or self.config.evaluation.at_start
        return begun and self._due(self.config.evaluation.every) and not self.state.is_validated

    def _due(self, every: int) -> bool:
        """Whether something done every so many steps is due now; always at the end."""
        step = self.state.step
        return every > 0 and (step % every == 0 or step == self.config.run.steps or self.ended)

    @cached_property
    def _agreement(self) -> Agreement:
        return Agreement(
            self.parts.sampler,
            self.learner,
            self.processes,
            self.config.sampling,
            self.gap_limit,
        )

    def _refresh_sampler(self) -> None:
        """Give the sampler the present weights where it has its own, and check what it draws."""
        if self.sampler_has_own_weights:
            with self.timed("update"):
                prompt = self.prompt_at(self.learner.steps)
                self.sampler_check = self._served(partial(self._agreement.refresh, prompt))
        elif not self.probed:
            prompt, policy = self.prompt_at(self.state.position), self.parts.policy
            with self._agreement.whole_policy():
                check_output(policy.model, policy.tokenizer, prompt, self.state.step)
            self._agreement.check(*self._agreement.probe(prompt))
        self.probed = True

    def _evaluate(self) -> None:
        """pass@k and max@k of the policy now; keeps the model if it is the best so far."""
        step, metric = self.state.step, best_metric(self.config.evaluation, self.objective)
        lines = []
        for each in self.parts.sets:
            with (
                memory_named("evaluate", self.learner),
                self._agreement.whole_policy(),
            ):
                line, batch = evaluate(
                    lambda *given: self._served(partial(self._draw, *given)),
                    each,
                    self.config.evaluation,
                    self.config.sampling,
                    self.processes,
                    step=step,
                    seed=seed_of(self.config.run.seed, "validation"),
                    bootstrap_seed=self.config.run.seed,
                )
            lines.append(line)
            if self.processes.main:
                self.run.record_evaluation(step, sample_rows(step, batch), each.name)
                self.run.record(line)
        value = lines[0]["results"].get(metric, {}).get("value")
        better = value is not None and (self.state.best is None or value > self.state.best)
        if better and self.config.run.advanced.keep_best and step:
            self._save_model(partial(self.run.save_best, step, value, metric))
        self.state = replace(self.state, validated=step, best=value if better else self.state.best)
        for line in lines:
            self.display.evaluation(line)
            self._tell(line)

    def _save(self) -> None:
        """Write a checkpoint, unless this step has one or nothing was done yet."""
        if not 0 < self.state.step != self.saved:
            return
        save_checkpoint(
            self.run,
            self.state,
            self.config,
            self.learner,
            self.processes,
            queue=[each.result() for each in self.queue],
            objective=self.objective,
            progress=self.progress,
        )
        self.saved = self.state.step

    def _save_model(self, place: Any) -> None:
        """Let the run folder put the whole model in a place; all processes call it."""
        write = model_writer(
            self.config, self.objective, self.parts.policy, self.parts.task, self.run
        )
        model, tokenizer = self.parts.policy.model, self.parts.policy.tokenizer
        with self.learner.gathered():
            check_output(model, tokenizer, self.prompt_at(0), self.state.step)
            if self.processes.main:
                place(write)


def done(value: Any) -> Future[Any]:
    """A future that has its result."""
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def is_server_lost(batch: Future[RolloutBatch]) -> bool:
    """Whether a batch was not drawn because the server was lost; waits for it."""
    return isinstance(batch.exception(), ServerLost)


class InTurns:
    """An executor that does at once what is submitted."""

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        return done(function(*args))


@contextlib.contextmanager
def open_session(
    config: Config,
    *,
    resume: bool,
    checkpoint: str | None,
    verifier: Verifier | None = None,
    callback: Callable[[Mapping[str, Any]], object] | None = None,
) -> Iterator[Session]:
    """Set a run up, or put it back where it stopped; at the end save the final model."""
    objective = check(config)
    check_installed(config)
    processes = Processes(
        device=config.model.device,
        trackers=config.run.trackers,
        folder=config.run.dir,
    )
    if not resume:
        config = with_usual(config)
    processes.check_share(config.sampling.prompts_per_step, config.off_policy.mini_batches)
    run, result = open_folder(config, processes, resume=resume, checkpoint=checkpoint)
    display = Display(processes, config.run.steps, objective.k)
    try:
        with StopSignal() as stop, watching(run.path, processes):
            parts = make_parts(config, processes, verifier)
            if resume:
                take_plan(parts.sampler, run.path)
            stream = parts.task.split(config.task.split)
            state, queue = restore(result, config, parts.learner, stream.at, processes)
            if resume and processes.main:
                keep_settings(config, run.path)
            session = Session(
                config, objective, processes, run, parts, state, stop, display,
                queue=deque(map(done, queue)), saved=state.step if result else -1,
                callback=callback,
            )  # fmt: skip
            trained = sum(p.numel() for p in parts.policy.model.parameters() if p.requires_grad)
            about = title(
                config, objective, weights=trained, processes=processes.size,
                device=processes.device, rate=parts.learner.settings.learning_rate,
            )  # fmt: skip
            notes = cautions(config, objective, len(stream), parts.policy.model.num_parameters())
            display.start(state.step, about, notes, dict(leaves(config)))
            try:
                yield session
            except ServerLost as error:
                raise session.server_lost(error) from None
            finally:
                if isinstance(parts.sampler, WeightHolder):
                    parts.sampler.close()
                for each in parts.sets:
                    if each.verifier is not verifier and isinstance(each.verifier, BatchVerifier):
                        each.verifier.close()
            if session.is_complete:
                session._save_model(run.save_final)
            processes.wait()
        processes.close()
    finally:
        run.close()


@contextlib.contextmanager
def memory_named(phase: str, learner: Learner) -> Iterator[None]:
    """Where the GPU's memory is full, say in which phase, and what takes less."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        less = (
            f"lower model.advanced.tokens_per_micro_batch (now {learner.budget:,}), or set "
            "model.advanced.gradient_checkpointing"
            if phase == "learn"
            else "lower sampling.advanced.max_rows"
        )
        cause = str(error).partition(". GPU ")[0].rstrip(".")
        raise ValueError(
            f"the GPU's memory is full ({phase}: {cause}): {less}; or end what else runs on this "
            "GPU (nvidia-smi lists it). Then go on with --resume"
        ) from error


def seed_of(*parts: int | str) -> int:
    """A seed fixed by its parts."""
    return int.from_bytes(hashlib.sha256(json.dumps(parts).encode()).digest()[:7])

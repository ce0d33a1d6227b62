"""Samples of a model into a file: a killed job resumes, and no sample is paid for twice.

A sample is written to the journal (`OUT.journal`) the moment it arrives, and to OUT, one line per
sample, append-only, once it is scored. A run that starts finds in OUT what is done, in the journal
what is paid but not scored, and draws the rest. The journal goes when all is done.
"""

from __future__ import annotations

import json
import math
import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from bestofk.config import read
from bestofk.environments.limits import TurnLimits
from bestofk.messages import unknown
from bestofk.rewards import UnscoredGuard
from bestofk.rewards import judge as judge_groups
from bestofk.runs import read_jsonl
from bestofk.sampling import Sampling
from bestofk.types import Conversation, Group, Prompt, Trajectory, Verdict, Verifier

if TYPE_CHECKING:
    from bestofk.environments.author_class import EnvironmentClasses
    from bestofk.sampling.endpoint import Cap, Endpoint, Usage

BATCH = 64
"""Samples judged at once, at most."""
CONVERSATIONS = TypeAdapter(Conversation)
BEGINNING = b'{"problem_id": '
"""Of every line that is written here: a torn one is cut, a file of another kind left alone."""
ESCAPED = "backslashreplace"
"""How half a surrogate pair, which UTF-8 cannot hold, is written: as JSON writes it."""


class SampleFile:
    """Samples of one run, on their way from the sampler to the file.

    Use as a context: leaving it waits until all that arrived is scored and written.
    """

    def __init__(
        self,
        out: Path,
        run: Mapping[str, Any],
        prompts: Mapping[str, Prompt],
        judge: Verifier,
        guard: UnscoredGuard | None = None,
    ) -> None:
        """
        Args:
            run: what every line repeats: model, sampling, run_id.
            prompts: by id.
            guard: stops the sampling where too many samples cannot be scored.
        """
        self.out, self.journal = out, out.with_name(out.name + ".journal")
        self.run, self.prompts, self.judge, self.guard = dict(run), prompts, judge, guard
        self.done: set[tuple[str, int]] = set()
        self.compares = getattr(judge, "compares", False)
        """Whether samples are judged against each other, once all of them have arrived."""
        self._is_cut_short = False
        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._error: BaseException | None = None

    def __enter__(self) -> SampleFile:
        import fcntl  # only Unix has it; evaluating files elsewhere needs none

        self.out.parent.mkdir(parents=True, exist_ok=True)
        self._lock = self.journal.open("a", encoding="utf-8", errors=ESCAPED)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise ValueError(f"{self.out} is being written by another process") from None
        try:
            own = self.run["run_id"]
            for path, unnamed in ((self.out, None), (self.journal, own)):
                for line in read_jsonl(path) if path.exists() else ():
                    if line.get("run_id", unnamed) != own:
                        raise ValueError(
                            f"{path} holds samples of another run (model, task, sampling, seed or "
                            "k differ): choose another --out, or remove the file"
                        )
            for line in whole_lines(self.out):
                self.done.add((line["problem_id"], line["sample_id"]))
            waiting = whole_lines(self.journal)
        except BaseException:
            if not self.journal.stat().st_size:
                self.journal.unlink()
            self._lock.close()
            raise
        self._file = self.out.open("a", encoding="utf-8", errors=ESCAPED)
        self._thread = threading.Thread(target=self._score, daemon=True)
        self._thread.start()
        for paid in waiting:
            key = (paid["problem_id"], paid["sample_id"])
            if key not in self.done and key[0] in self.prompts:
                self.done.add(key)
                self._queue.put(paid)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._is_cut_short = kind is not None
        self._queue.put(None)
        self._thread.join()
        self._file.close()
        complete = kind is None and self._error is None
        if complete:
            self.journal.unlink()
        self._lock.close()
        if self._error is not None and kind is None:
            raise self._error

    def missing(self, n: int) -> dict[str, tuple[int, ...]]:
        """Numbers of the samples that are still to be drawn, of the prompts that lack some."""
        numbers = {p: tuple(s for s in range(n) if (p, s) not in self.done) for p in self.prompts}
        return {prompt: samples for prompt, samples in numbers.items() if samples}

    def take(self, **sample: Any) -> None:
        """Keep a sample that arrived: problem_id, sample_id, completion and what is known of it."""
        sample["run_id"] = self.run["run_id"]
        self._lock.write(json.dumps(sample, ensure_ascii=False) + "\n")
        self._lock.flush()  # it is paid for: kept before anything is raised
        if self._error is not None:
            raise self._error
        self.done.add((sample["problem_id"], sample["sample_id"]))
        self._queue.put(sample)

    def _score(self) -> None:
        """In a thread of its own: judge what has arrived and write it."""
        try:
            while (first := self._queue.get()) is not None:
                batch = [first]
                while self.compares or (len(batch) < BATCH and not self._queue.empty()):
                    more = self._queue.get()
                    if more is None:
                        self._queue.put(None)
                        break
                    batch.append(more)
                if not (self.compares and self._is_cut_short):  # the journal keeps them
                    self._write(batch)
        except BaseException as error:
            self._error = error

    def _write(self, batch: Sequence[Mapping[str, Any]]) -> None:
        groups = [group_of(sample, self.prompts[sample["problem_id"]]) for sample in batch]
        verdicts = judge_groups(groups, self.judge)
        if self.guard is not None:
            self.guard.check(verdict for (verdict,) in verdicts)
        for sample, group, (verdict,) in zip(batch, groups, verdicts):
            line = sample_line(sample, group, verdict, self.run)
            self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def group_of(sample: Mapping[str, Any], prompt: Prompt) -> Group:
    """A sample of the journal as what is judged: with its conversation, where it has one."""
    talk = sample.get("conversation")
    if talk is None:
        return Group(prompt, (Trajectory(text=sample["completion"]),))
    shown = sample["prompt"] if isinstance(sample["prompt"], str) else tuple(sample["prompt"])
    conversation = CONVERSATIONS.validate_python(talk)
    trajectory = Trajectory(text=sample["completion"], conversation=conversation)
    return Group(replace(prompt, text=shown), (trajectory,))


def sample_line(
    sample: Mapping[str, Any], group: Group, verdict: Verdict, run: Mapping[str, Any]
) -> dict[str, Any]:
    """One line of the file: the fields of `docs/evaluation.md`, in their order."""
    scored, talk = not math.isnan(verdict.reward), group.trajectories[0].conversation
    return {
        "problem_id": group.prompt.id,
        "sample_id": sample["sample_id"],
        "prompt": group.prompt.text,
        "completion": sample["completion"],
        **({} if talk is None else talk.fields),
        "answer": verdict.answer,
        "reward": verdict.reward if scored else None,
        "correct": verdict.reward == 1.0 if scored else None,
        "status": verdict.status,
        "finish_reason": sample.get("finish_reason"),
        "n_tokens": sample.get("n_tokens"),
        "logprob_sum": sample.get("logprob_sum"),
        **({} if verdict.score is None else {"score": verdict.score}),
        "seed": sample.get("seed"),
        "model": run["model"],
        "sampling": run["sampling"],
        "run_id": run["run_id"],
    }


def whole_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of a file that need not exist; what a killed writer left after them is cut."""
    if not path.exists():
        return []
    data = path.read_bytes()
    end = data.rfind(b"\n") + 1
    if not data[end:].startswith(BEGINNING[: len(data) - end]):
        raise ValueError(f"{path} holds something else than samples: choose another --out")
    os.truncate(path, end)
    return list(read_jsonl(path))


ROWS_AT_ONCE = {"cpu": 256, "cuda": 4096}
"""Completions drawn before they are written, or one problem's: what an interrupted job loses."""


class LocalModel:
    """A model in this process, of which samples are drawn into files."""

    def __init__(
        self,
        model: str,
        *,
        device: str = "auto",
        dtype: str = "float32",
        precision: str | None = None,
        environment: EnvironmentClasses | None = None,
        limits: TurnLimits | None = None,
    ) -> None:
        """
        Args:
            precision: what a GPU computes in; by default that of the weights.
            environment: answers the model's messages, within `limits`.
        """
        import torch

        from bestofk.models import load
        from bestofk.sampling.local import local_sampler

        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        on_gpu = device.startswith("cuda")
        policy = load(model, dtype=dtype, device=device)
        self.has_chat_template = bool(getattr(policy.tokenizer, "chat_template", None))
        self.rows_at_once = ROWS_AT_ONCE["cuda" if on_gpu else "cpu"]
        self.sampler: Any = local_sampler(
            policy.model.eval(), policy.tokenizer, precision=precision if on_gpu else None
        )
        if environment is not None:
            from bestofk.environments.rollout import TurnSampler
            from bestofk.models.causal import context_length

            self.sampler = TurnSampler(
                self.sampler,
                environment,
                limits or TurnLimits(),
                model=model,
                context=context_length(policy.model.config),
            )

    def draw_into(
        self,
        file: SampleFile,
        missing: Mapping[str, Sequence[int]],
        *,
        sampling: Sampling,
        seed: int,
        first: int = 0,
        cap: Cap | None = None,
        usage: Usage | None = None,
        advance: Callable[[int], None] = lambda count: None,
    ) -> None:
        """Draw a group of n for every prompt with missing samples; those alone are kept.

        Args:
            first: number of the group's first sample.
            cap: the most tokens that may be drawn, those in `usage` included.
            advance: called with the number of samples drawn so far.

        Raises:
            CapReached: the next group could pass the cap.
        """
        problems, count = list(missing), 0
        longest = sampling.n * sampling.max_new_tokens
        while problems:
            at_once = max(1, self.rows_at_once // sampling.n)
            if cap is not None and usage is not None:
                cap.check(usage, longest)
                at_once = min(at_once, (cap.tokens - usage.tokens) // longest)
            chosen = [file.prompts[p] for p in problems[:at_once]]
            del problems[:at_once]
            for group in self.sampler.sample(chosen, seed=seed, sampling=sampling):
                for number in missing[group.prompt.id]:
                    trajectory, of_turns = group.trajectories[number - first], {}
                    if talk := trajectory.conversation:
                        conversation = CONVERSATIONS.dump_python(talk, mode="json")
                        of_turns = {"prompt": group.prompt.text, "conversation": conversation}
                    file.take(
                        problem_id=group.prompt.id,
                        sample_id=number,
                        completion=trajectory.text,
                        finish_reason=trajectory.finish_reason,
                        n_tokens=trajectory.drawn,
                        logprob_sum=trajectory.log_prob,
                        seed=seed,
                        **of_turns,
                    )
                if usage is not None:
                    usage.tokens += sum(each.drawn for each in group.trajectories)
                count += len(missing[group.prompt.id])
                advance(count)


def draw_from_endpoint(
    file: SampleFile,
    missing: Mapping[str, Sequence[int]],
    *,
    endpoint: Endpoint,
    sampling: Sampling,
    seed: int,
    cap: Cap,
    usage: Usage,
    advance: Callable[[int], None] = lambda count: None,
    warn: Callable[[str], None] | None = None,
) -> None:
    """Draw the missing samples of every prompt from an endpoint; arguments as in its `draw`."""
    from bestofk.sampling.endpoint import EndpointSample, SamplesToDraw, draw

    def keep(sample: EndpointSample) -> None:
        file.take(
            problem_id=sample.prompt.id,
            sample_id=sample.sample,
            completion=sample.text,
            finish_reason=sample.finish_reason,
            n_tokens=sample.n_tokens,
            logprob_sum=sample.logprob_sum,
            seed=sample.seed,
        )

    before = usage.samples
    draw(
        endpoint,
        [SamplesToDraw(file.prompts[p], tuple(samples)) for p, samples in missing.items()],
        sampling,
        keep,
        cap=cap,
        seed=seed,
        usage=usage,
        on_answer=lambda now: advance(now.samples - before),
        warn=warn,
    )


def sample_run(
    run: Path,
    verifier: Verifier | None,
    split: str | None,
    n: int | None,
    prompts: int | None,
    environment: EnvironmentClasses | None = None,
) -> Path:
    """Samples of a trained run's final model, drawn as its evaluations were, into its folder.

    The draws are fixed by the run's seed, the split and n: the same call gives the same file.
    """
    from bestofk.training.task_setup import task_judge_environment, with_accepted_references

    config = read(run / "config.toml")
    threshold, seed = config.evaluation.threshold, config.run.seed
    task, judge, environment = task_judge_environment(
        config.task, verifier, environment, threshold=threshold, seed=seed
    )
    task = with_accepted_references(task, judge)
    if split is not None and split not in task.splits:
        raise unknown("split", split, task.splits)
    name = split or ("test" if "test" in task.splits else config.evaluation.split)
    count = n or config.evaluation.samples_per_prompt
    sampling = config.sampling.changed(samples_per_prompt=count)
    model, file = str(run / "final"), run / "evaluations-final" / f"{name}-n{count}.jsonl"
    distribution = sampling.model_dump(include={"temperature", "top_p", "top_k"})
    about = {"model": model, "sampling": distribution, "run_id": f"{run.name}-final"}
    for stale in (file, file.with_name(f"{file.name}.journal")):
        stale.unlink(missing_ok=True)  # of a model that may have been trained further
    selected = {prompt.id: prompt for prompt in task.split(name)[: prompts or None]}
    with SampleFile(file, about, selected, judge) as samples:
        policy = LocalModel(
            model,
            device=config.model.device,
            precision=config.model.precision,
            environment=environment,
            limits=config.task.limits,
        )
        policy.draw_into(samples, samples.missing(count), sampling=sampling, seed=seed)
    return file

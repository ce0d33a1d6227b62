"""`bestofk sample`: draw and score samples from a model or an endpoint, into a file."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from bestofk.api.sampling_run import LocalModel, SampleFile, draw_from_endpoint
from bestofk.cli._files import json_pairs
from bestofk.cli._options import VerbOptions, argument, option, parsed
from bestofk.cli._terminal import bar
from bestofk.config import read
from bestofk.environments.limits import TurnLimits
from bestofk.messages import counted, is_quiet, say_aside
from bestofk.sampling.sampler import Sampling
from bestofk.sections import NaturalNumber

if TYPE_CHECKING:
    from bestofk.environments.author_class import EnvironmentClasses
    from bestofk.rewards import BatchVerifier, UnscoredGuard
    from bestofk.sampling.endpoint import Cap, Usage
    from bestofk.types import Prompt

CHARACTERS_PER_TOKEN = 3
"""For the announced estimate of prompt tokens, on the safe side."""
SPARE = 1.25
"""The default caps are a quarter above what is needed: endpoints may return fewer samples."""


class SampleOptions(VerbOptions):
    """Draw n samples per problem of a task, score them, write a JSON line for each.

    An interrupted run resumes where it stopped: run the same command again.
    """

    examples: ClassVar[tuple[str, ...]] = (
        "bestofk sample MODEL --task countdown --n 64 --out a.jsonl",
        "bestofk sample runs/a --temperature 1 0.8 0.6    # a run has its task",
        "bestofk sample http://localhost:8000/v1 --model M --task countdown",
    )

    groups: ClassVar = {
        "What": ("target", "task", "task_option", "environment", "split", "problems", "n", "out"),
        "Sampling": ("temperature", "top_p", "max_new_tokens", "stop", "seed"),
        "Endpoint": ("model", "key_variable", "concurrency", "timeout"),
    }

    target: str = argument("MODEL|URL")
    """Model, folder of a run, or URL of an endpoint."""
    task: str = ""
    """Task to sample on; `bestofk tasks` lists them."""
    task_option: tuple[str, ...] = option("KEY=VALUE", default=())
    """Options of the task."""
    verifier_option: tuple[str, ...] = option("KEY=VALUE", default=())
    """Options of the verifier, such as 'limits={"cpu_per_test": 0.5}' for programs."""
    verifier: str = option("NAME", default="")
    """Replaces the task's own verifier: a name, "package.module:function" or "file.py:function"."""
    environment: str = option("NAME", default="")
    """Answers the model's messages: "file.py:Class", "package.module:Class", python or repair."""
    limit: tuple[str, ...] = option("KEY=VALUE", default=())
    """Limits of a trajectory, such as turns=3, by their names in task.limits."""
    split: str = ""
    """Split of the task; by default test."""
    problems: int = 0
    """Number of problems of the split; 0 is all."""
    n: int = 16
    """Samples per problem."""
    temperature: tuple[float, ...] = (1.0,)
    """Of several, each has a file of its own."""
    top_p: float = 1.0
    """Nucleus sampling: the share of probability kept."""
    top_k: int = 0
    """Most probable tokens kept; 0 keeps all."""
    max_new_tokens: int = 256
    """Longest completion, in tokens."""
    stop: tuple[str, ...] = ()
    """Strings that end a completion."""
    seed: int = 0
    """Seed of the samples."""
    out: Path | None = None
    """File for the samples; by default TASK-MODEL.jsonl."""
    model: str = ""
    """Model's name at an endpoint."""
    key_variable: str = option("NAME", default="OPENAI_API_KEY")
    """Environment variable with the endpoint's key. The key itself is never printed or stored."""
    api: Literal["chat", "completions"] = "chat"
    """Which API of the endpoint is used."""
    concurrency: int = 8
    """Requests in flight at once."""
    per_request: int = 1
    """Samples per request."""
    logprobs: bool = False
    """Ask the endpoint for log-probabilities."""
    timeout: float = 600.0
    """Seconds until the end of an answer, after which a request is repeated."""
    retries: int = 8
    """Times a failing request is repeated; repeats do not count against the cap."""
    max_answer_bytes: int = 0
    """Bytes of the largest answer; by default 16 MiB and 1 KiB for each token asked for."""
    extra_body: str = option("JSON", default="")
    """JSON object with further fields of every request, such as '{"reasoning_effort": "low"}'."""
    max_requests: int = 0
    """Cap on requests; by default a quarter more than needed."""
    max_tokens: NaturalNumber = 0
    """Cap on tokens in all; by default a quarter more than the most that can come from an endpoint,
    and none on a model here."""
    device: str = ""
    """Device of a model sampled here; by default cuda where there is one."""
    dtype: str = "float32"
    """Precision of a model sampled here."""

    def with_run(self) -> Self:
        """The options with what the target's run knows, where the target is the folder of a run."""
        folder = Path(self.target)
        if self.remote or not (folder / "config.toml").is_file():
            return self
        if not (folder / "final").is_dir():
            raise ValueError(
                f"{folder} has no final model: resume the run (bestofk train --resume {folder}), "
                "or name a model"
            )
        config = read(folder / "config.toml")
        task, sampling = config.task, config.sampling
        own = tuple(f"{key}={json.dumps(value)}" for key, value in task.options.items())
        judged = tuple(f"{key}={json.dumps(value)}" for key, value in task.verifier_options.items())
        limits = task.limits.model_dump(exclude_none=True).items()
        of_run: dict[str, Any] = {
            "target": str(folder / "final"),
            "model": f"{folder.name}-step{config.run.steps}",
            "task": task.name,
            "verifier": task.verifier or "",
            "environment": task.environment or "",
            "temperature": (sampling.temperature,),
            **{name: getattr(sampling, name) for name in ("top_p", "top_k", "stop")},
            "max_new_tokens": sampling.max_new_tokens,
        }
        on_command_line = {name: getattr(self, name) for name in self.model_fields_set - {"target"}}
        further = {
            "task_option": (*own, *self.task_option),
            "verifier_option": (*judged, *self.verifier_option),
            "limit": (*(f"{key}={value}" for key, value in limits), *self.limit),
        }
        if on_command_line.get("task", task.name) != task.name:  # another task has its own options
            further, of_run["verifier"], of_run["environment"] = {}, "", ""
        return self.model_copy(update=of_run | on_command_line | further)

    def by_temperature(self) -> list[Self]:
        """The options for each temperature, and its file."""
        if len(self.temperature) == 1:
            return [self]
        files = [self.file.with_stem(f"{self.file.stem}-t{each:g}") for each in self.temperature]
        return [
            self.model_copy(update={"temperature": (each,), "out": file})
            for each, file in zip(self.temperature, files)
        ]

    @property
    def limits(self) -> TurnLimits:
        return TurnLimits(**json_pairs(self.limit))

    def check(self) -> None:
        """Raise a ValueError for what no sampling can start from."""
        _ = self.limits
        if len(self.temperature) != 1:
            raise ValueError(f"--temperature takes one value here, got {len(self.temperature)}")
        if not self.task:
            raise ValueError(
                f"sampling from {self.target!r} needs a task: state --task NAME (bestofk tasks "
                "lists them); for a file of samples, use bestofk eval"
            )
        _ = self.extra_fields
        if self.remote and self.environment:
            raise ValueError(
                "--environment continues from the model's own tokens, which an endpoint does not "
                "return: sample a model by its name or folder"
            )
        if self.remote:
            importlib.import_module("httpx")  # its absence is said before anything is written
            if not self.model:
                raise ValueError("an endpoint serves models by name: state --model NAME")

    @property
    def remote(self) -> bool:
        return self.target.startswith(("http://", "https://"))

    @property
    def extra_fields(self) -> dict[str, Any]:
        with contextlib.suppress(json.JSONDecodeError):
            if isinstance(fields := json.loads(self.extra_body or "{}"), dict):
                return fields
        raise ValueError(f"--extra-body takes a JSON object, got {self.extra_body!r}")

    @property
    def sampling(self) -> Sampling:
        names = ("max_new_tokens", "top_p", "top_k", "stop")
        same = {name: getattr(self, name) for name in names}
        return Sampling(samples_per_prompt=self.n, temperature=self.temperature[0], **same)

    @property
    def file(self) -> Path:
        plain = (self.model or self.target.rstrip("/").rsplit("/", 1)[-1]).replace("/", "-")
        return self.out or Path(f"{self.task}-{plain}.jsonl")


def main(argv: list[str]) -> int:
    jobs = parsed(SampleOptions, argv, "bestofk sample").with_run().by_temperature()
    from bestofk.rewards import TooManyUnscored
    from bestofk.sampling.endpoint import CapReached, EndpointError

    for job in jobs:
        job.check()
    files = []
    for job in jobs:
        try:
            files.append(str(sample(job)))
        except (CapReached, EndpointError, TooManyUnscored) as error:
            print(f"bestofk sample: {error}", file=sys.stderr)
            return 1
        if job.as_json:
            print(json.dumps({"file": files[-1], "task": job.task, "n": job.n}))
    if not jobs[0].as_json and not is_quiet():
        print(f"bestofk eval {' '.join(files)}    # next: what best-of-k is worth")
    return 0


def run_of(job: SampleOptions) -> dict[str, Any]:
    """What every line of the file repeats: model, sampling and run id.

    The run id is fixed by all that shapes the samples. n is not part of it: a run may be continued
    with more samples per problem.
    """
    sampling = job.sampling.model_dump(exclude={"samples_per_prompt"})
    sampling["stop"] = list(job.stop)
    model = job.model or job.target
    shaped: list[Any] = [
        job.target, model, job.api, job.task, json_pairs(job.task_option), job.split, sampling,
        job.seed,
    ]  # fmt: skip
    if job.extra_body:
        shaped.append(job.extra_fields)
    if job.verifier_option:
        shaped.append(["verifier", json_pairs(job.verifier_option)])
    if job.environment:
        shaped.append(["environment", job.environment, json_pairs(job.limit)])
    if job.verifier:
        shaped.append(["verifier", job.verifier])
    digest = hashlib.sha256(json.dumps(shaped, sort_keys=True, default=str).encode()).hexdigest()
    return {"model": model, "sampling": sampling, "run_id": digest[:12]}


def sample(job: SampleOptions) -> Path:
    """Draw what is missing, score it, and return the file."""
    from bestofk.rewards import UnscoredGuard

    guard = UnscoredGuard(share=0.05)
    with (
        problems_of(job) as (prompts, judge),
        SampleFile(job.file, run_of(job), prompts, judge, guard) as file,
    ):
        missing, total = file.missing(job.n), len(prompts) * job.n
        to_draw = sum(map(len, missing.values()))
        present = f"{total - to_draw:,} of {total:,} there"
        say_aside(f"{len(prompts)} problems × {job.n} samples; {present}")
        with bar("sampling", to_draw) as advance:
            if missing:
                with drawer_of(job, missing, file) as draw:
                    draw(file, missing, sampling=job.sampling, seed=job.seed, advance=advance)
    say_aside(f"{job.file}: {total:,} samples")
    say_unscored("sample", guard)
    return job.file


def say_unscored(verb: str, guard: UnscoredGuard) -> None:
    """How many samples could not be scored, and the most frequent reason."""
    if guard.unscored:
        ((reason, times),) = guard.reasons.most_common(1)
        print(f"bestofk {verb}: {counted(guard.unscored, 'sample')} could not be scored, "
              f"{times} of them because {reason}", file=sys.stderr)  # fmt: skip


@contextlib.contextmanager
def problems_of(
    job: SampleOptions, scorer: BatchVerifier | None = None
) -> Iterator[tuple[dict[str, Prompt], BatchVerifier]]:
    """The problems to sample on, by id, and their verifier, while it is open."""
    from bestofk.config import TaskSection
    from bestofk.rewards import scored_by
    from bestofk.training.resolve import style_for
    from bestofk.training.task_setup import task_judge_environment, with_accepted_references

    task_options = json_pairs(job.task_option)
    if not job.remote:
        from bestofk.models import load_tokenizer

        style = style_for(job.target, job.task, lambda: load_tokenizer(job.target))
        task_options = ({"style": style} if style else {}) | task_options
    section = TaskSection(
        name=job.task,
        options=task_options,
        verifier=job.verifier or None,
        verifier_options=json_pairs(job.verifier_option),
        environment=job.environment or None,
    )
    environment = environment_of(job.environment)
    chosen, own, _ = task_judge_environment(section, environment=environment)
    split_name = job.split or ("test" if "test" in chosen.splits else chosen.splits[-1])
    with own as judge:
        split = with_accepted_references(chosen, judge, say=say_aside).split(split_name)
        count = job.problems or len(split)
        if not 1 <= count <= len(split):
            raise ValueError(
                f"{job.task} has {len(split)} problems in this split, asked for {count}"
            )
        both = scored_by(judge, scorer)
        both.check_prompts(split[:count])
        yield {prompt.id: prompt for prompt in split[:count]}, both


@functools.cache
def environment_of(names: str) -> EnvironmentClasses | None:
    from bestofk.environments.author_class import load_environment

    return load_environment(names) if names else None


@functools.cache
def local_model(
    name: str, device: str, dtype: str, environment: str, limits: TurnLimits
) -> LocalModel:
    """A model that several temperatures share."""
    played = environment_of(environment)
    return LocalModel(name, device=device, dtype=dtype, environment=played, limits=limits)


@contextlib.contextmanager
def drawer_of(
    job: SampleOptions, missing: Mapping[str, tuple[int, ...]], file: SampleFile
) -> Iterator[Callable[..., None]]:
    """What draws missing samples into a file: a model in this process, or the endpoint. It says
    before what `missing` can cost there, and in the end what it did cost."""
    from bestofk.sampling.endpoint import Cap, Endpoint, Usage

    if not job.remote:
        device = job.device or "auto"
        model = local_model(job.target, device, job.dtype, job.environment, job.limits)
        cap = Cap(sys.maxsize, job.max_tokens or sys.maxsize)
        yield functools.partial(model.draw_into, cap=cap, usage=Usage())
        return
    same = ("model", "key_variable", "api", "concurrency", "per_request", "logprobs", "timeout",
            "retries")  # fmt: skip
    endpoint = Endpoint(
        base_url=job.target,
        extra_body=job.extra_fields,
        answer_bytes=job.max_answer_bytes,
        **{name: getattr(job, name) for name in same},
    )
    cap, usage = announce(job, missing, file), Usage()

    own: Any = {"endpoint": endpoint, "cap": cap, "usage": usage, "warn": say_aside}
    try:
        yield functools.partial(draw_from_endpoint, **own)
    finally:
        say_aside(summary(usage))


def summary(usage: Usage) -> str:
    """What a run has cost, and why requests were repeated."""
    again = ", ".join(f"{why} {count}×" for why, count in usage.reasons.items())
    text = (
        f"{usage.samples:,} samples by {usage.requests:,} requests, {usage.prompt_tokens:,} prompt "
        f"and {usage.completion_tokens:,} completion tokens"
    )
    if usage.uncounted:
        text += f" (and those of {usage.uncounted:,} answers without a count)"
    return text + (f"; repeated: {again}" if again else "")


def announce(job: SampleOptions, missing: Mapping[str, tuple[int, ...]], file: SampleFile) -> Cap:
    """Say what the run can cost before it starts, and return the cap."""
    from bestofk.sampling.endpoint import Cap

    needed = {p: math.ceil(len(samples) / job.per_request) for p, samples in missing.items()}
    requests = sum(needed.values())
    completion = sum(map(len, missing.values())) * job.max_new_tokens
    prompt = sum(
        count * (len(json.dumps(file.prompts[p].text)) // CHARACTERS_PER_TOKEN + 16)
        for p, count in needed.items()
    )
    cap = Cap(
        job.max_requests or math.ceil(requests * SPARE) + 20,
        job.max_tokens or math.ceil((completion + prompt) * SPARE),
    )
    say_aside(
        f"{job.target}: {requests:,} requests to {job.model}, {job.concurrency} at once; at most "
        f"{completion:,} completion tokens and about {prompt:,} prompt tokens"
    )
    say_aside(
        f"cap: {cap.requests:,} requests (--max-requests), {cap.tokens:,} tokens (--max-tokens)"
    )
    return cap

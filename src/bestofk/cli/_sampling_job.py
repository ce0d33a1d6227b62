"""What `bestofk sample` does: samples from a model or an endpoint, scored, into a file."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from bestofk.cli._options import VerbOptions, argument, option
from bestofk.cli._progress import bar, is_quiet
from bestofk.cli._sample_file import SampleFile
from bestofk.cli.tasks_command import parse_options
from bestofk.sampling.sampler import Sampling
from bestofk.types import Prompt

if TYPE_CHECKING:
    from bestofk.sampling.endpoint import Spent

CHARACTERS_PER_TOKEN = 3
"""For the announced estimate of prompt tokens, on the safe side."""
SPARE = 1.25
"""The default caps are a quarter above what is needed: endpoints may return fewer samples."""
ROWS_AT_ONCE = {"cpu": 256, "cuda": 4096}
"""Completions drawn before they are written, or one problem's: what an interrupted job loses."""


@dataclass(frozen=True, kw_only=True)
class SampleOptions(VerbOptions):
    """Draw n samples per problem of a task, score them, write a JSON line for each.

    An interrupted run resumes where it stopped: run the same command again.
    """

    examples: ClassVar = (
        "bestofk sample MODEL --task countdown --n 64 --out a.jsonl",
        "bestofk sample http://localhost:8000/v1 --model M --task countdown",
    )

    groups: ClassVar = {
        "What": ("target", "task", "task_option", "split", "problems", "n", "out"),
        "Sampling": ("temperature", "top_p", "max_new_tokens", "stop", "seed"),
        "Endpoint": ("model", "key_variable", "concurrency", "timeout", "retries"),
    }

    target: str = argument("MODEL|URL")
    """Model (name, folder or GGUF file), or URL of an OpenAI-compatible endpoint."""
    task: str = ""
    """Task to sample on; `bestofk tasks` lists them."""
    task_option: tuple[str, ...] = option("KEY=VALUE", default=())
    """Options of the task."""
    verifier_option: tuple[str, ...] = option("KEY=VALUE", default=())
    """Options of the task's verifier, such as 'limits={"cpu_per_test": 0.5}' for programs."""
    split: str = ""
    """Split of the task; by default test."""
    problems: int = 0
    """Number of problems of the split; 0 is all."""
    n: int = 16
    """Samples per problem."""
    temperature: tuple[float, ...] = (1.0,)
    """One, or several for a sweep (a file each)."""
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
    """Seconds without an answer before a request is repeated."""
    retries: int = 8
    """Times a failing request is repeated; repeats do not count against the cap."""
    extra_body: str = option("JSON", default="")
    """JSON object with further fields of every request, such as '{"reasoning_effort": "low"}'."""
    price: tuple[float, float] | None = option("IN OUT", default=None)
    """Prices of a million prompt tokens and of a million completion tokens, for the cost line."""
    max_requests: int = 0
    """Cap on requests; by default a quarter more than needed."""
    max_tokens: int = 0
    """Cap on tokens in all; by default a quarter more than the most that can come."""
    device: str = ""
    """Device of a model sampled here; by default cuda where there is one."""
    dtype: str = "float32"
    """Precision of a model sampled here."""

    def check(self) -> None:
        """Raise a ValueError for what no sampling can start from."""
        if not self.task:
            raise ValueError(
                f"sampling from {self.target!r} needs a task: state --task NAME (bestofk tasks "
                "lists them); for a file of samples, use bestofk eval"
            )
        if not self.temperature:
            raise ValueError("--temperature takes at least one number")
        if self.price is not None and min(self.price) < 0:
            raise ValueError(f"--price takes two prices of at least 0, got {self.price}")
        extra_fields(self.extra_body)
        if self.remote:
            need("httpx", "sampling from an endpoint", "api")
            if not self.model:
                raise ValueError("an endpoint serves models by name: state --model NAME")

    @property
    def remote(self) -> bool:
        return self.target.startswith(("http://", "https://"))

    @property
    def sampling(self) -> Sampling:
        """At the first temperature."""
        return Sampling(
            samples_per_prompt=self.n,
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature[0],
            top_p=self.top_p,
            top_k=self.top_k,
            stop=self.stop,
        )

    @property
    def file(self) -> Path:
        plain = (self.model or self.target.rstrip("/").rsplit("/", 1)[-1]).replace("/", "-")
        return self.out or Path(f"{self.task}-{plain}.jsonl")


def extra_fields(text: str) -> dict[str, Any]:
    """
    >>> extra_fields('{"top_a": 0.1}')
    {'top_a': 0.1}
    """
    try:
        result = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        raise ValueError(f"--extra-body takes a JSON object, got {text!r} ({error.msg})") from None
    if not isinstance(result, dict):
        raise ValueError(f"--extra-body takes a JSON object like '{{\"a\": 1}}', got {text!r}")
    return result


def run_of(job: SampleOptions) -> dict[str, Any]:
    """What every line of the file repeats: model, sampling and run id.

    The run id is fixed by all that shapes the samples. n is not part of it: a run may be continued
    with more samples per problem.
    """
    sampling = {
        key: value for key, value in asdict(job.sampling).items() if key != "samples_per_prompt"
    }
    sampling["stop"] = list(job.sampling.stop)
    model = job.model or job.target
    shaped: list[Any] = [
        job.target,
        model,
        job.api,
        job.task,
        parse_options(job.task_option),
        job.split,
        sampling,
        job.seed,
    ]
    if job.extra_body:
        shaped.append(extra_fields(job.extra_body))
    if job.verifier_option:
        shaped.append(["verifier", parse_options(job.verifier_option)])
    digest = hashlib.sha256(json.dumps(shaped, sort_keys=True, default=str).encode()).hexdigest()
    return {"model": model, "sampling": sampling, "run_id": digest[:12]}


def by_temperature(job: SampleOptions) -> list[SampleOptions]:
    """A job for each temperature of a sweep, with a file of its own: a.jsonl → a.t0.7.jsonl."""
    if len(job.temperature) < 2:
        return [replace(job, out=job.file)]
    plain = job.file.name.removesuffix(".jsonl")
    return [
        replace(job, temperature=(each,), out=job.file.with_name(f"{plain}.t{each:g}.jsonl"))
        for each in job.temperature
    ]


def sample(job: SampleOptions) -> Path:
    """Draw what is missing, score it, and return the file."""
    from bestofk.rewards import UnscoredGuard, verifier
    from bestofk.tasks import task

    chosen = task(job.task, **parse_options(job.task_option))
    usual = "test" if "test" in chosen.splits else chosen.splits[-1]
    split = chosen.split(job.split or usual)
    count = job.problems or len(split)
    if not 1 <= count <= len(split):
        raise ValueError(f"{job.task} has {len(split)} problems in this split, asked for {count}")
    prompts = {prompt.id: prompt for prompt in split[:count]}
    guard = UnscoredGuard(share=0.05)
    options = {**chosen.verifier_options, **parse_options(job.verifier_option)}
    with verifier(chosen.verifier, **options) as judge:

        def judged(batch: Any, texts: Any) -> Any:
            verdicts = judge(batch, texts)
            guard.check(verdicts)
            return verdicts

        with SampleFile(job.file, run_of(job), prompts, judged) as file:
            missing = {p: file.missing(prompts[p], job.sampling.n) for p in prompts}
            missing = {p: samples for p, samples in missing.items() if samples}
            total = count * job.sampling.n
            left = sum(map(len, missing.values()))
            say(f"{count} problems × {job.sampling.n} samples; {total - left:,} of {total:,} there")
            if missing and job.remote:
                _from_endpoint(job, prompts, missing, file)
            elif missing:
                _from_model(job, prompts, missing, file)
    say(f"{job.file}: {total:,} samples")
    return job.file


def need(module: str, what: str, extra: str) -> None:
    """Raise an error that names the install command where an optional package is missing."""
    if importlib.util.find_spec(module) is None:
        raise ValueError(f"{what} needs {module}: pip install 'bestofk[{extra}]'")


def say(text: str) -> None:
    if not is_quiet():
        print(text, file=sys.stderr, flush=True)


def _from_endpoint(
    job: SampleOptions,
    prompts: Mapping[str, Prompt],
    missing: Mapping[str, tuple[int, ...]],
    file: SampleFile,
) -> None:
    from bestofk.sampling.endpoint import Drawn, Endpoint, Spent, Wanted, draw

    endpoint = Endpoint(
        base_url=job.target,
        model=job.model,
        key_variable=job.key_variable,
        api=job.api,
        concurrency=job.concurrency,
        per_request=job.per_request,
        logprobs=job.logprobs,
        timeout=job.timeout,
        retries=job.retries,
        extra_body=extra_fields(job.extra_body),
    )
    cap = announce(job, prompts, missing)
    left = sum(map(len, missing.values()))

    def keep(drawn: Drawn) -> None:
        file.take(
            {
                "problem_id": drawn.prompt.id,
                "sample_id": drawn.sample,
                "completion": drawn.text,
                "finish_reason": drawn.finish_reason,
                "n_tokens": drawn.n_tokens,
                "logprob_sum": drawn.logprob_sum,
                "seed": drawn.seed,
            }
        )

    wanted = [Wanted(prompts[p], samples) for p, samples in missing.items()]
    spent = Spent()
    try:
        with bar("sampling", left) as advance:

            def show_progress(now: Spent) -> None:
                advance(now.samples)

            draw(
                endpoint,
                wanted,
                job.sampling,
                keep,
                cap=cap,
                seed=job.seed,
                spent=spent,
                on_answer=show_progress,
                warn=say,
            )
    finally:
        say(summary(spent, job.price))


def summary(spent: Spent, price: tuple[float, float] | None) -> str:
    """What a run has cost, and why requests were repeated."""
    again = ", ".join(f"{why} {count}×" for why, count in spent.reasons.items())
    text = (
        f"{spent.samples:,} samples by {spent.requests:,} requests, {spent.prompt_tokens:,} prompt "
        f"and {spent.completion_tokens:,} completion tokens"
    )
    if price is not None:
        text += f", cost {cost(spent.prompt_tokens, spent.completion_tokens, price)}"
    return text + (f"; repeated: {again}" if again else "")


def cost(prompt: int, completion: int, price: tuple[float, float]) -> str:
    """
    >>> cost(2_000_000, 500_000, (0.15, 0.6))
    '0.60'
    """
    return f"{(prompt * price[0] + completion * price[1]) / 1e6:,.2f}"


def announce(job: SampleOptions, prompts: Mapping[str, Prompt], missing: Mapping[str, Any]) -> Any:
    """Say what the run can cost before it starts, and return the cap."""
    from bestofk.sampling.endpoint import Cap

    requests = sum(math.ceil(len(samples) / job.per_request) for samples in missing.values())
    completion = sum(map(len, missing.values())) * job.sampling.max_new_tokens
    prompt = sum(
        math.ceil(len(samples) / job.per_request)
        * (len(json.dumps(prompts[p].text)) // CHARACTERS_PER_TOKEN + 16)
        for p, samples in missing.items()
    )
    cap = Cap(
        job.max_requests or math.ceil(requests * SPARE) + 20,
        job.max_tokens or math.ceil((completion + prompt) * SPARE),
    )
    say(
        f"{job.target}: {requests:,} requests to {job.model}, {job.concurrency} at once; at most "
        f"{completion:,} completion tokens and about {prompt:,} prompt tokens"
    )
    if job.price is not None:
        say(f"cost at most {cost(prompt, completion, job.price)} (--price)")
    say(f"cap: {cap.requests:,} requests (--max-requests), {cap.tokens:,} tokens (--max-tokens)")
    return cap


def _from_model(
    job: SampleOptions,
    prompts: Mapping[str, Prompt],
    missing: Mapping[str, tuple[int, ...]],
    file: SampleFile,
) -> None:
    """A group of n per prompt; only the samples that are missing are kept."""
    need("torch", "sampling a model here", "train")
    import torch

    from bestofk.models import load
    from bestofk.sampling.local import local_sampler

    device = job.device or ("cuda" if torch.cuda.is_available() else "cpu")
    policy = load(job.target, dtype=job.dtype, device=device)
    policy.model.eval()
    sampler = local_sampler(policy.model, policy.tokenizer)
    waiting = list(missing)
    rows = ROWS_AT_ONCE["cuda" if device.startswith("cuda") else "cpu"]
    at_once = max(1, rows // job.sampling.samples_per_prompt)
    done = 0
    with bar("sampling", sum(map(len, missing.values()))) as advance:
        for at in range(0, len(waiting), at_once):
            chosen = [prompts[p] for p in waiting[at : at + at_once]]
            for group in sampler.sample(chosen, seed=job.seed, params=job.sampling):
                for number in missing[group.prompt.id]:
                    completion = group.completions[number]
                    file.take(
                        {
                            "problem_id": group.prompt.id,
                            "sample_id": number,
                            "completion": completion.text,
                            "finish_reason": completion.finish_reason,
                            "n_tokens": len(completion.tokens),
                            "logprob_sum": float(sum(completion.logprobs)),
                            "seed": job.seed,
                        }
                    )
                done += len(missing[group.prompt.id])
                advance(done)

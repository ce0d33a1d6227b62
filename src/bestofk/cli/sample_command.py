"""`bestofk sample`: draw and score samples from a model or an endpoint, into a file."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

if TYPE_CHECKING:
    from bestofk.cli._sampling_job import Job


@dataclass(frozen=True, kw_only=True)
class SampleOptions:
    """Draw n samples per problem of a task, score them, and write one JSON line each.

    A Hugging Face model:  bestofk sample MODEL --task countdown --n 64 --out a.jsonl

    An endpoint:           bestofk sample http://localhost:8000/v1 --model M --task countdown

    An interrupted run resumes where it stopped: run the same command again.
    """

    target: tyro.conf.Positional[str]
    """A model (name, folder or GGUF file), or the URL of an OpenAI-compatible endpoint."""
    task: str = ""
    """Task to sample on; `bestofk tasks` lists them."""
    task_option: tuple[str, ...] = ()
    """Options of the task as key=value."""
    split: str = ""
    """Split of the task; by default test."""
    problems: int = 0
    """Number of problems of the split; 0 = all."""
    n: int = 16
    """Samples per problem."""
    temperature: tuple[float, ...] = (1.0,)
    """One, or several for a sweep (a file each)."""
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 256
    stop: tuple[str, ...] = ()
    seed: int = 0
    """Seed of the samples."""
    out: Path | None = None
    """File for the samples; by default TASK-MODEL.jsonl."""
    model: str = ""
    """The model's name at an endpoint."""
    key_variable: str = "OPENAI_API_KEY"
    """Environment variable with the endpoint's key. The key itself is never printed or stored."""
    api: Literal["chat", "completions"] = "chat"
    concurrency: int = 8
    """Requests in flight at once."""
    per_request: int = 1
    """Samples asked for in one request."""
    logprobs: bool = False
    """Ask the endpoint for log-probabilities."""
    timeout: float = 600.0
    """Seconds without an answer before a request is given up and repeated."""
    retries: int = 8
    """Times a failing request is repeated; repeats do not count against the cap."""
    extra_body: str = ""
    """JSON object with further fields of every request, such as '{"reasoning_effort": "low"}'."""
    price: tuple[float, float] | None = None
    """Price of a million prompt tokens and of a million completion tokens, for the cost line."""
    max_requests: int = 0
    """Cap on requests; by default a quarter more than needed."""
    max_tokens: int = 0
    """Cap on tokens in all; by default a quarter more than the most that can come."""
    device: str = ""
    """Device of a model sampled here; by default cuda where there is one."""
    dtype: str = "float32"


def main(argv: list[str]) -> int:
    chosen = tyro.cli(SampleOptions, args=argv, prog="bestofk sample")
    files = sampled(chosen)
    if files is None:
        return 1
    print(f"bestofk eval {' '.join(map(str, files))}    # next: what best-of-k is worth")
    return 0


def sampled(chosen: SampleOptions) -> list[Path] | None:
    """Sample and score; the files, or None when sampling had to stop early."""
    from bestofk.cli._sampling_job import at_temperature, sample
    from bestofk.rewards import TooManyUnscored
    from bestofk.sampling.endpoint import CapReached, EndpointError

    job = job_of(chosen)
    files = []
    for temperature in chosen.temperature:
        try:
            files.append(sample(at_temperature(job, temperature, len(chosen.temperature))))
        except (CapReached, EndpointError, TooManyUnscored) as error:
            print(f"bestofk sample: {error}", file=sys.stderr)
            return None
    return files


def job_of(chosen: SampleOptions) -> Job:
    """The work that the options describe.

    Raises:
        ValueError: no task, no temperature, an extra body that is not a JSON object.
    """
    from bestofk.cli._sampling_job import Job
    from bestofk.cli.tasks_command import parse_options
    from bestofk.sampling.sampler import Sampling

    if not chosen.task:
        raise ValueError(
            f"sampling from {chosen.target!r} needs a task: state --task NAME (bestofk tasks lists "
            "them); for a file of samples, use bestofk eval"
        )
    if not chosen.temperature:
        raise ValueError("--temperature takes at least one number")
    if chosen.price is not None and min(chosen.price) < 0:
        raise ValueError(f"--price takes two prices of at least 0, got {chosen.price}")
    plain = (chosen.model or chosen.target.rstrip("/").rsplit("/", 1)[-1]).replace("/", "-")
    return Job(
        target=chosen.target,
        task=chosen.task,
        options=parse_options(chosen.task_option),
        split=chosen.split,
        problems=chosen.problems,
        sampling=Sampling(
            samples_per_prompt=chosen.n,
            max_new_tokens=chosen.max_new_tokens,
            temperature=chosen.temperature[0],
            top_p=chosen.top_p,
            top_k=chosen.top_k,
            stop=chosen.stop,
        ),
        seed=chosen.seed,
        out=chosen.out or Path(f"{chosen.task}-{plain}.jsonl"),
        model=chosen.model,
        key_variable=chosen.key_variable,
        api=chosen.api,
        concurrency=chosen.concurrency,
        per_request=chosen.per_request,
        logprobs=chosen.logprobs,
        max_requests=chosen.max_requests,
        max_tokens=chosen.max_tokens,
        timeout=chosen.timeout,
        retries=chosen.retries,
        extra_body=extra_fields(chosen.extra_body),
        price=chosen.price,
        device=chosen.device,
        dtype=chosen.dtype,
    )


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

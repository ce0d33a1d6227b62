"""What `bestofk sample` does: samples from a model or an endpoint, scored, into a file."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bestofk.cli._progress import bar
from bestofk.cli._sample_file import SampleFile
from bestofk.sampling.sampler import Sampling
from bestofk.types import Prompt

if TYPE_CHECKING:
    from bestofk.sampling.endpoint import Spent

CHARACTERS_PER_TOKEN = 3
"""For the announced estimate of prompt tokens, on the safe side."""
SPARE = 1.25
"""The default caps are a quarter above what is needed: endpoints may return fewer samples."""
PROMPTS_AT_ONCE = 16


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to sample, and how."""

    target: str
    """A model's name or folder, or an endpoint's URL."""
    task: str
    options: Mapping[str, Any]
    split: str
    problems: int
    """0 = all of the split."""
    sampling: Sampling
    seed: int
    out: Path
    model: str = ""
    """The model's name at the endpoint."""
    key_variable: str = "OPENAI_API_KEY"
    api: Literal["chat", "completions"] = "chat"
    concurrency: int = 8
    per_request: int = 1
    logprobs: bool = False
    max_requests: int = 0
    max_tokens: int = 0
    timeout: float = 600.0
    retries: int = 8
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of every request."""
    price: tuple[float, float] | None = None
    """For a million prompt tokens, and a million completion tokens."""
    device: str = ""
    dtype: str = "float32"

    @property
    def remote(self) -> bool:
        return self.target.startswith(("http://", "https://"))


def run_of(job: Job) -> dict[str, Any]:
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
        dict(job.options),
        job.split,
        sampling,
        job.seed,
    ]
    if job.extra_body:
        shaped.append(dict(job.extra_body))
    digest = hashlib.sha256(json.dumps(shaped, sort_keys=True, default=str).encode()).hexdigest()
    return {"model": model, "sampling": sampling, "run_id": digest[:12]}


def at_temperature(job: Job, temperature: float, among: int) -> Job:
    """The job at one temperature of a sweep, with a file of its own: a.jsonl → a.t0.7.jsonl."""
    sampling = replace(job.sampling, temperature=temperature)
    if among < 2:
        return replace(job, sampling=sampling)
    name = f"{job.out.name.removesuffix('.jsonl')}.t{temperature:g}.jsonl"
    return replace(job, sampling=sampling, out=job.out.with_name(name))


def sample(job: Job) -> Path:
    """Draw what is missing, score it, and return the file."""
    from bestofk.rewards import UnscoredGuard, verifier
    from bestofk.tasks import task

    if job.remote:  # before any file is made
        need("httpx", "sampling from an endpoint", "api")
        if not job.model:
            raise ValueError("an endpoint serves models by name: state --model NAME")
    chosen = task(job.task, **job.options)
    usual = "test" if "test" in chosen.splits else chosen.splits[-1]
    split = chosen.split(job.split or usual)
    count = job.problems or len(split)
    if not 1 <= count <= len(split):
        raise ValueError(f"{job.task} has {len(split)} problems in this split, asked for {count}")
    prompts = {prompt.id: prompt for prompt in split[:count]}
    guard = UnscoredGuard(share=0.05)
    with verifier(chosen.verifier, **chosen.verifier_options) as judge:

        def judged(asked: Any, texts: Any) -> Any:
            verdicts = judge(asked, texts)
            guard.check(verdicts)
            return verdicts

        with SampleFile(job.out, run_of(job), prompts, judged) as file:
            missing = {p: file.missing(prompts[p], job.sampling.n) for p in prompts}
            missing = {p: samples for p, samples in missing.items() if samples}
            total = count * job.sampling.n
            left = sum(map(len, missing.values()))
            say(f"{count} problems × {job.sampling.n} samples; {total - left:,} of {total:,} there")
            if missing and job.remote:
                _from_endpoint(job, prompts, missing, file)
            elif missing:
                _from_model(job, prompts, missing, file)
    say(f"{job.out}: {total:,} samples")
    return job.out


def need(module: str, what: str, extra: str) -> None:
    """Raise an error that names the install command where an optional package is missing."""
    if importlib.util.find_spec(module) is None:
        raise ValueError(f"{what} needs {module}: pip install 'bestofk[{extra}]'")


def say(text: str) -> None:
    if not os.environ.get("BESTOFK_QUIET"):
        print(text, file=sys.stderr, flush=True)


def _from_endpoint(
    job: Job,
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
        extra_body=job.extra_body,
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

            def told(now: Spent) -> None:
                advance(now.samples)

            draw(
                endpoint,
                wanted,
                job.sampling,
                keep,
                cap=cap,
                seed=job.seed,
                spent=spent,
                told=told,
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


def announce(job: Job, prompts: Mapping[str, Prompt], missing: Mapping[str, Any]) -> Any:
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
    job: Job,
    prompts: Mapping[str, Prompt],
    missing: Mapping[str, tuple[int, ...]],
    file: SampleFile,
) -> None:
    """A group of n per prompt; only the samples that are missing are kept."""
    need("torch", "sampling a model here", "train")
    import torch

    from bestofk.models import load
    from bestofk.sampling.decode import ModelSampler

    device = job.device or ("cuda" if torch.cuda.is_available() else "cpu")
    policy = load(job.target, dtype=job.dtype, device=device)
    policy.model.eval()
    sampler = ModelSampler(policy.model, policy.tokenizer)
    waiting = list(missing)
    done = 0
    with bar("sampling", sum(map(len, missing.values()))) as advance:
        for at in range(0, len(waiting), PROMPTS_AT_ONCE):
            chosen = [prompts[p] for p in waiting[at : at + PROMPTS_AT_ONCE]]
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

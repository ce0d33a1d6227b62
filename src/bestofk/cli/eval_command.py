"""`bestofk eval`: what best-of-k is worth, from files of samples, a model, or an endpoint."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from bestofk.cli._files import Reading, metric_of, named, read_all

if TYPE_CHECKING:
    from bestofk.cli._draw import Job
    from bestofk.evaluation import Samples

ENDINGS = (".jsonl", ".json", ".ndjson", ".csv", ".tsv", ".parquet", ".gz")


@dataclass(frozen=True, kw_only=True)
class Options(Reading):
    """What best-of-k is worth, with intervals.

    Files, by any tool:      bestofk eval a.jsonl b.parquet --k 1,4,16,64

    A Hugging Face model:    bestofk eval MODEL --task countdown --n 64 --out a.jsonl

    An endpoint:             bestofk eval http://localhost:8000/v1 --model M --task countdown --n 64

    Sampling goes on where it was stopped: run the same command again.
    """

    targets: tyro.conf.Positional[tuple[str, ...]]
    """Files or run folders (PATH or NAME=PATH); or one model, or one endpoint's URL."""
    beyond: Annotated[str, tyro.conf.arg(metavar="128,256")] = ""
    """Extrapolate pass@k to these k > n, with a check and an interval."""
    off_policy: int | None = None
    """Estimate max@k of a new policy at this k, from logprob_sum and new_logprob_sum."""
    diversity: bool = True
    resamples: int = 2000
    """Draws of the bootstrap."""

    task: str = ""
    """Task to sample on; `bestofk tasks` lists them."""
    task_option: tuple[str, ...] = ()
    """Options of the task as key=value."""
    split: str = ""
    """Split of the task; by default test."""
    problems: int = 0
    """How many problems of the split; 0 = all."""
    n: int = 16
    """Samples per problem."""
    temperature: tuple[float, ...] = (1.0,)
    """One, or several for a sweep (a file each)."""
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 256
    stop: tuple[str, ...] = ()
    out: Path | None = None
    """Where samples go, one JSON line each; by default TASK-MODEL.jsonl."""
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
    max_requests: int = 0
    """Cap on requests; by default a quarter more than needed."""
    max_tokens: int = 0
    """Cap on tokens in all; by default a quarter more than the most that can come."""
    device: str = ""
    dtype: str = "float32"


def main(argv: list[str]) -> int:
    chosen = tyro.cli(Options, args=argv, prog="bestofk eval")
    if not chosen.targets:
        raise ValueError("name a file of samples, a model or an endpoint; bestofk eval --help")
    if all(_is_file(target) for target in chosen.targets):
        if chosen.task:
            raise ValueError(
                "--task is for sampling from a model or an endpoint; files bring their scores"
            )
        return show(read_all(chosen.targets, chosen), chosen)
    if len(chosen.targets) > 1:
        raise ValueError(
            "one model or endpoint at a time, or files only; "
            f"no such file: {next(t for t in chosen.targets if not _is_file(t))}"
        )
    return sampled(chosen)


def _is_file(target: str) -> bool:
    """Whether this names samples rather than a model or an endpoint."""
    path = Path(named(target)[1])
    if target.startswith(("http://", "https://")) or (path / "config.json").exists():
        return False
    if path.is_dir():
        return not any(path.glob("*.safetensors"))
    return path.exists() or path.name.lower().endswith(ENDINGS)


def sampled(chosen: Options) -> int:
    """Sample, score, and show what came; 1 when sampling had to stop early."""
    from bestofk.cli._draw import at_temperature, sample
    from bestofk.rewards import TooManyUnscored
    from bestofk.sampling.endpoint import CapReached, EndpointError

    job = job_of(chosen)
    files = []
    for temperature in chosen.temperature:
        try:
            files.append(sample(at_temperature(job, temperature, len(chosen.temperature))))
        except (CapReached, EndpointError, TooManyUnscored) as error:
            print(f"bestofk eval: {error}", file=sys.stderr)
            return 1
    return show(read_all(tuple(map(str, files)), chosen), chosen)


def job_of(chosen: Options) -> Job:
    from bestofk.cli._draw import Job
    from bestofk.cli.tasks_command import parse_options
    from bestofk.sampling.sampler import Sampling

    if not chosen.task:
        raise ValueError(
            f"{chosen.targets[0]!r} is no file, so it is taken for a model or an endpoint: state "
            "--task to sample on (bestofk tasks lists them), or check the file's name"
        )
    if not chosen.temperature:
        raise ValueError("--temperature takes at least one number")
    target = chosen.targets[0]
    plain = (chosen.model or target.rstrip("/").rsplit("/", 1)[-1]).replace("/", "-")
    return Job(
        target=target,
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
        device=chosen.device,
        dtype=chosen.dtype,
    )


def show(runs: list[Samples], chosen: Options) -> int:
    """Everything asked for, as tables or as JSON."""
    from bestofk.cli import _show

    everything = [findings(run, chosen) for run in runs]
    if chosen.json:
        print(_show.as_json(everything))
        return 0
    for run, found in zip(runs, everything):
        _show.source(run)
        for each in found["curves"]:
            _show.curve(each, chosen.ks() if each.metric != "mean" else ())
        if found["extrapolation"] is not None:
            _show.extrapolation(found["extrapolation"])
        if found["diversity"] is not None:
            _show.diversity(found["diversity"])
        if found["off_policy"] is not None:
            _show.off_policy(found["off_policy"])
    return 0


def findings(run: Samples, chosen: Options) -> dict[str, Any]:
    """The results on one run."""
    from bestofk.evaluation import curve, diversity, extrapolate, off_policy

    metric = metric_of(chosen, [run])
    numbers = {**chosen.numbers(), "resamples": chosen.resamples}
    metrics = [metric]
    if not chosen.metric and metric == "max@k":
        metrics.append("mean")
    if not chosen.metric and metric == "pass@k" and run.answers is not None:
        metrics.append("maj@k")
    passing: dict[str, Any] = {"threshold": chosen.threshold, "confidence": chosen.confidence}
    beyond = Reading(k=chosen.beyond).ks()
    judged = metric in ("pass@k", "pass^k", "maj@k") or chosen.threshold is not None
    return {
        "name": run.name,
        "metadata": dict(run.metadata),
        "curves": [curve(run, each, **numbers) for each in metrics],
        "extrapolation": extrapolate(run, beyond, seed=chosen.seed, **passing) if beyond else None,
        "diversity": diversity(run, **passing) if chosen.diversity and judged else None,
        "off_policy": off_policy(
            run, chosen.off_policy, bounds=chosen.bounds, confidence=chosen.confidence
        )
        if chosen.off_policy
        else None,
    }

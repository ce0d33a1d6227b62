"""`bestofk solve`: draw up to k samples of each problem, keep the best, say what it cost."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from bestofk.api.solving import (
    Chooser,
    Line,
    Planned,
    answer_line,
    draw_in_rounds,
    lines_of,
    planned,
    rounds,
)
from bestofk.cli._options import option, parsed
from bestofk.cli._terminal import bar, is_quiet, say
from bestofk.cli.sample_command import SampleOptions, drawer_of, problems_of, run_of
from bestofk.messages import counted
from bestofk.sampling.openai_wire import sample_seed
from bestofk.storage import check_writable, write_atomically
from bestofk.types import reaches

if TYPE_CHECKING:
    from bestofk.api.sampling_run import Judge, SampleFile
    from bestofk.types import Prompt


class SolveOptions(SampleOptions):
    """Draw up to k samples of each problem, keep the best, write a line for each.

    With a verifier a problem ends at its first pass. An interrupted run resumes
    where it stopped: run the same command again.
    """

    examples: ClassVar = (
        "bestofk solve MODEL --task countdown --k 16 --planned earlier.jsonl",
        "bestofk solve http://localhost:8000/v1 --model M --task gsm8k --by vote",
    )

    groups: ClassVar = {
        "What": ("target", "task", "problems", "n", "by", "out"),
        "Sampling": ("temperature", "max_new_tokens", "seed"),
        "Cost": ("planned", "max_tokens"),
        "Endpoint": ("model",),
    }

    n: int = Field(16, json_schema_extra={"metavar": "N", "words": ["--k", "--n"]})
    """The most samples drawn of a problem."""
    by: Chooser = "verifier"
    """What chooses: the first pass, the most frequent answer, or the verifier's score."""
    threshold: float = 1.0
    """A reward of at least this passes."""
    planned: Path | None = option("FILE", default=None)
    """Samples of an earlier evaluation, at least k per problem: prints what they predict."""
    out: Path | None = None
    """File for the answers, by default TASK-MODEL-answers.jsonl. All samples go into
    NAME.samples.jsonl beside it."""

    @property
    def file(self) -> Path:
        plain = super().file
        return self.out or plain.with_name(f"{plain.stem}-answers.jsonl")

    @property
    def samples_file(self) -> Path:
        return self.file.with_suffix(".samples.jsonl")


def main(argv: list[str]) -> int:
    chosen = parsed(SolveOptions, argv, "bestofk solve")
    from bestofk.rewards import TooManyUnscored
    from bestofk.sampling.endpoint import CapReached, EndpointError

    chosen.check()
    check_writable(chosen.file)
    forecast = forecast_of(chosen)
    error: Exception | None = None
    with problems_of(chosen) as (prompts, judge):
        try:
            draw(chosen, prompts, judge)
        except (CapReached, EndpointError, TooManyUnscored) as raised:
            error = raised
    answers = answers_of(chosen, prompts)
    lines = [json.dumps(line, ensure_ascii=False) + "\n" for line in answers]
    write_atomically(chosen.file, "".join(lines).encode("utf-8", "backslashreplace"))
    result = summary(chosen, answers, forecast)
    if chosen.as_json:
        print(json.dumps(result))
    else:
        show(result)
    if error is not None:
        print(f"bestofk solve: {error}", file=sys.stderr)
    return 0 if error is None else 1


def forecast_of(job: SolveOptions) -> Planned | None:
    """What the earlier evaluation predicts."""
    if job.planned is None:
        return None
    from bestofk.samples import read

    pilot = read(job.planned)
    zero_one = set(pilot.rewards) <= {0.0, 1.0}
    return planned(pilot, job.n, job.by, None if zero_one else job.threshold)


def draw(job: SolveOptions, prompts: dict[str, Prompt], judge: Judge) -> None:
    """Draw and score what is missing, round by round.

    Raises:
        EndpointError: problems that the endpoint rejected; the others are drawn first.
    """
    from bestofk.api.sampling_run import SampleFile
    from bestofk.sampling.endpoint import EndpointError

    run = run_of(job)
    run["run_id"] += "-" + "-".join(str(len(numbers)) for numbers in rounds(job.n, job.by))
    errors, left_out = list[EndpointError](), set[str]()
    source: Any = None

    def judged(batch: Any, texts: Any) -> Any:
        verdicts = judge(batch, texts)
        scored = [verdict for verdict in verdicts if verdict.status != "unscored"]
        if job.by == "score" and scored and all(verdict.score is None for verdict in scored):
            raise ValueError(
                "--by score needs a verifier that gives scores (Verdict.score), and this one gives "
                "none: use --by verifier or --by vote"
            )
        return verdicts

    def draw_round(file: SampleFile, missing: dict[str, tuple[int, ...]], numbers: range) -> None:
        nonlocal source
        missing = {problem: each for problem, each in missing.items() if problem not in left_out}
        source = source or drawer_of(job, file.missing(job.n), file)
        options = {
            "sampling": job.sampling.changed(samples_per_prompt=len(numbers)),
            "seed": job.seed if job.remote else sample_seed(job.seed, "round", numbers.start),
            "first": numbers.start,
        }
        with bar(f"{counted(len(missing), 'problem')}", sum(map(len, missing.values()))) as advance:
            try:
                source(file, missing, advance=advance, **options)
            except EndpointError as error:
                failed = {
                    p for p, each in missing.items() if not file.done & {(p, n) for n in each}
                }
                if len(failed) == len(missing):
                    raise
                left_out.update(failed)
                errors.append(error)

    def open_file() -> SampleFile:
        return SampleFile(job.samples_file, run, prompts, judged)

    draw_in_rounds(open_file, draw_round, job.n, job.by, job.threshold)
    if errors:
        raise errors[-1]


def answers_of(job: SolveOptions, prompts: Iterable[str]) -> list[dict[str, Any]]:
    """A line per problem that has a sample."""
    by_problem: dict[str, list[Line]] = {problem: [] for problem in prompts}
    for line in lines_of(job.samples_file):
        by_problem.get(line["problem_id"], []).append(line)
    return [answer_line(lines, job.by, job.threshold) for lines in by_problem.values() if lines]


def summary(
    job: SolveOptions, answers: list[dict[str, Any]], forecast: Planned | None
) -> dict[str, Any]:
    """What `--json` prints."""
    rewards = [line["reward"] for line in answers if line["reward"] is not None]
    return {
        "file": str(job.file),
        "samples": str(job.samples_file),
        "problems": len(answers),
        "passed": sum(bool(reaches(reward, job.threshold)) for reward in rewards),
        "unscored": len(answers) - len(rewards),
        "chosen_by": dict(Counter(line["chosen_by"] for line in answers)),
        "k": job.n,
        "rounds": [len(numbers) for numbers in rounds(job.n, job.by)],
        "draws": sum(line["draws"] for line in answers),
        "tokens": sum(line["drawn_tokens"] for line in answers),
        "planned": None if forecast is None else asdict(forecast),
    }


def show(result: dict[str, Any]) -> None:
    """The answers, what they cost, and what was planned."""
    count = max(1, result["problems"])
    reasons = ", ".join(f"{why} {times}" for why, times in result["chosen_by"].items())
    say(
        f"{result['passed']} of {counted(result['problems'], 'problem')} passed "
        f"({result['passed'] / count:.2f}); chosen by {reasons}"
    )
    say(
        f"{counted(result['draws'], 'sample')} of at most {result['problems'] * result['k']:,} "
        f"({result['draws'] / count:.1f} a problem), {counted(result['tokens'], 'token')}"
    )
    if plan := result["planned"]:
        say(
            f"planned: {plan['metric']} {plan['value']:.2f} [{plan['low']:.2f}, "
            f"{plan['high']:.2f}], {plan['draws']:.1f} samples a problem"
        )
    if not is_quiet():
        print(f"bestofk eval {result['file']}    # next: the share that passed, with its interval")

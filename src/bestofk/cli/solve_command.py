"""`bestofk solve`: draw up to k samples of each problem, keep the best, say what it cost."""

from __future__ import annotations

import json
import sys
from collections import Counter
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from bestofk.cli._files import json_pairs
from bestofk.cli._options import option, parsed
from bestofk.cli._terminal import bar, say
from bestofk.cli.sample_command import SampleOptions, drawer_of, problems_of, run_of, say_unscored
from bestofk.deploy.choosing import (
    Chooser,
    Planned,
    check_comparing,
    check_drawing,
    planned,
    rounds,
)
from bestofk.messages import counted, is_quiet
from bestofk.storage import check_writable, write_atomically
from bestofk.types import reaches

if TYPE_CHECKING:
    from bestofk.api.sampling_run import SampleFile
    from bestofk.rewards import BatchVerifier, UnscoredGuard
    from bestofk.types import Prompt


class SolveOptions(SampleOptions):
    """Draw up to k samples of each problem, keep the best, write a line for each.

    With a verifier a problem ends at its first pass. An interrupted run resumes
    where it stopped: run the same command again.
    """

    examples: ClassVar = (
        "bestofk solve MODEL --task countdown --k 16 --planned earlier.jsonl",
        "bestofk solve URL --model M --data rows.jsonl --verifier my.py:reward",
    )

    groups: ClassVar = {
        "What": ("target", "task", "data", "verifier", "n", "by", "out"),
        "Sampling": ("model", "max_new_tokens"),
        "Cost": ("planned", "max_tokens"),
    }

    n: int = Field(16, json_schema_extra={"metavar": "N", "words": ["--k", "--n"]})
    """The most samples drawn of a problem."""
    data: Path | None = option("FILE", default=None)
    """Your problems instead of a task: rows as for `--task dataset`."""
    temperature: tuple[float, ...] = (1.0,)
    """Sampling temperature."""
    scorer: str = option("NAME", default="")
    """A second verifier, whose rewards are the scores that choose."""
    scorer_option: tuple[str, ...] = option("KEY=VALUE", default=())
    """Options of the scorer."""
    by: Chooser = "verifier"
    """What chooses: the first pass, the most frequent answer, or the largest score (or reward)."""
    threshold: float = 1.0
    """A reward of at least this passes."""
    planned: Path | None = option("FILE", default=None)
    """Samples of an earlier evaluation, at least k per problem: prints what they predict."""
    out: Path | None = None
    """File for the answers, by default TASK-MODEL-answers.jsonl. All samples go into
    NAME.samples.jsonl beside it."""
    max_tokens: int = Field(
        0, ge=0, json_schema_extra={"metavar": "N", "words": ["--max-tokens-total", "--max-tokens"]}
    )
    """Cap on tokens in all; by default a quarter more than the most that can come from an endpoint,
    and none on a model here."""

    @property
    def file(self) -> Path:
        plain = super().file
        if self.data is not None:
            plain = plain.with_stem(plain.stem.replace("dataset", self.data.stem, 1))
        return self.out or plain.with_name(f"{plain.stem}-answers.jsonl")

    @property
    def samples_file(self) -> Path:
        return self.file.with_suffix(".samples.jsonl")

    def with_data(self) -> SolveOptions:
        """The options with the rows as their task, and with what the target's run knows."""
        if self.data is None:
            return self.with_run()
        if self.task not in ("", "dataset") or not self.verifier:
            raise ValueError("--data FILE needs --verifier NAME, and no --task")
        rows = f"test={json.dumps(str(self.data))}"
        task = {"task": "dataset", "task_option": (*self.task_option, rows)}
        return self.model_copy(update=task).with_run()

    def check(self) -> None:
        super().check()
        check_drawing(self.n, self.temperature[0], self.threshold)
        if self.environment and self.scorer:
            raise ValueError(
                "--scorer does not judge trajectories of an environment: let its get_reward return "
                "a bestofk.types.Verdict with a score"
            )
        if self.file.is_file() and not self.samples_file.exists():
            raise ValueError(
                f"{self.file} exists, and the samples it was chosen from are not beside it "
                f"({self.samples_file.name}): choose another --out"
            )
        check_writable(self.file)


def main(argv: list[str]) -> int:
    chosen = parsed(SolveOptions, argv, "bestofk solve").with_data()
    from bestofk.deploy.solving import answers_of
    from bestofk.rewards import TooManyUnscored, UnscoredGuard
    from bestofk.sampling.endpoint import CapReached, EndpointError

    chosen.check()
    forecast = forecast_of(chosen)
    error: Exception | None = None
    guard = UnscoredGuard(share=0.05)
    with scorer_of(chosen) as scorer, problems_of(chosen, scorer) as (prompts, judge):
        check_comparing(judge, chosen.by)
        try:
            draw(chosen, prompts, judge, guard)
        except (CapReached, EndpointError, TooManyUnscored) as raised:
            error = raised
        except OSError as raised:
            raise type(raised)(f"{raised}: samples drawn so far are kept; make room, then run the "
                               "same command again") from raised  # fmt: skip
    by_problem = answers_of(chosen.samples_file, prompts, chosen.n, chosen.by, chosen.threshold)
    answers = list(by_problem.values())
    if error is not None and not answers:
        raise error
    lines = [json.dumps(line, ensure_ascii=False) + "\n" for line in answers]
    write_atomically(chosen.file, "".join(lines).encode("utf-8", "backslashreplace"))
    result = summary(chosen, answers, forecast)
    if chosen.as_json:
        print(json.dumps(result))
    else:
        show(result)
    say_unscored("solve", guard)
    if error is not None:
        print(f"bestofk solve: {error}", file=sys.stderr)
    return 0 if error is None else 1


def scorer_of(job: SolveOptions) -> AbstractContextManager[BatchVerifier | None]:
    """What gives the scores, while it is open."""
    from bestofk.rewards import verifier

    own = json_pairs(job.scorer_option)
    if own and not job.scorer:
        raise ValueError("--scorer-option is for --scorer")
    return verifier(job.scorer, **own) if job.scorer else nullcontext()


def forecast_of(job: SolveOptions) -> Planned | None:
    """What the earlier evaluation predicts."""
    if job.planned is None:
        return None
    from bestofk.samples import read

    pilot = read(job.planned)
    if (fewest := int(pilot.live.min())) < job.n:
        raise ValueError(
            f"--planned {job.planned} has {fewest} scored samples of a problem, and k = {job.n} "
            f"needs as many: draw more with bestofk sample, or take --k {max(1, fewest)}"
        )
    if job.by == "score" and pilot.scores is None:
        raise ValueError(f"--planned {job.planned} has no scores, and they choose: draw it anew")
    return planned(pilot, job.n, job.by, job.threshold)


def draw(
    job: SolveOptions, prompts: dict[str, Prompt], judge: BatchVerifier, guard: UnscoredGuard
) -> None:
    """Draw and score what is missing, round by round."""
    from bestofk.api.sampling_run import SampleFile
    from bestofk.deploy.solving import draw_in_rounds, round_options

    run = run_of(job)
    if job.scorer:
        run["run_id"] += "-".join(["", job.scorer, *job.scorer_option])
    if not job.remote or judge.compares:  # those of another k are others
        run["run_id"] += "-" + "-".join(str(len(numbers)) for numbers in rounds(job.n, job.by))
    source: Any = None

    def draw_round(file: SampleFile, missing: Any, numbers: range) -> None:
        nonlocal source
        source = source or stack.enter_context(drawer_of(job, file.missing(job.n), file))
        options = round_options(job.sampling, job.seed, numbers, one_by_one=job.remote)
        with bar(counted(len(missing), "problem"), sum(map(len, missing.values()))) as advance:
            source(file, missing, advance=advance, **options)

    def open_file() -> SampleFile:
        return SampleFile(job.samples_file, run, prompts, judge, guard)

    with ExitStack() as stack:
        draw_in_rounds(open_file, draw_round, job.n, job.by, job.threshold)


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

"""Draw in rounds into a file of samples, and keep one of each problem's: `solve` and `best_of`."""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from bestofk.api.sampling_run import LocalModel, SampleFile, draw_from_endpoint
from bestofk.deploy.choosing import (
    Chooser,
    Line,
    answer_line,
    check_comparing,
    check_drawing,
    deployed,
    rounds,
)
from bestofk.rewards import BatchVerifier, UnscoredGuard, from_function, scored_by
from bestofk.rewards import verifier as verifier_by_name
from bestofk.rewards.combine import NO_VERIFIER
from bestofk.runs import read_jsonl
from bestofk.sampling.endpoint import Cap, Endpoint, EndpointError, Usage
from bestofk.sampling.openai_wire import sample_seed
from bestofk.sampling.sampler import Sampling
from bestofk.tasks.schemas import ANSWERS, QUESTIONS, answer_of, chat, field, first_field
from bestofk.types import Prompt, reaches

Draw = Callable[[SampleFile, Mapping[str, tuple[int, ...]], range], None]
"""Draws the missing samples of a round into the file."""


def draw_in_rounds(
    open_file: Callable[[], SampleFile],
    draw: Draw,
    k: int,
    by: Chooser,
    threshold: float = 1.0,
) -> None:
    """Draw until a problem has a passing sample, or k. Rounds that a file holds are not repeated.

    A problem that the endpoint rejects is left out of later rounds.

    Args:
        open_file: the file of samples; leaving it waits until all that was drawn is scored.

    Raises:
        EndpointError: problems that the endpoint rejected; the others are drawn first.
    """
    errors, left_out = list[EndpointError](), set[str]()
    for numbers in rounds(k, by):
        with open_file() as file:
            passed = {
                line["problem_id"]
                for line in lines_of(file.out)
                if by == "verifier" and line["reward"] is not None
                and reaches(line["reward"], threshold)
            }  # fmt: skip
            problems = [each for each in file.prompts if each not in passed | left_out]
            missing = {each: tuple(n for n in numbers if (each, n) not in file.done)
                       for each in problems}  # fmt: skip
            missing = {problem: samples for problem, samples in missing.items() if samples}
            try:
                if missing:
                    draw(file, missing, numbers)
            except EndpointError as error:
                failed = {
                    problem for problem, samples in missing.items()
                    if not file.done & {(problem, n) for n in samples}
                }  # fmt: skip
                if len(failed) == len(missing):
                    raise
                left_out |= failed
                errors.append(error)
    if errors:
        raise errors[-1]


def round_options(
    sampling: Sampling, seed: int, numbers: range, *, one_by_one: bool
) -> dict[str, Any]:
    """How a round is drawn: an endpoint seeds each sample by its number, a model here each round's
    group."""
    return {
        "sampling": sampling.changed(samples_per_prompt=len(numbers)),
        "seed": seed if one_by_one else sample_seed(seed, "round", numbers.start),
        **({} if one_by_one else {"first": numbers.start}),
    }


def lines_of(path: Path) -> list[Line]:
    """The scored samples of a file that need not exist."""
    return list(read_jsonl(path)) if path.exists() else []


def answers_of(
    file: Path, problems: Iterable[str], k: int, by: Chooser, threshold: float = 1.0
) -> dict[str, dict[str, Any]]:
    """By problem the line of its answer, where the file of samples has one among the first k."""
    drawn: dict[str, list[Line]] = {problem: [] for problem in problems}
    for line in lines_of(file):
        if line["sample_id"] < k:
            drawn.get(line["problem_id"], []).append(line)
    return {problem: answer_line(lines, by, threshold) for problem, lines in drawn.items() if lines}


def best_of(
    model: str | PathLike[str] | Endpoint,
    prompts: Sequence[Any],
    k: int = 8,
    *,
    verifier: Any = None,
    scorer: Any = None,
    vote: bool = False,
    procedure: str | None = None,
    threshold: float = 1.0,
    name: str = "",
    out: str | PathLike[str] | None = None,
    temperature: float = 1.0,
    max_new_tokens: int = 1024,
    seed: int = 0,
    dtype: str = "float32",
) -> list[dict[str, Any] | None]:
    """Draw up to k samples of each prompt, keep the best.

    With a verifier a prompt ends at its first pass; without a pass the largest reward is kept, then
    the largest score, then the most frequent answer. A scorer and a vote see all k samples.

    Args:
        model: a Hub id, a folder, a GGUF file or a shipped model; the URL of an OpenAI-compatible
            endpoint up to /v1; or an `Endpoint`.
        prompts: texts, lists of chat messages, or rows: dicts with a prompt and what the verifier
            needs.
        verifier: a function of yours (`bestofk.rewards.from_function` lists the forms), or a name
            ("maths", "exact"), which judges by the row's answer.
        scorer: the same; its reward chooses where nothing passes, or alone.
        vote: keep the most frequent answer: in a box, an <answer> tag, after "Answer:", or all of
            the text.
        procedure: k and what chooses under the name that they have in training: "retry@8" (the
            verifier), "select@8" (the score, also beside a verifier), "maj@8" (the vote).
        threshold: a reward of at least this passes.
        name: the model's name at the endpoint.
        out: file for all samples. The same call resumes it.

    Returns:
        For each prompt the line that `bestofk solve` writes (completion, answer, reward, status,
        chosen_by, draws, drawn_tokens, …); None, with a warning, for a prompt that the endpoint
        rejected.

    Raises:
        ValueError: nothing that chooses, or input that cannot work.
        EndpointError: the endpoint rejects every request, or keeps failing.
    """
    by: Chooser = "vote" if vote else "verifier" if verifier is not None else "score"
    if procedure is not None:
        by, k = deployed(procedure)
    source = "verifier" if by == "verifier" else "scorer"
    if by != "vote" and verifier is None and (by == "verifier" or scorer is None):
        raise ValueError(
            f"{procedure} is chosen by the {by}: state {source}="
            if procedure
            else "best_of needs what chooses: verifier=, scorer= or vote=True"
        )
    check_drawing(k, temperature, threshold)
    if isinstance(model, str) and model.startswith(("http://", "https://")):
        if not name:
            raise ValueError("an endpoint serves models by name: state name='...'")
        model = Endpoint(base_url=model, model=name)
    remote = isinstance(model, Endpoint)
    sampling = Sampling(
        samples_per_prompt=k, max_new_tokens=max_new_tokens, temperature=temperature
    )
    into_file: Callable[..., None]
    if isinstance(model, Endpoint):
        cap, usage = Cap(sys.maxsize, sys.maxsize), Usage()
        into_file = partial(draw_from_endpoint, endpoint=model, cap=cap, usage=usage)
        label, in_chat = model.model, model.api == "chat"
    else:
        label, local = str(model), LocalModel(str(model), dtype=dtype)
        into_file, in_chat = local.draw_into, local.has_chat_template
    by_id = prompts_of(prompts, in_chat=in_chat)

    def draw(file: SampleFile, missing: Any, numbers: range) -> None:
        into_file(file, missing, **round_options(sampling, seed, numbers, one_by_one=remote))

    about = {
        "model": label,
        "sampling": sampling.model_dump(exclude={"samples_per_prompt"}),
    }
    with ExitStack() as stack:
        judge = stack.enter_context(scored_by(_named(verifier), _named(scorer)))
        check_comparing(judge, by)
        judge.check_prompts(list(by_id.values()))
        shaped = [about, [[p.text, p.spec] for p in by_id.values()], seed]
        if not remote or judge.compares:
            shaped += [[len(numbers) for numbers in rounds(k, by)]]
        digest = hashlib.sha256(json.dumps(shaped, sort_keys=True, default=str).encode())
        folder = stack.enter_context(tempfile.TemporaryDirectory()) if out is None else ""
        file = Path(folder) / "samples.jsonl" if out is None else Path(out)
        run = {**about, "run_id": digest.hexdigest()[:12]}
        guard = UnscoredGuard(share=1.0)
        try:
            draw_in_rounds(
                lambda: SampleFile(file, run, by_id, judge, guard), draw, k, by, threshold
            )
        except EndpointError as error:
            if not lines_of(file):
                raise
            warnings.warn(str(error), stacklevel=2)
        del guard.reasons[NO_VERIFIER]
        lost = guard.reasons.total()
        for reason, times in guard.reasons.most_common(1):
            warnings.warn(
                f"{lost} samples could not be scored, {times} because {reason}", stacklevel=2
            )
        answers = answers_of(file, by_id, k, by, threshold)
    return [answers.get(problem) for problem in by_id]


def _named(verifier: Any) -> BatchVerifier | None:
    if verifier is None:
        return None
    return verifier_by_name(verifier) if isinstance(verifier, str) else from_function(verifier)


def prompts_of(items: Sequence[Any], *, in_chat: bool) -> dict[str, Prompt]:
    """Texts, chats and rows as prompts, under their numbers.

    >>> prompts_of(["2+3?", {"question": "2+2?", "answer": 4}], in_chat=False)["1"].spec
    {'question': '2+2?', 'answer': 4, 'expected': '4'}
    """
    if isinstance(items, str | Mapping):
        raise ValueError("prompts are a list: texts, lists of chat messages, or rows (dicts)")
    return {
        str(number): replace(item, id=str(number))
        if isinstance(item, Prompt)
        else _prompt(str(number), item, in_chat)
        for number, item in enumerate(items)
    }


def _prompt(id: str, item: Any, in_chat: bool) -> Prompt:
    spec: dict[str, Any] = {}
    if isinstance(item, Mapping):
        spec, name = dict(item), first_field(item, QUESTIONS)
        if name is None:
            raise ValueError(
                f"prompt {id}: none of the fields is known to hold a question "
                f"({', '.join(map(str, item))}): name it prompt"
            )
        if "expected" not in spec and (answer := first_field(item, ANSWERS)):
            spec["expected"] = answer_of(item, answer)
        item = field(item, name)
    messages = chat(item)
    if messages is None and not isinstance(item, str):
        raise ValueError(f"prompt {id} is a text, chat messages or a row, got {item!r:.80}")
    if messages is None and in_chat:
        messages = [{"role": "user", "content": item}]
    return Prompt(id, item if messages is None else tuple(messages), "best_of", spec)

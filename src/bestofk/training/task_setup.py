"""The task of a run: its prompts, and who judges them. Needs no model, nor what one needs."""

from __future__ import annotations

import hashlib
import inspect
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from bestofk import tasks
from bestofk.config import TaskAdvanced, TaskSection
from bestofk.environments.author_class import EnvironmentClasses, OwnReward, load_environment
from bestofk.messages import say_aside
from bestofk.rewards import BatchVerifier, UnscoredGuard, scored_by, verifier
from bestofk.rewards import judge as judge_groups
from bestofk.rewards.base import way_to_import
from bestofk.rewards.combine import Watched
from bestofk.sampling.prompts import encode
from bestofk.storage import cache_folder, write_atomically
from bestofk.tasks import Split, Task
from bestofk.training.processes import Processes
from bestofk.training.resolve import ModelFacts, RunSettings
from bestofk.types import Group, Prompt, Verdict, Verifier, reaches


@dataclass(frozen=True)
class EvaluationSet:
    """Prompts that a policy is evaluated on, and who judges them."""

    name: str
    """Empty for the run's own task."""
    task: tasks.Task
    verifier: Verifier
    guard: UnscoredGuard
    split: str

    def judge(self, groups: Sequence[Group]) -> list[list[Verdict]]:
        """Judge whole groups as one batch."""
        if not groups:
            return []
        verdicts = judge_groups(groups, self.verifier)
        self.guard.check(verdict for row in verdicts for verdict in row)
        return verdicts


def make_set(
    name: str,
    section: TaskSection,
    settings: RunSettings,
    own: Verifier | None = None,
    processes: Processes | None = None,
    *,
    splits: Sequence[str],
) -> EvaluationSet:
    """The task of a section, judged by `own` or what the section names; evaluated on the last of
    the splits. Prompts that leave the model no room for an answer are left out.

    Args:
        section: the run's own, or that of a further set.
        splits: whose prompts are checked.
    """
    say = say_aside if processes and processes.main else None
    threshold, seed = settings.evaluation.threshold, settings.run.seed
    task = make_prompts(section, threshold=threshold, seed=seed, say=say)
    task = with_fitting_prompts(task, settings.facts, settings.sampling.max_new_tokens)
    judge: Any = make_verifier(section, task) if own is None else own
    task = with_accepted_references(task, judge, say=say, processes=processes)
    if section.scorer:
        judge = scored_by(judge, verifier(section.scorer, **section.scorer_options))
    if section.held_out:
        judge = Watched(judge, verifier(section.held_out, **section.held_out_options))
    for split in map(task.split, splits):
        if isinstance(judge, BatchVerifier):  # rows of data may differ, those of a generator do not
            judge.check_prompts(split[:] if section.name == "dataset" else split[:64])

    for line in task.look(section.split) if say else ():
        say_aside(line)
    if say and isinstance(judge, BatchVerifier):
        for line in judge.notes(task.split(section.split)[:64]):
            say_aside(line)
    guard = UnscoredGuard(section.advanced.unscored_share)
    return EvaluationSet(name, task, judge, guard, splits[-1])


def ways_to_watch(judge: Verifier, held_out: str | None, kl: float) -> list[str]:
    """What to know of a run that a learned model pays, and what is missing to see it."""
    if not getattr(judge, "is_learned", False):
        return []
    ways = [] if kl else ["loss.kl = 0.01 keeps the policy near its start"]
    ways += [] if held_out else ["task.held_out = NAME logs a judge that does not pay"]
    lines = [
        "a model's opinion pays: training finds what it mistakes for quality, such as length, a "
        "confident tone, or a text that asks for a good mark"
    ]
    return lines + (["; ".join(ways)] if ways else ["stop where the reward rises and the held-out "
                                                    "judge does not"])  # fmt: skip


def make_sets(
    settings: RunSettings,
    processes: Processes,
    verifier: Verifier | None = None,
    environment: EnvironmentClasses | None = None,
) -> tuple[EvaluationSet, ...]:
    """The run's own task, and the further sets that `evaluation.sets` names: tasks, or data. Data
    are read as the run's own are; beside another task, by their usual columns, for the run's
    verifier."""
    section, evaluation = settings.task, settings.evaluation
    if environment is not None:
        verifier = judge_of(environment, section, verifier)
    splits = [section.split, *([evaluation.split] if evaluation.every else [])]
    sets = [make_set("", section, settings, verifier, processes, splits=splits)]
    task = sets[0].task
    if processes.main:
        for line in ways_to_watch(sets[0].verifier, section.held_out, settings.loss.kl):
            say_aside(line)
    for name, source in evaluation.sets.items() if evaluation.every else ():
        is_task = source in tasks.TASKS
        further = section_of(source, section, task)
        names = tasks.task(source, **further.options).splits if is_task else ("test",)
        split = "test" if "test" in names else names[-1]
        further = further.changed(split=split, advanced=TaskAdvanced())
        own = verifier if isinstance(verifier, OwnReward) or not is_task else None
        sets.append(make_set(name, further, settings, own, splits=[split]))
    return tuple(sets)


def section_of(source: str, section: TaskSection, task: tasks.Task) -> TaskSection:
    """A further set as a section of its own, from the run's section and task."""
    style = section.options.get("style")
    if source in tasks.TASKS:
        has_style = style and "style" in inspect.signature(tasks.factory(source)).parameters
        options = {"style": style} if has_style else {}
        return TaskSection(name=source, options=options, environment=section.environment)
    if section.name == "dataset":
        options = {k: v for k, v in section.options.items() if k not in SOURCES}
        return section.changed(options={**options, "test": source})
    own_options = {} if section.verifier else task.verifier_options
    return section.changed(
        name="dataset",
        options={"test": source, "style": "chat" if style == "chat" else "text"},
        verifier=section.verifier or task.verifier,
        verifier_options={**own_options, **section.verifier_options},
    )


SOURCES = ("train", "validation", "test")


def make_prompts(
    section: TaskSection,
    *,
    threshold: float | None = None,
    seed: int = 0,
    say: Callable[[str], None] | None = None,
) -> tasks.Task:
    """The task, with the training prompts whose pass rate is asked for.

    Args:
        threshold, seed: a reward that passes there; of the order of what is kept.
        say: prints a line.
    """
    chosen = dict(section.options)
    if section.name == "dataset" and section.verifier:
        chosen.setdefault("verifier", section.verifier)  # its rows keep every field then
    elif section.name == "dataset" and section.environment:
        chosen.setdefault("verifier", f"environment:{section.environment}")  # so do these
    task = tasks.task(section.name, **chosen)
    if section.advanced.pass_rates is None:
        return task
    return with_pass_rates(task, section, threshold=threshold, seed=seed, say=say)


def judge_of(
    environment: EnvironmentClasses, task: TaskSection, verifier: Verifier | None
) -> Verifier | None:
    """Who judges with this environment; None for the verifier that the section names."""
    if not environment.has_rewards:
        if verifier is None and task.name == "dataset" and not task.verifier:
            raise ValueError(
                f"{task.environment} has no get_reward(self), and no verifier is stated: give it "
                "one, or state a reward function or a verifier"
            )
        return verifier
    if verifier is not None or task.verifier or task.scorer:
        raise ValueError(
            f"{task.environment} gives its own rewards (get_reward), and a reward function, a "
            "verifier or a scorer is stated too: leave it out; get_reward may return "
            "a bestofk.types.Verdict with a score"
        )
    return OwnReward()


def task_judge_environment(
    section: TaskSection,
    own: Any = None,
    environment: EnvironmentClasses | None = None,
    **options: Any,
) -> tuple[Task, Any, EnvironmentClasses | None]:
    """What a section names, to sample on it: the task, who judges (`own`, where that is not the
    environment), and what answers the model, where anything does."""
    if environment is None and section.environment:
        environment = load_environment(section.environment)
    if environment is not None:
        own = judge_of(environment, section, own)
    task = make_prompts(section, **options)
    return task, own or make_verifier(section, task), environment


def make_verifier(section: TaskSection, task: tasks.Task) -> BatchVerifier:
    """The verifier that the config names, or the task's own."""
    own = {} if section.verifier else task.verifier_options
    return verifier(section.verifier or task.verifier, **{**own, **section.verifier_options})


def with_pass_rates(
    task: Task,
    section: TaskSection,
    *,
    threshold: float | None = None,
    seed: int = 0,
    say: Callable[[str], None] | None = None,
) -> Task:
    """The task with only those prompts in the split to train on whose pass rate in the section's
    file of samples lies in its range; a prompt without a scored sample there is left out."""
    from bestofk.samples import read

    split, file = section.split, str(section.advanced.pass_rates)
    low, high = section.advanced.pass_rate_range
    samples = read(file)
    passes = samples.count(reaches(samples.rewards, 1.0 if threshold is None else threshold))
    counts = zip(samples.problems, passes.tolist(), samples.live.tolist())
    rate_of = {problem: passed / live for problem, passed, live in counts if live}

    def make(name: str) -> Split:
        built = task.make(name)
        if name != split:
            return built
        rated, in_range = 0, []
        for prompt in built:
            rate = rate_of.get(prompt.id)
            rated += rate is not None
            if rate is None:
                task.left_out[prompt.id] = f"it is not in {file}"
            elif low <= rate <= high:
                in_range.append(prompt)
            else:
                outside = f"its pass rate in {file} is outside [{low:g}, {high:g}]"
                task.left_out[prompt.id] = outside
        if not in_range:
            raise ValueError(
                f"task.advanced.pass_rates: {rated} of {len(built)} prompts of split "
                f"{split!r} are in {file}, and none has a pass rate in [{low:g}, {high:g}]: widen "
                "task.advanced.pass_rate_range, or sample this split again"
            )
        if say:
            say(
                f"{task.name}, {split}: {len(in_range):,} of {len(built):,} prompts kept: {file} "
                f"has {rated:,} of them, and these a pass rate in [{low:g}, {high:g}]"
            )
        return Split(in_range, len(in_range), seed=seed)

    return replace(task, make=make, _cache={})


def with_fitting_prompts(task: Task, model: ModelFacts, new: int) -> Task:
    """The task without prompts that leave the model fewer than `new` positions for an answer."""
    context, tokenizer = model.shape.get("context"), model.tokenizer
    if context is None:
        return task
    room = context - new

    def make(name: str) -> Split:
        split = task.make(name)
        count, long = 0, dict[str, int]()
        template = len(encode(tokenizer, split[0]))

        def fits(prompt: Prompt) -> bool:
            nonlocal count
            count += 1
            if template + _bytes(prompt) <= room:  # a token holds a byte at least
                return True
            length = len(encode(tokenizer, prompt))
            if length <= room:
                return True
            long[prompt.id] = length
            task.left_out[prompt.id] = "the prompt is too long for the model"
            of = max(count, 10) if split.is_lazy else len(split)
            if len(long) > MOST_LEFT_OUT * of:
                spare = context - length
                lower = f"lower it to at most {spare}, or take" if spare > 0 else "take"
                raise ValueError(
                    f"too many prompts of split {name!r} are too long: {prompt.id!r} has {length} "
                    f"tokens, sampling.max_new_tokens = {new}, and the model has positions for "
                    f"{context}: {lower} shorter prompts or a model with a longer context"
                )
            return False

        return split.where(fits)

    return replace(task, make=make, _cache={})


def _bytes(prompt: Prompt) -> int:
    texts = [prompt.text] if isinstance(prompt.text, str) else [m["content"] for m in prompt.text]
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)


MOST = 5_000
"""References judged per split; the problems after these are taken as they are."""
MOST_LEFT_OUT = 0.1
"""Share of a split; more is a fault of the setup or of the data."""


def with_accepted_references(
    task: Task,
    judge: Verifier,
    *,
    say: Callable[[str], None] | None = None,
    processes: Processes | None = None,
) -> Task:
    """The task without problems whose reference `judge` does not accept, where it runs programs.

    Verdicts are kept in the user's cache folder, by what is judged and how: a second start judges
    nothing.
    """
    if getattr(judge, "name", "") != "code":
        return task
    say = say or (lambda line: None)

    def make(name: str) -> Split:
        split = task.make(name)
        prompts = [prompt for prompt in split[:MOST] if prompt.reference is not None]
        refused = _refused(task.name, prompts, judge, say, processes)
        task.left_out.update(dict.fromkeys(refused, "the reference solution is not accepted"))
        if len(refused) > MOST_LEFT_OUT * len(split):
            listed = "; ".join(f"{id}: {why}" for id, why in list(refused.items())[:20])
            raise ValueError(
                f"{task.name}: the reference solutions of {len(refused)} of {len(split)} problems "
                f"in split {name!r} are not accepted: {listed}; repair or remove these problems"
            )
        if not refused:
            return split
        first, why = next(iter(refused.items()))
        say(
            f"{task.name}, {name}: {len(refused)} of {len(split)} problems left out, because their "
            f"reference solutions are not accepted ({first}: {why})"
        )
        return split.where(lambda prompt: prompt.id not in refused)

    return replace(task, make=make, _cache={})


def _refused(
    name: str,
    prompts: Sequence[Prompt],
    judge: Any,
    say: Callable[[str], None],
    processes: Processes | None,
) -> dict[str, str]:
    """Ids and reasons; from the cache where the same was judged before."""
    place = cache_folder() / "references" / f"{name}.json"
    settings = repr((source_of_judges(), platform.python_version(), judge.settings))
    keys = {prompt.id: _key(settings, prompt) for prompt in prompts}
    stored = _stored(place)
    unknown = [prompt for prompt in prompts if keys[prompt.id] not in stored]
    if len(unknown) > 200:
        say(f"{name}: judging {len(unknown):,} reference solutions, once")
    mine = unknown[processes.rank :: processes.size] if processes else unknown
    verdicts = judge(mine, [str(prompt.reference) for prompt in mine])
    reasons: dict[str, str | None] = {
        prompt.id: None if verdict.reward >= 1 else _why(verdict)
        for prompt, verdict in zip(mine, verdicts, strict=True)
    }
    parts = processes.gather(reasons) if processes else [reasons]
    judged = {id: why for part in parts for id, why in part.items()}
    if judged and not (processes and processes.rank):
        fresh = {keys[id]: why for id, why in judged.items() if not str(why).startswith("unscored")}
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, json.dumps({**_stored(place), **fresh}), sync=False)
    all_reasons = {prompt.id: stored.get(keys[prompt.id]) for prompt in prompts} | judged
    return {id: why for id, why in all_reasons.items() if why is not None}


@cache
def source_of_judges() -> str:
    """A hash of the code that judges: verdicts of another version are not reused."""
    package = Path(tasks.__file__).parents[1]
    files = [file for name in ("rewards", "sandbox") for file in (package / name).rglob("*.py")]
    return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(files))).hexdigest()


def _why(verdict: Verdict) -> str:
    return f"{verdict.status} {verdict.detail}"[:300] + way_to_import(verdict.detail)


def _key(settings: str, prompt: Prompt) -> str:
    content = json.dumps([settings, dict(prompt.spec), prompt.reference], sort_keys=True)
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _stored(place: Any) -> Mapping[str, str | None]:
    try:
        return json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # there is none yet, or another version wrote it
        return {}

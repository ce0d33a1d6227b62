"""`bestofk tasks`: what tasks there are; `bestofk tasks show NAME`: prompts with their answers."""

from __future__ import annotations

import inspect
import json
import textwrap
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

from bestofk.cli._files import json_pairs
from bestofk.cli._options import VerbOptions, argument, option, parsed
from bestofk.messages import say_aside
from bestofk.storage import json_safe

if TYPE_CHECKING:
    from bestofk.tasks import Split
    from bestofk.types import Prompt, Verdict


class TasksOptions(VerbOptions):
    """List the tasks with their options."""

    examples: ClassVar = (
        "bestofk tasks",
        "bestofk tasks show NAME      prompts with verified answers (--help)",
    )


class TaskShowOptions(VerbOptions):
    """Prompts of a task with reference answers, each judged by the task's verifier."""

    examples: ClassVar = (
        "bestofk tasks show countdown --n 3",
        "bestofk tasks show mbpp --play --environment repair",
    )

    task: str = argument("NAME")
    """Name of the task; `bestofk tasks` lists them."""
    n: int = 3
    """Number of prompts."""
    split: str = ""
    """Split to show; the first one unless stated."""
    start: int = 0
    """Position of the first prompt shown."""
    environment: str = option("NAME", default="")
    """With --play, what answers you: "file.py:Class", "package.module:Class", python or repair."""
    limit: tuple[str, ...] = option("KEY=VALUE", default=())
    """With --play, limits of a trajectory, such as turns=3, by their names in task.limits."""
    option: tuple[str, ...] = option("KEY=VALUE", default=())
    """Option of the task (a JSON value or a word); may be repeated."""
    judge: bool = True
    """Do not judge the reference answers."""
    play: bool = False
    """Answer the prompts yourself: you type the model's messages and see the reward."""


def main(argv: list[str]) -> int:
    if argv and argv[0] == "show":
        return show(parsed(TaskShowOptions, argv[1:], "bestofk tasks show"))
    if argv and not argv[0].startswith("-"):
        raise ValueError(f"bestofk tasks, or bestofk tasks show NAME; got {argv[0]!r}")
    arguments = parsed(TasksOptions, argv, "bestofk tasks")
    print(json.dumps(listed(), indent=2, default=str) if arguments.as_json else listing())
    return 0


def listed() -> list[dict[str, Any]]:
    """Every task with its line and its options: what `--json` prints."""
    from bestofk.tasks import TASKS, factory

    result = []
    for name, (_, summary, _) in TASKS.items():
        options = inspect.signature(factory(name)).parameters.values()
        defaults = {o.name: None if o.default is o.empty else o.default for o in options}
        result.append({"name": name, "summary": summary, "options": defaults})
    return result


def listing() -> str:
    """Every task with its line and its options, within 80 columns."""
    lines = []
    for each in listed():
        options = ", ".join(f"{name}={_short(value)}" for name, value in each["options"].items())
        lines.append(f"{each['name']:<13} {each['summary']}")
        lines += textwrap.wrap(options, 79, initial_indent=" " * 16, subsequent_indent=" " * 16)
    return "\n".join([*lines, "", "bestofk tasks show NAME --n 3 prints prompts with answers"])


def _short(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str) else str(value)


JUDGED = "reward", "status", "passed", "total", "cpu_seconds", "tier", "detail", "parts"


def show(arguments: TaskShowOptions) -> int:
    """Print prompts, reference answers and verdicts; 1 when a reference does not score 1.0."""
    if arguments.play:
        return play_prompts(arguments)
    from bestofk.rewards import verifier
    from bestofk.tasks import task
    from bestofk.training.task_setup import with_accepted_references

    chosen = task(arguments.task, **json_pairs(arguments.option))
    judge = verifier(chosen.verifier, **chosen.verifier_options) if arguments.judge else None
    split_name = arguments.split or chosen.splits[0]
    with judge or nullcontext():
        if judge is not None:
            chosen = with_accepted_references(chosen, judge, say=say_aside)
        split = chosen.split(split_name)
        prompts = prompts_of(arguments, split_name, split)
        notes = []
        if judge is not None:
            judge.check_prompts(split[:64])
            notes = judge.notes(split[:64])
        answers = [prompt.reference for prompt in prompts]
        verdicts = judge(prompts, answers) if judge is not None else []
    status = 0 if all(verdict.reward == 1.0 for verdict in verdicts) else 1
    if arguments.as_json:
        table = {
            "task": chosen.name,
            "split": split_name,
            "size": len(split),
            "prompts": [{"id": p.id, "text": p.text, "reference": p.reference} for p in prompts],
            "verdicts": [
                json_safe({name: getattr(verdict, name) for name in JUDGED}) for verdict in verdicts
            ],
        }
        print(json.dumps(table, indent=2, ensure_ascii=False))
        return status
    print(f"{chosen.name}: {chosen.summary}; licence: {chosen.licence}")
    print(f"splits: {', '.join(chosen.splits)}; {split_name} has {len(split)} prompts")
    for line in [*chosen.findings(), *notes]:
        print(line)
    print()
    for number, prompt in enumerate(prompts):
        print(f"--- {prompt.id}")
        if isinstance(prompt.text, str):
            print(prompt.text)
        else:
            for message in prompt.text:
                print(f"[{message['role']}] {message['content']}")
        print(f">>> {prompt.reference}")
        if verdicts:
            print(said_of(verdicts[number]))
        print()
    return status


def prompts_of(arguments: TaskShowOptions, name: str, split: Split) -> list[Prompt]:
    """The prompts that are asked for."""
    if arguments.n < 1 or not 0 <= arguments.start < len(split):
        raise ValueError(
            f"{arguments.task} has {len(split)} prompts in {name}; got "
            f"--start {arguments.start} --n {arguments.n}"
        )
    return split[arguments.start : arguments.start + arguments.n]


def said_of(verdict: Verdict) -> str:
    return f"=== {verdict.reward:g} {verdict.status} {verdict.detail}".rstrip()


def play_prompts(arguments: TaskShowOptions) -> int:
    """Let a person answer the prompts, one after the other, until the last or until they leave."""
    from bestofk.cli._playing import play
    from bestofk.config import TaskSection
    from bestofk.environments.limits import TurnLimits
    from bestofk.training.task_setup import task_judge_environment

    section = TaskSection(
        name=arguments.task,
        options=json_pairs(arguments.option),
        environment=arguments.environment or None,
        limits=TurnLimits(**json_pairs(arguments.limit)),
    )
    chosen, own, environments = task_judge_environment(section)
    name = arguments.split or chosen.splits[0]
    with own as judge:
        try:
            for prompt in prompts_of(arguments, name, chosen.split(name)):
                print(f"--- {prompt.id}")
                print(f"{said_of(play(prompt, judge, environments, section.limits))}\n")
        except (EOFError, KeyboardInterrupt):
            print("\nended before a reward")
    return 0

"""`bestofk tasks`: what tasks there are; `bestofk tasks show NAME`: prompts with their answers."""

from __future__ import annotations

import inspect
import json
import textwrap
from contextlib import nullcontext
from typing import Any, ClassVar

from bestofk.cli._files import json_pairs
from bestofk.cli._options import VerbOptions, argument, option, parsed
from bestofk.storage import json_safe


class TasksOptions(VerbOptions):
    """List the tasks with their options."""

    examples: ClassVar = (
        "bestofk tasks",
        "bestofk tasks show NAME      prompts with verified answers (--help)",
    )


class TaskShowOptions(VerbOptions):
    """Prompts of a task with reference answers, each judged by the task's verifier."""

    examples: ClassVar = ("bestofk tasks show countdown --n 3",)

    task: str = argument("NAME")
    """Name of the task; `bestofk tasks` lists them."""
    n: int = 3
    """Number of prompts."""
    split: str = ""
    """Split to show; the first one unless stated."""
    start: int = 0
    """Position of the first prompt shown."""
    option: tuple[str, ...] = option("KEY=VALUE", default=())
    """Option of the task (a JSON value or a word); may be repeated."""
    judge: bool = True
    """Do not judge the reference answers."""


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
    from bestofk.rewards import verifier
    from bestofk.tasks import task
    from bestofk.training.task_setup import say_on_stderr, with_accepted_references

    chosen = task(arguments.task, **json_pairs(arguments.option))
    judge = verifier(chosen.verifier, **chosen.verifier_options) if arguments.judge else None
    split_name = arguments.split or chosen.splits[0]
    with judge or nullcontext():
        if judge is not None:
            chosen = with_accepted_references(chosen, judge, say=say_on_stderr)
        split = chosen.split(split_name)
        if arguments.n < 1 or not 0 <= arguments.start < len(split):
            raise ValueError(
                f"{arguments.task} has {len(split)} prompts in {split_name}; got "
                f"--start {arguments.start} --n {arguments.n}"
            )
        notes = []
        if judge is not None:
            judge.check_prompts(split[:64])
            notes = judge.notes(split[:64])
        prompts = split[arguments.start : arguments.start + arguments.n]
        answers = [prompt.reference for prompt in prompts]
        verdicts = judge(prompts, answers) if judge is not None else []
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
        return 0 if all(verdict.reward == 1.0 for verdict in verdicts) else 1
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
            verdict = verdicts[number]
            print(f"=== {verdict.reward:g} {verdict.status} {verdict.detail}".rstrip())
        print()
    return 0 if all(verdict.reward == 1.0 for verdict in verdicts) else 1

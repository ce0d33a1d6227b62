"""`bestofk tasks`: what tasks there are; `bestofk tasks show NAME`: prompts with their answers."""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass, field
from typing import Annotated, Any

import tyro


@dataclass(frozen=True, kw_only=True)
class Show:
    """Prompts of a task with reference answers, each judged by the task's verifier."""

    task: Annotated[str, tyro.conf.Positional]
    """Name of the task; `bestofk tasks` lists them."""
    n: int = 3
    """How many prompts."""
    split: str = ""
    """Split to show; the first one unless stated."""
    start: int = 0
    """Position of the first prompt shown."""
    option: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = field(default=())
    """An option of the task as key=value (a JSON value or a word); may be repeated."""
    judge: bool = True
    """Judge each reference answer, in the sandbox where the task needs one."""


def main(argv: list[str]) -> int:
    if not argv:
        print(listing())
        return 0
    if argv[0] in ("-h", "--help"):
        print("usage: bestofk tasks                what tasks there are")
        print(
            "       bestofk tasks show NAME      prompts with verified reference answers (--help)"
        )
        return 0
    if argv[0] != "show":
        raise ValueError(f"bestofk tasks, or bestofk tasks show NAME; got {argv[0]!r}")
    return show(tyro.cli(Show, args=argv[1:], prog="bestofk tasks show"))


def listing() -> str:
    """Every task with its line and its options."""
    from bestofk.tasks import TASKS, factory

    lines = []
    for name, (_, summary) in TASKS.items():
        options = inspect.signature(factory(name)).parameters.values()
        shown = ", ".join(f"{o.name}={_short(o.default)}" for o in options)
        lines += [f"{name:<13} {summary}", f"{'':<13}   {shown}"]
    return "\n".join([*lines, "", "bestofk tasks show NAME --n 3 prints prompts with answers"])


def _short(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str) else str(value)


def parse_options(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Options as typed: key=value, the value as JSON where it is JSON, else as a word.

    >>> parse_options(("numbers=3", "style=compact", "sizes=[5, 7]"))
    {'numbers': 3, 'style': 'compact', 'sizes': [5, 7]}
    """
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"an option reads key=value, got {pair!r}")
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    return options


def show(asked: Show) -> int:
    """Print prompts, reference answers and verdicts; 1 when a reference does not score 1.0."""
    from bestofk.rewards import verifier
    from bestofk.tasks import task

    chosen = task(asked.task, **parse_options(asked.option))
    judge = verifier(chosen.verifier, **chosen.verifier_options) if asked.judge else None
    split_name = asked.split or chosen.splits[0]
    split = chosen.split(split_name)
    if asked.n < 1 or not 0 <= asked.start < len(split):
        raise ValueError(
            f"{asked.task} has {len(split)} prompts in {split_name}; got --start {asked.start} "
            f"--n {asked.n}"
        )
    prompts = split[asked.start : asked.start + asked.n]
    verdicts = []
    if judge is not None:
        with judge:
            verdicts = judge(prompts, [prompt.reference for prompt in prompts])
    print(f"{chosen.name}: {chosen.summary}; licence: {chosen.licence}")
    print(f"splits: {', '.join(chosen.splits)}; {split_name} has {len(split)} prompts\n")
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

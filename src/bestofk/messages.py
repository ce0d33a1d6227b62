"""The words of messages and errors: suggestions for mistyped names, counts, printable text; and
where lines of progress go."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterable


def closest(word: object, names: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The name that is most like a word, if any is like it; the first of equals."""

    def likeness(name: str) -> float:
        return difflib.SequenceMatcher(None, name, str(word)).ratio()

    near = max(names, key=likeness, default=None)
    return near if near is not None and likeness(near) >= cutoff else None


OTHER_NAMES = {
    "lr": "learning_rate", "n": "samples_per_prompt", "num_generations": "samples_per_prompt",
    "group_size": "samples_per_prompt", "batch_size": "prompts_per_step", "max_tokens":
    "max_new_tokens", "max_completion_length": "max_new_tokens", "output_dir": "dir",
    "max_steps": "steps", "eval_steps": "every", "save_steps": "checkpoint_every",
    "epochs": "passes", "lora_r": "lora_rank", "beta": "kl", "optimiser": "optimizer",
}  # fmt: skip
"""What other trainers call a setting, and its name here."""


def similar(name: str, names: Iterable[str]) -> list[str]:
    """The dotted names that were probably meant: by their last part, then by the whole name.

    >>> similar("run.keep_last", ["run.steps", "run.advanced.keep_last"])
    ['run.advanced.keep_last']
    >>> similar("optimizer.lr", ["optimizer.adam", "optimizer.learning_rate"])
    ['optimizer.learning_rate']
    """
    ends = {each: each.rpartition(".")[2] for each in names}
    last = OTHER_NAMES.get(name.rpartition(".")[2], name.rpartition(".")[2])
    if exact := [each for each, end in ends.items() if end == last]:
        return exact
    if near := closest(name, ends, cutoff=0.7):
        return [near]
    near = closest(last, ends.values(), cutoff=0.7)
    return [each for each, end in ends.items() if near and end == near]


def did_you_mean(word: object, names: Iterable[str], *, cutoff: float = 0.6) -> str:
    """The part of a message that suggests the closest match; empty where nothing is close.

    >>> did_you_mean("count-down", ["countdown", "maze"])
    "did you mean 'countdown'? "
    """
    near = closest(word, names, cutoff=cutoff)
    return f"did you mean {near!r}? " if near else ""


def choices(word: object, names: Iterable[str], *, cutoff: float = 0.6) -> str:
    """The end of a message about a mistyped name: the closest match, and all there are.

    >>> choices("mase", ["countdown", "maze"])
    "did you mean 'maze'? have countdown, maze"
    """
    names = list(names)
    return f"{did_you_mean(word, names, cutoff=cutoff)}have {', '.join(names) or 'none'}"


def unknown(kind: str, word: object, names: Iterable[str], *, cutoff: float = 0.6) -> ValueError:
    """The error for a mistyped name: what it is, the closest match, and all there are.

    >>> raise unknown("task", "count-down", ["countdown", "maze"])
    Traceback (most recent call last):
    ValueError: unknown task 'count-down'; did you mean 'countdown'? have countdown, maze
    """
    return ValueError(f"unknown {kind} {word!r}; {choices(word, names, cutoff=cutoff)}")


def one_of(what: str, word: str, names: Iterable[str]) -> None:
    """Raise for a word that is none of the names."""
    if word not in names:
        raise unknown(what, word, names)


def counted(number: int, noun: str, one: str = "", many: str = "") -> str:
    """A number and its noun, with a verb that agrees.

    >>> counted(1, "problem", "is", "are"), counted(2000, "problem")
    ('1 problem is', '2,000 problems')
    """
    return f"{number:,} {noun}{'s' * (number != 1)} {one if number == 1 else many}".rstrip()


def printable(text: str) -> str:
    """Text for a terminal: ids and names come from files, and may hold escape sequences.

    >>> printable("a" + chr(27) + "[31mb")
    'a�[31mb'
    """
    return "".join(c if c.isprintable() else "�" for c in text)


def is_quiet() -> bool:
    """Whether the command was given --quiet."""
    return bool(os.environ.get("BESTOFK_QUIET"))


def say_aside(text: str) -> None:
    """A line of progress on standard error; nothing with --quiet."""
    if not is_quiet():
        print(text, file=sys.stderr, flush=True)

"""Construction problems: a valid answer earns something, a better one more, a broken rule nothing.

A safe answer is easy to find and pays little, a bold one pays much or nothing: here the best of k
differs most from the mean.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from bestofk.messages import one_of
from bestofk.tasks.construct_problems import KINDS, Facts
from bestofk.tasks.definition import (
    STYLES,
    Draw,
    Task,
    below,
    generated,
    identity,
    shuffle,
    wording,
)
from bestofk.types import Prompt

_GUESTS = """Guests: {items}.
These pairs do not get along: {edges}.
Invite as many guests as you can such that no such pair is among them. A list of guests with such \
a pair is worth nothing."""
_TEXT = {
    "independent": (_GUESTS, "names of the invited guests"),
    "cut": (_GUESTS, "names of the invited guests"),
    "sidon": (
        """From the numbers {items} choose as many as you can such that all differences between \
two of them are different. A choice with two equal differences is worth nothing.""",
        "chosen numbers",
    ),
    "cover": (
        """Each team can do some of the jobs 1 to {jobs}:
{teams}
Hire as few teams as you can such that every job can be done. A choice that leaves a job undone is \
worth nothing.""",
        "names of the hired teams",
    ),
    "path": (
        """Roads join these pairs of towns: {edges}.
Find a walk along these roads that visits as many towns as you can and none of them twice. Start \
where you like. A walk that leaves the roads or repeats a town is worth nothing.""",
        "names of the towns in the order of the walk",
    ),
    "knapsack": (
        """Choose items of at most {limit} total weight with as much total value as you can. A \
choice that is too heavy is worth nothing.
{goods}""",
        "names of the chosen items",
    ),
}
_END = (
    'Give your answer as one line: the word "ANSWER:", then the {what}, separated by spaces. '
    "Write nothing else."
)
_WORDS = {"be", "do", "go", "ha", "he", "hi", "ho", "la", "ma", "me", "no", "pa", "so", "to", "we"}
NAMES = [
    (first + vowel).capitalize()
    for first in "bcdfghjklmnprstvwz"
    for vowel in "aeiou"
    if first + vowel not in _WORDS
]
"""Two-letter names. Those of a problem are drawn, so that a constant answer names what is not
there."""


def construct(
    *,
    kind: str | Sequence[str] = "independent",
    sizes: Sequence[int] = (),
    style: str = "chat",
    reward: str = "ratio",
    seed: int = 0,
    train_size: int = 20_000,
    validation_size: int = 500,
    test_size: int = 1000,
    ood_size: int = 500,
) -> Task:
    """Construct a large set, a short cover, a long walk: graded by the optimum.

    Args:
        kind: "independent", "sidon", "cover", "path", "knapsack", or a list of these; or "cut",
            which has the prompts of independent and pays for every pair that is parted.
        sizes: numbers of items, each as often as it is listed; the split "ood" has one more than
            the largest. By default what the kind is usually given, 9 to 17.
        style: "chat", "text", or "compact" (items are 1, 2, … and an answer is their numbers).
        reward: "ratio" (value / best, or lowest cost / cost) or "best" (1 for an optimum only).
    """
    kinds = [kind] if isinstance(kind, str) else list(kind)
    _check(kinds, sizes)
    one_of("style", style, STYLES)

    def drawing(split: str) -> tuple[Draw, tuple[Any, ...]]:
        choices = {name: _sizes(name, sizes, split) for name in kinds}

        def draw(rng: random.Random) -> tuple[str, Callable[[], Prompt | None]] | None:
            name = kinds[below(rng, len(kinds))]
            size = choices[name][below(rng, len(choices[name]))]
            facts = KINDS[name].draw(rng, size)
            if facts is None:
                return None
            family = "independent" if name == "cut" else name
            key = f"construct {family} {KINDS[name].identity(facts, size)}"
            return key, lambda: _prompt(name, family, facts, size, style, rng)

        same_draws = [("independent" if name == "cut" else name) for name in kinds]
        return draw, (same_draws, list(choices.values()))

    return generated(
        "construct",
        drawing,
        (train_size, validation_size, test_size, ood_size),
        seed=seed,
        reward=reward,
        summary="; ".join(
            f"{name} of {min(_sizes(name, sizes, ''))} to {max(_sizes(name, sizes, ''))} items, "
            f"out of distribution {_sizes(name, sizes, 'ood')[0]}"
            for name in kinds
        ),
    )


def _sizes(kind: str, sizes: Sequence[int], split: str) -> list[int]:
    low, high = KINDS[kind].sizes
    chosen = list(sizes) or list(range(low, high + 1))
    return [max(chosen) + 1] if split == "ood" else chosen


def _check(kinds: Sequence[str], sizes: Sequence[int]) -> None:
    if not kinds:
        raise ValueError(f"kind names at least one of {', '.join(KINDS)}, got none")
    for kind in kinds:
        one_of("kind", kind, tuple(KINDS))
        bound = KINDS[kind].solvable
        if sizes and not 3 <= min(sizes) <= max(sizes) < bound:
            raise ValueError(
                f"sizes of {kind} lie in 3..{bound - 1}, got {list(sizes)}: the optimum is found "
                "by a search, and the split ood has one item more"
            )
    if {"cut", "independent"} <= set(kinds):
        raise ValueError("cut has the prompts of independent: take one of the two")


def _prompt(
    kind: str, family: str, facts: Facts, size: int, style: str, rng: random.Random
) -> Prompt | None:
    """The items get names that are drawn for this problem, in every style, so that all styles have
    the same problems; a compact prompt names them 1, 2, …, since tiny models cannot copy."""
    names = list(NAMES)
    shuffle(names, rng)
    solved = KINDS[kind].solve(facts, size)
    if solved is None:
        return None
    best, solution = solved
    items = list(map(str, facts["numbers"])) if "numbers" in facts else names[:size]
    spoken, what = _TEXT[kind]
    text = f"{spoken.format_map(_shown(facts, items))}\n{_END.format(what=what)}"
    compact = style == "compact"
    if compact:
        items = [str(number) for number in range(1, size + 1)]
    answer = " ".join(items[item] for item in solution)
    return Prompt(
        id=identity("construct", f"{family} {size} {sorted(facts.items())}"),
        text=wording(style, text, compact_text(facts, size)),
        task="construct",
        spec={
            "kind": kind,
            "items": items,
            **facts,
            "best": best,
            "answer": "whole" if compact else "line",
        },
        reference=answer if compact else f"ANSWER: {answer}",
    )


def _shown(facts: Facts, items: Sequence[str]) -> dict[str, Any]:
    """What the texts name, with the items by their names."""
    rows = zip(items, facts.get("weights", ()), facts.get("values", ()))
    teams = zip(items, facts.get("teams", ()))
    return {
        **facts,
        "items": ", ".join(items),
        "edges": ", ".join(f"{items[a]}-{items[b]}" for a, b in facts.get("edges", ())),
        "teams": "\n".join(f"{name}: {' '.join(str(j + 1) for j in jobs)}" for name, jobs in teams),
        "goods": "\n".join(f"{name}: weight {w}, value {v}" for name, w, v in rows),
    }


def compact_text(facts: Facts, size: int) -> str:
    """
    >>> compact_text({"edges": [[0, 1], [1, 3]]}, 4), compact_text({"edges": [[0, 11]]}, 12)
    ('4 1224:', '12 1-12:')
    >>> compact_text({"numbers": [3, 17]}, 2), compact_text({"jobs": 2, "teams": [[0], [0, 1]]}, 2)
    ('3 17:', '1/1 2:')
    >>> compact_text({"weights": [5, 9], "values": [7, 8], "limit": 10}, 2)
    '5 7/9 8 = 10:'
    """
    if "edges" in facts:  # of at most nine items, an edge is one token of a tiny model
        sign, gap = ("", "") if size < 10 else ("-", " ")
        return f"{size} {gap.join(f'{a + 1}{sign}{b + 1}' for a, b in facts['edges'])}:"
    if "numbers" in facts:
        return " ".join(map(str, facts["numbers"])) + ":"
    if "teams" in facts:
        return "/".join(" ".join(str(job + 1) for job in jobs) for jobs in facts["teams"]) + ":"
    goods = "/".join(f"{w} {v}" for w, v in zip(facts["weights"], facts["values"]))
    return f"{goods} = {facts['limit']}:"

"""Knights and knaves: knights tell the truth, knaves lie; who is what?

Each puzzle has exactly one solution, proven by trying all 2^n assignments. Splits share no puzzle,
not even with other names, in another order, or with statements in other words.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from bestofk.tasks.definition import (
    Draw,
    Task,
    below,
    generated,
    identity,
    one_of,
    rng_of,
    shuffle,
    sizes_of,
    wording,
)
from bestofk.types import Prompt

STYLES = ("chat", "text")
NAMES = "Ada Ben Cleo Dan Eva Finn Gus Hana Ivo Jun Kai Lea Max Nora Omar Pia Rosa Sam Uma Zoe"
KINDS = ("knave", "knight")
_TEXT = """On an island everybody is either a knight, who always tells the truth, or a knave, who \
always lies. You meet {people}.

{statements}

Who is what? Think first if you like, then name each person between <answer> and </answer>, for \
example <answer>Ann is a knight, Bob is a knave</answer>."""

Formula = list[Any]  # ["is", person, knight?], ["same", a, b], or ["and" | "or" | "if", f, g]


def holds(formula: Formula, kinds: Sequence[int]) -> bool:
    """Whether a statement is true when person i is a knight exactly where kinds[i] is 1."""
    match formula:
        case ["is", person, kind]:
            return kinds[person] == kind
        case ["same", a, b]:
            return kinds[a] == kinds[b]
        case ["and", f, g]:
            return holds(f, kinds) and holds(g, kinds)
        case ["or", f, g]:
            return holds(f, kinds) or holds(g, kinds)
        case ["if", f, g]:
            return not holds(f, kinds) or holds(g, kinds)
    raise ValueError(f"not a statement: {formula}")


def solutions(statements: Sequence[Formula]) -> list[tuple[int, ...]]:
    """Every assignment in which each person i says statements[i] truly exactly when a knight."""
    return [
        kinds
        for kinds in itertools.product((0, 1), repeat=len(statements))
        if all(holds(claim, kinds) == kind for claim, kind in zip(statements, kinds, strict=True))
    ]


def nameless(statements: Sequence[Formula]) -> str:
    """What a puzzle is, whoever its people are and in whatever order they speak.

    People are told apart by what they say and by what is said of whom, round after round, as long
    as that tells more of them apart (colour refinement); then the statements are listed in the
    order this gives. Where people cannot be told apart so, two puzzles may look the same: they
    share a split, which does no harm.

    >>> one = [["is", 1, 1], ["or", ["is", 0, 0], ["is", 2, 1]], ["same", 2, 0]]
    >>> same = [["same", 0, 2], ["if", ["is", 0, 0], ["is", 2, 0]], ["is", 1, 1]]
    >>> nameless(one) == nameless(same), nameless(one) == nameless(one[::-1])
    (True, False)
    """
    people = range(len(statements))
    ranks = [0] * len(statements)
    while True:
        views = []
        for me in people:
            others = sorted((ranks[who], _from_view(statements[who], ranks, me)) for who in people)
            views.append(repr((ranks[me], _from_view(statements[me], ranks, me), others)))
        order = sorted(set(views))
        if len(order) == len(set(ranks)):
            return repr(sorted(views))
        ranks = [order.index(view) for view in views]


def _from_view(formula: Formula, ranks: Sequence[int], me: int) -> str:
    """A statement with ranks for people and "me"; the two sides of and, or, same in one order."""
    match formula:
        case ["is", person, kind]:
            return f"{'me' if person == me else ranks[person]} {KINDS[kind]}"
        case ["same", *both]:
            return f"same {sorted('me' if p == me else str(ranks[p]) for p in both)}"
        case ["if", [_, person, kind], then]:  # if f then g: not f, or g
            return _from_view(["or", ["is", person, 1 - kind], then], ranks, me)
        case [joined, *sides]:
            return f"{joined} {sorted(_from_view(side, ranks, me) for side in sides)}"
    raise ValueError(f"not a statement: {formula}")


def _statement(speaker: int, kinds: Sequence[int], rng: random.Random) -> Formula:
    """Something the speaker can say: true of a knight, false of a knave."""
    others = [person for person in range(len(kinds)) if person != speaker]
    while True:
        shuffle(others, rng)
        first: Formula = ["is", others[0], below(rng, 2)]
        second: Formula = ["is", others[1], below(rng, 2)]
        form = below(rng, 5)
        claim = (
            first,
            ["same", speaker, others[0]],
            ["and", first, second],
            ["or", first, second],
            ["if", first, second],
        )[form]
        if holds(claim, kinds) == kinds[speaker]:
            return claim


def _english(formula: Formula, names: Sequence[str]) -> str:
    match formula:
        case ["is", person, kind]:
            return f"{names[person]} is a {KINDS[kind]}"
        case ["same", a, b]:
            return f"{names[a]} and {names[b]} are of the same kind"
        case ["if", f, g]:
            return f"if {_english(f, names)}, then {_english(g, names)}"
        case [joined, f, g]:
            return f"{_english(f, names)} {joined} {_english(g, names)}"
    raise ValueError(f"not a statement: {formula}")


def knights(
    *,
    people: int = 4,
    style: str = "chat",
    reward: str = "exact",
    seed: int = 0,
    train_size: int = 10_000,
    validation_size: int = 400,
    test_size: int = 400,
    ood_size: int = 300,
) -> Task:
    """Tell knights from knaves.

    Args:
        people: how many, 3 to 12; the split "ood" has one more.
        style: "chat" or "text".
        reward: "exact", or "parts" (per person, corrected for guessing).
    """
    if not 3 <= people <= 12:
        raise ValueError(f"knights needs 3 to 12 people, got {people}")
    one_of("style", style, STYLES)

    def drawing(split: str) -> tuple[Draw, tuple[Any, ...]]:
        count = people + (split == "ood")

        def draw(rng: random.Random) -> tuple[str, Callable[[], Prompt]] | None:
            kinds = [below(rng, 2) for _ in range(count)]  # every answer is as likely as another
            claims = [_statement(speaker, kinds, rng) for speaker in range(count)]
            solved = solutions(claims)
            if len(solved) != 1:
                return None
            return f"knights {nameless(claims)}", lambda: _prompt(claims, solved[0], style)

        return draw, (count,)

    return generated(
        "knights",
        drawing,
        sizes_of(train_size, validation_size, test_size, ood_size),
        seed=seed,
        reward=reward,
        summary=f"knights and knaves, {people} people, one solution",
    )


def _prompt(claims: list[Formula], kinds: Sequence[int], style: str) -> Prompt:
    """The puzzle in words; the names follow from the statements, so that an id has one text."""
    key = f"knights {json.dumps(claims)}"
    names = NAMES.split()
    shuffle(names, rng_of("names", key))
    names = names[: len(claims)]
    lines = [f'{names[i]} says: "{_english(f, names)}."' for i, f in enumerate(claims)]
    solution = {name: KINDS[kind] for name, kind in zip(names, kinds, strict=True)}
    text = _TEXT.format(
        people=", ".join(names[:-1]) + " and " + names[-1], statements="\n".join(lines)
    )
    reference = ", ".join(f"{name} is a {kind}" for name, kind in solution.items())
    return Prompt(
        id=identity("knights", key),
        text=wording(style, text, ""),
        task="knights",
        spec={"solution": solution, "statements": claims},
        reference=f"<answer>{reference}</answer>",
    )

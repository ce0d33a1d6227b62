"""Splits share no problem under any name, and an id names one problem, whatever the seed."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from bestofk.tasks import task
from bestofk.tasks.knights import nameless
from bestofk.tasks.sudoku import BOXES, MOST_BLANKS, complete
from bestofk.types import Prompt

SIZES: dict[str, Any] = {
    "train_size": 600,
    "validation_size": 60,
    "test_size": 150,
    "ood_size": 20,
}


def renaming(formula: list[Any], new: tuple[int, ...]) -> tuple[Any, ...]:
    """A statement about other people; symmetric ones in one order, "if" as the "or" it is."""
    match formula:
        case ["is", person, kind]:
            return ("is", new[person], kind)
        case ["same", a, b]:
            return ("same", *sorted((new[a], new[b])))
        case ["if", [_, person, kind], then]:
            return ("or", *sorted((("is", new[person], 1 - kind), renaming(then, new))))
    return (formula[0], *sorted(renaming(side, new) for side in formula[1:]))


def least_form(statements: list[Any]) -> str:
    """The first of all ways to number the people: slow, and the same for every way to tell it."""
    people = range(len(statements))
    forms = []
    for new in itertools.permutations(people):
        said = {new[speaker]: renaming(statements[speaker], new) for speaker in people}
        forms.append(repr([said[person] for person in people]))
    return min(forms)


@pytest.mark.parametrize("people", [3, 4])
def test_no_test_puzzle_of_knights_is_in_train_under_other_names(people: int) -> None:
    made = task("knights", people=people, **SIZES)
    forms = {
        split: {least_form(p.spec["statements"]) for p in made.split(split)[:]}
        for split in made.splits
    }
    for a, b in itertools.combinations(forms, 2):
        assert not forms[a] & forms[b], (a, b)


def test_a_nameless_puzzle_is_its_least_form() -> None:
    """Equal forms have equal names for it; of these puzzles, unequal ones have unequal names."""
    made = task("knights", people=3, **SIZES).split("train")[:300]
    pairs = {(least_form(p.spec["statements"]), nameless(p.spec["statements"])) for p in made}
    assert len(pairs) == len({least for least, _ in pairs}) == len({name for _, name in pairs})


def relabelled(rows: list[str]) -> str:
    cells = "".join(rows)
    order = sorted(set(cells), key=cells.index)
    return cells.translate(str.maketrans("".join(order), "123456789"[: len(order)]))


@pytest.mark.parametrize("size", [4, 6])
def test_no_solution_of_a_test_sudoku_is_in_train_with_other_digits(size: int) -> None:
    made = task("sudoku", size=size, **SIZES | {"train_size": 200, "test_size": 50})
    solutions = {
        split: {relabelled(p.spec["solution"]) for p in made.split(split)[:]}
        for split in made.splits
    }
    for a, b in itertools.combinations(solutions, 2):
        assert not solutions[a] & solutions[b], (a, b)


def test_the_twelve_small_sudokus_fill_every_split() -> None:
    """Of 288 grids of size 4 twelve are left when digits have no names: each split needs one."""
    grids = {relabelled(["".join(map(str, grid))]) for grid in complete([0] * 16, 4)}
    assert len(grids) == 12
    made = task("sudoku", size=4, **SIZES | {"train_size": 200})
    met = {split: {relabelled(p.spec["solution"]) for p in made.split(split)[:]} for split in
           made.splits}  # fmt: skip
    assert set().union(*met.values()) == grids


def meanings(name: str, meaning: Any, **options: Any) -> dict[str, set[str]]:
    """What each id stands for, over three seeds and all splits."""
    found: dict[str, set[str]] = {}
    for seed in range(3):
        made = task(name, seed=seed, **options)
        for split in made.splits:
            for prompt in made.split(split)[:]:
                found.setdefault(prompt.id, set()).add(json.dumps(meaning(prompt)))
    return found


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("knights", {"people": 3, **SIZES}),
        ("sudoku", {"size": 4, "blanks": 1, **SIZES, "train_size": 150}),
        ("maze", {"layout": "open", "sizes": [4], "test_sizes": [4], "ood_sizes": [4], **SIZES}),
    ],
)
def test_an_id_is_one_text_whatever_the_seed(name: str, options: dict[str, Any]) -> None:
    found = meanings(name, lambda prompt: prompt.text, **options)
    assert len(found) < 3 * sum(v for key, v in options.items() if key.endswith("_size"))  # met
    assert all(len(texts) == 1 for texts in found.values())


def problem(prompt: Prompt) -> list[Any]:
    spec = prompt.spec
    return [sorted(spec["numbers"]), spec["target"], sorted(spec["operators"]), spec["use"]]


def test_an_id_of_countdown_is_one_problem_whatever_the_seed_and_the_rules() -> None:
    """The order in which numbers are listed is wording; what may be done with them is not."""
    options: dict[str, Any] = {"numbers": 3, "high": 12, **SIZES, "train_size": 400}
    together: dict[str, set[str]] = {}
    for rules in ({}, {"use": "any"}, {"operators": "+-*"}, {"operators": "*-+"}):
        for id, problems in meanings("countdown", problem, **options, **rules).items():
            together.setdefault(id, set()).update(problems)
    assert all(len(problems) == 1 for problems in together.values())


@pytest.mark.parametrize(
    ("size", "blanks"), [(9, 60), (9, 57), (4, 12), (6, 27), (4, 0), (6, -1), (9, 80)]
)
def test_blanks_that_would_take_for_ever_are_refused_at_once(size: int, blanks: int) -> None:
    with pytest.raises(ValueError, match=f"blanks of size {size} are 1 to .* got {blanks}"):
        task("sudoku", size=size, blanks=blanks)


@pytest.mark.parametrize("size", list(BOXES))
def test_the_most_blanks_can_be_had_in_every_split(size: int) -> None:
    most = MOST_BLANKS[size] - 1
    made = task("sudoku", size=size, blanks=most)
    blanks = {s: "".join(made.split(s)[0].spec["puzzle"]).count(".") for s in made.splits}
    assert blanks == {"train": most, "validation": most, "test": most, "ood": most + 1}


def test_out_of_distribution_has_a_quarter_more_and_always_more() -> None:
    for blanks, more in ((1, 2), (3, 4), (8, 10), (11, 12)):
        puzzle = task("sudoku", size=4, blanks=blanks).split("ood")[0].spec["puzzle"]
        assert "".join(puzzle).count(".") == more

"""Generated tasks: the same by seed, splits apart, every problem solvable and proven so."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from fractions import Fraction
from typing import Any

import pytest

from bestofk.rewards import refusals, verifier
from bestofk.tasks import Task, task
from bestofk.tasks.definition import Split, share_of
from bestofk.types import Prompt

SMALL: dict[str, Any] = {
    "train_size": 120,
    "validation_size": 30,
    "test_size": 40,
    "ood_size": 20,
}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("countdown", {}),
    ("countdown", {"style": "compact", "numbers": 3, "high": 9, "operators": "+-*"}),
    ("countdown", {"style": "text", "use": "any"}),
    ("maze", {}),
    (
        "maze",
        {"style": "compact", "layout": "open", "sizes": [4], "test_sizes": [4], "ood_sizes": [5]},
    ),
    ("construct", {}),
    ("construct", {"kind": "cut", "style": "text"}),
    ("construct", {"kind": ["sidon", "cover", "path"], "reward": "best"}),
    ("construct", {"kind": "knapsack", "style": "compact", "sizes": [8, 12]}),
]


def built(variant: tuple[str, dict[str, Any]], **more: Any) -> Task:
    name, options = variant
    return task(name, **(SMALL | options | more))


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_references_score_one_ids_are_unique_and_specs_are_json(variant: Any) -> None:
    made = built(variant)
    with verifier(made.verifier, **made.verifier_options) as judge:
        for split in made.splits:
            prompts = made.split(split)[:]
            assert len(prompts) == len(made.split(split)) == (SMALL | variant[1])[f"{split}_size"]
            assert refusals(judge, prompts) == {}
            assert len({prompt.id for prompt in prompts}) == len(prompts)
            assert all(json.loads(json.dumps(p.spec)) == p.spec for p in prompts)
    assert made.licence == "generated"


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_splits_never_meet_not_even_across_seeds(variant: Any) -> None:
    ids: dict[str, set[str]] = {}
    for seed in (0, 1, 2):
        made = built(variant, seed=seed)
        for split in made.splits:
            ids.setdefault(split, set()).update(prompt.id for prompt in made.split(split)[:])
    for a, b in itertools.combinations(ids, 2):
        assert not ids[a] & ids[b], (a, b)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_seed_fixes_everything_and_another_changes_it(variant: Any) -> None:
    assert built(variant).split("train")[:] == built(variant).split("train")[:]
    assert built(variant).split("train")[:] != built(variant, seed=1).split("train")[:]
    shorter = built(variant, train_size=20).split("train")
    assert shorter[:] == built(variant).split("train")[:20]  # a longer split begins alike


def test_another_process_with_another_hash_seed_makes_the_same_prompts() -> None:
    code = (
        "from bestofk.tasks import task\n"
        "for name in ('countdown', 'maze', 'construct'):\n"
        "    made = task(name)\n"
        "    print([p.id for p in made.split('test')[:5]], made.split('train').at(3).id)"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]
    here = [p.id for p in task("countdown").split("test")[:5]]
    assert runs[0].startswith(str(here))


def solvable(numbers: list[int], target: int, operators: str) -> bool:
    """By trying every way to join two numbers: slow and obvious."""
    if len(numbers) == 1:
        return numbers[0] == target
    for i, j in itertools.permutations(range(len(numbers)), 2):
        rest = [n for k, n in enumerate(numbers) if k not in (i, j)]
        a, b = Fraction(numbers[i]), Fraction(numbers[j])
        values = {"+": a + b, "-": a - b, "*": a * b} | ({"/": a / b} if b else {})
        for operator, value in values.items():
            if operator in operators and solvable([*rest, value], target, operators):  # type: ignore[list-item]
                return True
    return False


def test_countdown_settings_hold_and_every_problem_is_solvable_by_brute_force() -> None:
    made = task(
        "countdown", **SMALL, numbers=3, low=2, high=12, operators="+*", target_low=20,
        target_high=40,
    )  # fmt: skip
    for prompt in made.split("train")[:40]:
        spec = prompt.spec
        assert len(spec["numbers"]) == 3
        assert all(2 <= n <= 12 for n in spec["numbers"])
        assert 20 <= spec["target"] <= 40
        assert solvable(spec["numbers"], spec["target"], "+*")
    assert all(len(p.spec["numbers"]) == 4 for p in made.split("ood")[:])


def test_compact_prompts_are_short_and_their_answers_nothing_else() -> None:
    prompt = task("countdown", style="compact", **SMALL).split("train")[0]
    assert isinstance(prompt.text, str)
    numbers = " ".join(map(str, prompt.spec["numbers"]))
    assert prompt.text == f"{numbers} = {prompt.spec['target']}:"
    assert prompt.reference is not None
    assert set(prompt.reference) <= set("0123456789+-*/()")
    maze = task("maze", style="compact", **SMALL).split("train")[0]
    assert maze.text == "/".join(maze.spec["grid"]) + ":"
    assert set(maze.reference or "") <= set("UDLR")


def test_maze_sizes_are_the_papers() -> None:
    made = task("maze", **(SMALL | {"test_size": 160}))
    sizes = {s: {len(p.spec["grid"]) for p in made.split(s)[:]} for s in made.splits}
    assert sizes == {
        "train": {9, 11, 13, 15},
        "validation": {9, 11, 13, 15},
        "test": {7, 9, 11, 13, 15, 17, 19, 21},
        "ood": {17, 19, 21},
    }
    for split in made.splits:
        for prompt in made.split(split)[:]:
            grid = prompt.spec["grid"]
            assert all(len(row) == len(grid) for row in grid)
            joined = "".join(grid)
            assert (joined.count("S"), joined.count("E")) == (1, 1)
            assert set(joined) <= set("SE*.")


def test_no_two_splits_share_the_walls_of_a_maze() -> None:
    """At size 7 there are few layouts, so that they would meet by chance."""
    made = task("maze", **SMALL, sizes=[7], test_sizes=[7], ood_sizes=[7], loops=0.05)
    walls = {
        split: {
            "".join(p.spec["grid"]).translate(str.maketrans("SE", ".."))
            for p in made.split(split)[:]
        }
        for split in made.splits
    }
    assert len(walls["train"]) < 120  # the same walls do come again within a split
    for a, b in itertools.combinations(walls, 2):
        assert not walls[a] & walls[b]


def cells_and_passages(grid: list[str]) -> tuple[int, int]:
    free = {(r, c) for r, row in enumerate(grid) for c, cell in enumerate(row) if cell != "*"}
    passages = sum((r + dr, c + dc) in free for r, c in free for dr, dc in ((0, 1), (1, 0)))
    return len(free), passages


def test_mazes_have_loops_exactly_when_asked_for() -> None:
    """A connected maze without loops is a tree: one passage fewer than cells."""
    for loops, has in ((0.0, False), (0.3, True)):
        made = task("maze", loops=loops, **SMALL)
        extra = 0
        for prompt in made.split("train")[:30]:
            cells, passages = cells_and_passages(prompt.spec["grid"])
            extra += passages - (cells - 1)
        assert (extra > 0) is has
        assert has or extra == 0


def test_a_stream_continues_from_any_position_and_reorders_each_epoch() -> None:
    split = task("countdown", **SMALL).split("validation")
    whole = [split.at(i).id for i in range(90)]
    assert [split.at(i).id for i in (89, 3, 47)] == [whole[89], whole[3], whole[47]]
    epochs = [whole[i : i + 30] for i in (0, 30, 60)]
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert len({frozenset(epoch) for epoch in epochs}) == 1
    with pytest.raises(IndexError, match="30 prompts"):
        split[30]
    assert split[-1] == split[29]


def test_shares_are_what_they_say() -> None:
    counts = dict.fromkeys(("train", "validation", "test", "ood"), 0)
    for i in range(20_000):
        counts[share_of(f"problem {i}")] += 1
    for name, share in (("train", 0.7), ("validation", 0.1), ("test", 0.1), ("ood", 0.1)):
        assert abs(counts[name] / 20_000 - share) < 0.02


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("count-down", {}, "did you mean 'countdown'"),
        ("maze", {"size": [9]}, "did you mean 'sizes'"),
        ("maze", {"sizes": [8]}, "odd size of at least 5, got 8"),
        ("maze", {"layout": "opn"}, "did you mean 'open'"),
        ("countdown", {"style": "compct"}, "did you mean 'compact'"),
        ("countdown", {"numbers": 1}, "numbers >= 2"),
        ("countdown", {"numbers": "4"}, "numbers of task countdown is of type int, got '4'"),
        ("maze", {"sizes": 9}, "sizes of task maze is of type"),
        ("maze", {"test_sizes": []}, "at least one size each, got none"),
        ("gym", {"config": [1]}, "config of task gym is of type"),
        ("dataset", {"train": 3}, "train of task dataset is of type"),
        ("countdown", {"operators": "+^"}, "operators are different ones"),
        ("construct", {"kind": "sidn"}, "did you mean 'sidon'"),
        ("construct", {"kind": []}, "kind names at least one of independent, sidon"),
        ("construct", {"kind": "sidon", "sizes": [18]}, r"sizes of sidon lie in 3..17, got \[18\]"),
        ("construct", {"kind": ["cut", "independent"]}, "take one of the two"),
        ("gym", {"dataset": "leg_countng"}, "did you mean 'leg_counting'"),
    ],
)
def test_a_mistyped_setting_says_what_to_type(name: str, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        task(name, **options)


def test_a_mistyped_split_says_what_to_type() -> None:
    with pytest.raises(ValueError, match="did you mean 'validation'"):
        task("countdown").split("validaton")


def test_settings_too_narrow_for_the_size_are_an_error_not_an_endless_loop() -> None:
    tiny = task("countdown", numbers=2, low=1, high=3, target_low=1, target_high=9, operators="+")
    with pytest.raises(ValueError, match="no new problem after"):
        tiny.split("train")[100]


def test_a_split_needs_a_prompt() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Split(iter([Prompt("a", "b", "c")]), 0)


def problem(prompt: Prompt) -> list[Any]:
    spec = prompt.spec
    return [sorted(spec["numbers"]), spec["target"], sorted(spec["operators"]), spec["use"]]


def test_an_id_of_countdown_is_one_problem_whatever_the_seed_and_the_rules() -> None:
    """The order in which numbers are listed is wording; what may be done with them is not."""
    found: dict[str, set[str]] = {}
    for rules in ({}, {"use": "any"}, {"operators": "+-*"}, {"operators": "*-+"}):
        for seed in range(3):
            made = task("countdown", numbers=3, high=12, seed=seed, **SMALL, **rules)
            for prompt in (prompt for split in made.splits for prompt in made.split(split)):
                found.setdefault(prompt.id, set()).add(json.dumps(problem(prompt)))
    assert all(len(problems) == 1 for problems in found.values())

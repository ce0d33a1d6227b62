"""Construction problems: optima by brute force, splits apart whatever the order of items."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest

from bestofk.cli import main
from bestofk.rewards import prepare, verifier
from bestofk.tasks import task
from bestofk.tasks.construct import NAMES
from bestofk.tasks.construct_problems import KINDS
from bestofk.types import Prompt

SIZES = {"train_size": 200, "validation_size": 100, "test_size": 100, "ood_size": 50}


def pairs(chosen: Any) -> Iterator[Any]:
    return itertools.combinations(chosen, 2)


def worth(spec: dict[str, Any], chosen: tuple[int, ...]) -> int | None:
    """What a list of items is worth, None where it breaks its rule: the sentences of the prompt."""
    edges = {frozenset(edge) for edge in spec.get("edges", ())}
    match spec["kind"]:
        case "independent":
            return None if any(frozenset(pair) in edges for pair in pairs(chosen)) else len(chosen)
        case "cut":
            return sum(len(edge & set(chosen)) == 1 for edge in edges)
        case "path":
            steps = all(frozenset(step) in edges for step in itertools.pairwise(chosen))
            return len(chosen) if steps else None
        case "sidon":
            numbers = [spec["numbers"][item] for item in chosen]
            distances = [abs(a - b) for a, b in pairs(numbers)]
            return len(chosen) if all(distances.count(d) == 1 for d in distances) else None
        case "cover":
            done = [job for item in chosen for job in spec["teams"][item]]
            return len(chosen) if set(done) == set(range(spec["jobs"])) else None
    heavy = sum(spec["weights"][item] for item in chosen) > spec["limit"]
    return None if heavy else sum(spec["values"][item] for item in chosen)


def everything(size: int, ordered: bool) -> Iterator[tuple[int, ...]]:
    choose = itertools.permutations if ordered else itertools.combinations
    for count in range(1, size + 1):
        yield from choose(range(size), count)


@pytest.mark.parametrize(("kind", "size"), [(kind, 6 if kind == "path" else 8) for kind in KINDS])
def test_the_optimum_is_that_of_brute_force(kind: str, size: int) -> None:
    made = task("construct", kind=kind, sizes=[size], **SIZES)
    for prompt in made.split("train")[:40]:
        values = [worth(dict(prompt.spec), each) for each in everything(size, kind == "path")]
        best = min if kind == "cover" else max
        assert prompt.spec["best"] == best(value for value in values if value is not None)


@pytest.mark.parametrize("kind", KINDS)
def test_every_answer_scores_what_the_prompt_says(kind: str) -> None:
    """All answers to a small problem, in both forms of reward."""
    prompt = task("construct", kind=kind, sizes=[5 if kind == "path" else 7], **SIZES).split()[0]
    spec, items = dict(prompt.spec), prompt.spec["items"]
    answers = list(everything(len(items), kind == "path"))
    texts = ["ANSWER: " + " ".join(items[item] for item in each) for each in answers]
    values = [worth(spec, each) or 0 for each in answers]
    ratios = [(v / spec["best"] if kind != "cover" else v and spec["best"] / v) for v in values]
    graded = verifier("construct")([prompt] * len(texts), texts)
    assert [verdict.reward for verdict in graded] == pytest.approx(ratios)
    assert [verdict.reward == 1 for verdict in graded] == [v == spec["best"] for v in values]
    only_best = verifier("construct", reward="best")([prompt] * len(texts), texts)
    assert [verdict.reward for verdict in only_best] == [float(v == spec["best"]) for v in values]


@pytest.mark.parametrize(("kind", "style"), [*zip(KINDS, ["chat", "text", "compact"] * 2)])
def test_hundreds_of_references_score_one(kind: str, style: str) -> None:
    made = task("construct", kind=kind, style=style)
    prompts = [prompt for split in made.splits for prompt in made.split(split)[:100]]
    assert prepare(verifier("construct"), prompts) == prompts
    high = KINDS[kind].sizes[1]
    sizes = {
        split: {len(p.spec["items"]) for p in made.split(split)[:100]} for split in made.splits
    }
    assert sizes["ood"] == {high + 1}
    assert sizes["train"] == sizes["test"] == set(range(KINDS[kind].sizes[0], high + 1))


def shape(prompt: Prompt) -> list[str]:
    """The problem in all orders of its items, sorted: the same for relabelled problems."""
    spec, size = prompt.spec, len(prompt.spec["items"])
    orders = list(itertools.permutations(range(size)))
    match spec["kind"]:
        case "cover":
            jobs = [{t for t in range(size) if j in spec["teams"][t]} for j in range(spec["jobs"])]
            return [min(str(sorted(sorted(o[t] for t in job) for job in jobs)) for o in orders)]
        case "sidon":
            numbers = spec["numbers"]
            forward, backward = (
                [x - numbers[0] for x in numbers],
                [numbers[-1] - x for x in numbers],
            )
            return [min(str(forward), str(backward[::-1]))]
        case "knapsack":
            return [str(sorted(zip(spec["weights"], spec["values"]))) + str(spec["limit"])]
    return [min(str(sorted(sorted((o[a], o[b])) for a, b in spec["edges"])) for o in orders)]


@pytest.mark.parametrize("kind", KINDS)
def test_no_problem_of_one_split_is_a_reordered_one_of_another(kind: str) -> None:
    """Small sizes, at which graphs come again by chance with their items in another order."""
    shapes: dict[str, set[str]] = {}
    for seed in range(2):
        made = task("construct", kind=kind, sizes=[5], seed=seed)
        for split in ("train", "validation", "test"):
            made_of = shapes.setdefault(split, set())
            for prompt in made.split(split)[:20]:
                made_of.update(shape(prompt))
    if kind in ("independent", "cut", "path"):
        assert len(shapes["train"]) < 40
    for one, other in itertools.combinations(shapes.values(), 2):
        assert not one & other


def test_cut_has_the_prompts_of_independent_and_no_wrong_list() -> None:
    for style in ("chat", "compact"):
        one, other = (task("construct", kind=kind, style=style) for kind in ("independent", "cut"))
        for split in one.splits:
            both = list(zip(one.split(split)[:40], other.split(split)[:40]))
            assert all((a.text, a.id) == (b.text, b.id) for a, b in both)
            assert all(a.spec["edges"] == b.spec["edges"] for a, b in both)
    judge = verifier("construct")
    for prompt in other.split("test")[:20]:
        parted = {item for edge in prompt.spec["edges"] for item in edge}
        lists = [str(item + 1) for item in sorted(parted)]
        assert all(v.reward > 0 for v in judge([prompt] * len(lists), lists))


def test_styles_have_the_same_problems_and_a_seed_draws_other_names() -> None:
    chat, compact = (
        task("construct", style=s, **SIZES).split("test")[:] for s in ("chat", "compact")
    )
    assert [p.id for p in chat] == [p.id for p in compact]
    assert [p.spec["edges"] for p in chat] == [p.spec["edges"] for p in compact]
    assert len(NAMES) == len(set(NAMES)) > 60
    counts = [sum(name in p.spec["items"] for p in chat) for name in NAMES]
    assert max(counts) < 50 * math.log2(3)  # of 100: no name occurs in most of the problems


def test_no_prompt_holds_a_valid_answer() -> None:
    for kind in KINDS:
        for style in ("chat", "text"):
            for prompt in task("construct", kind=kind, style=style).split("test")[:20]:
                shown = prompt.text if isinstance(prompt.text, str) else prompt.text[0]["content"]
                (verdict,) = verifier("construct")([prompt], [shown])
                assert verdict.reward == 0


def test_compact_prompts_and_answers_are_indices() -> None:
    prompt = task("construct", style="compact", sizes=[9]).split("test")[0]
    edges = "".join(f"{a + 1}{b + 1}" for a, b in prompt.spec["edges"])
    assert prompt.text == f"9 {edges}:"
    assert set(str(prompt.reference).split()) <= set("123456789")


def constant(prompts: list[Prompt], text: str) -> float:
    verdicts = verifier("construct")(prompts, [text] * len(prompts))
    return sum(verdict.reward for verdict in verdicts) / len(prompts)


def test_no_constant_pays_where_items_have_names() -> None:
    for kind in KINDS:
        prompts = task("construct", kind=kind).split("train")[:64]
        earned, text = verifier("construct").floor(prompts)  # type: ignore[attr-defined]
        assert earned == pytest.approx(constant(prompts, text))
        assert all(
            constant(prompts, f"ANSWER: {name}") <= earned for name in prompts[0].spec["items"]
        )
        assert 0 < earned < 0.1


def test_a_task_that_one_constant_solves_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    options = {"kind": "sidon", "style": "compact", "sizes": [6]}
    prompts = task("construct", **options).split("train")[:64]
    assert constant(prompts, "1 2 4 5 6") > 0.6
    with pytest.raises(ValueError, match=r"the constant answer '.*' earns 0\.7"):
        prepare(verifier("construct"), prompts)
    words = [f"--option={key}={value}" for key, value in options.items()]
    assert main(["tasks", "show", "construct", *words]) == 2
    assert "the constant answer" in capsys.readouterr().err
    assert main(["tasks", "show", "construct", *words[:1]]) == 0
    assert "a constant answer earns 0.0" in capsys.readouterr().out

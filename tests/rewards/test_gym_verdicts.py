"""reasoning-gym: only what can be trusted, judged in the sandbox."""

from __future__ import annotations

import contextlib
import io
from dataclasses import replace

import pytest

from bestofk.puzzle_names import TRUSTED_PUZZLES
from bestofk.rewards import refusals, verifier
from bestofk.rewards.base import BatchVerifier
from bestofk.tasks import task
from bestofk.types import Prompt

pytest.importorskip("reasoning_gym")
audit = pytest.importorskip("gym_audit")

# One of each kind of fault that rewards the wrong thing, and some that are sound.
FAULTY = {
    "countdown": "execute",
    "puzzle24": "execute",
    "polynomial_multiplication": "pays for|execute",
    "game_of_life_halting": "pays for",
    "syllogism": "constant answer",
    "list_functions": "not the same twice",
    "rearc": "does not score 1",
    "prime_factorization": "raises",
    "rubiks_cube": "no text",
    "word_sorting": "pays for",  # the right words, and then any others
    "advanced_geometry": "pays for '.*, ",
    "knights_knaves": "pays for 'not ",
    "kakurasu": "pays for 'not ",
    "survo": "pays for 'not ",
    "quantum_lock": "pays for 'not ",
    "polynomial_equations": "but maybe 5 instead",
    "pool_matrix": "pays for ",
    "decimal_arithmetic": "pays for '2.93'",
    "rotten_oranges": "the constant answer '-1'",
}
SOUND = ("leg_counting", "chain_sum", "caesar_cipher", "mini_sudoku")


QUICK = ("countdown", "game_of_life_halting", "knights_knaves", "decimal_arithmetic")
"""One of each way to pay for a wrong answer; all are among the long counts."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [*QUICK, *(pytest.param(each, marks=pytest.mark.slow) for each in FAULTY if each not in QUICK)],
)
def test_what_cannot_be_trusted_is_found_and_not_allowed(name: str) -> None:
    found = audit.faults(name)
    assert found
    import re

    assert re.search(FAULTY[name], found[0])
    assert name not in TRUSTED_PUZZLES
    for make in (verifier, task):
        with pytest.raises(ValueError, match=f"untrustworthy reasoning-gym task '{name}'"):
            make("gym", dataset=name)


@pytest.mark.parametrize("name", [*SOUND, pytest.param("jugs", marks=pytest.mark.slow)])
def test_what_can_be_trusted_is_allowed(name: str) -> None:
    assert audit.faults(name) == []
    assert name in TRUSTED_PUZZLES


@pytest.mark.slow
def test_entries_that_move_between_processes_are_found() -> None:
    assert audit.moving(["word_ladder", "leg_counting"]) == {"word_ladder"}
    assert "word_ladder" not in TRUSTED_PUZZLES


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_allow_list_is_what_the_audit_derives() -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        assert audit.derive() == sorted(TRUSTED_PUZZLES)


HOSTILE = [
    "",
    "garbage",
    "None",
    "nan",
    "9**9**9**9",
    "__import__('os').system('kill -9 -1')",
    "[].__class__.__base__.__subclasses__()",
    "(" * 5000,
    "7" * 15_000,
    "\x00",
    "\ud800",
    "x" * 10_000_000,
]


LAYOUTS = ["```\n{}\n```", "**{}**", "`{}`", r"\boxed{{{}}}", "${}$", '"{}"', "The answer is {}."]


def assert_layout_is_not_judged(judge: BatchVerifier, prompt: Prompt, *more: str) -> None:
    gold = prompt.spec["entry"]["answer"]
    wrong = [f"{gold} or 5", "**5**", f"<answer>{gold}</answer> x", f"x <answer>{gold}</answer>"]
    said = [*(layout.format(gold) for layout in LAYOUTS), *more, *wrong]
    verdicts = judge([prompt] * len(said), [f"<answer>{each}</answer>" for each in said])
    right = len(said) - len(wrong)
    assert [v.reward for v in verdicts] == [1.0] * right + [0.0] * len(wrong)


def test_answers_are_judged_in_the_sandbox_and_hostile_ones_score_zero() -> None:
    made = task("gym", dataset="lcm", test_size=12)
    prompts = made.split("test")[:]
    with verifier(made.verifier, **made.verifier_options) as judge:
        assert_layout_is_not_judged(
            judge, prompts[0], f"{int(prompts[0].spec['entry']['answer']):,}"
        )
        assert refusals(judge, prompts) == {}
        texts = [f"<answer>{bad}</answer>" for bad in HOSTILE]
        verdicts = judge(prompts, texts)
        assert [v.reward for v in verdicts] == [0.0] * len(HOSTILE)
        good = judge(prompts[:1], [prompts[0].reference])[0]
        assert good.reward == 1.0
        assert good.tier is not None
        prose = judge(prompts[:1], [f"<answer>I say {prompts[0].spec['entry']['answer']}</answer>"])
        assert prose[0].reward == 0.0  # its ratio of lengths is not paid out
        bare = replace(prompts[1], spec={})  # a broken prompt spoils no other of its batch
        mixed = judge([prompts[0], bare], [prompts[0].reference, prompts[1].reference])
        assert [v.status for v in mixed] == ["correct", "unscored"]
        assert "entry" in mixed[1].detail


def test_splits_are_apart_and_the_same_by_seed() -> None:
    options = {"dataset": "leg_counting", "train_size": 60, "validation_size": 20, "test_size": 20}
    made, again = task("gym", **options), task("gym", **options)
    ids = [{p.id for p in made.split(split)[:]} for split in made.splits]
    assert not ids[0] & ids[1]
    assert not ids[0] & ids[2]
    assert not ids[1] & ids[2]
    assert made.split("train")[:] == again.split("train")[:]
    assert "Apache-2.0" in made.licence


def test_layout_of_a_text_is_not_judged() -> None:
    made = task("gym", dataset="caesar_cipher", test_size=1)
    [prompt] = made.split("test")
    with verifier(made.verifier, **made.verifier_options) as judge:
        assert_layout_is_not_judged(judge, prompt)


def test_blocks_of_entries_do_not_overlap() -> None:
    """Entry i comes from Random(seed + i): the first 600 entries are 600 seeds, not 101."""
    made = task("gym", dataset="lcm", train_size=600)
    assert len({prompt.id for prompt in made.split("train")}) == 600


def test_a_small_generator_gives_what_it_has() -> None:
    narrow = {"min_numbers": 2, "max_numbers": 2, "min_value": 1, "max_value": 6}
    made = task("gym", dataset="lcm", config=narrow, train_size=500)
    train = made.split("train")
    assert len(train[:]) == len(train) < 36
    assert [train.at(i).id for i in range(len(train))] == [prompt.id for prompt in train]
    assert sorted(train.at(len(train) + i).id for i in range(len(train))) == sorted(
        prompt.id for prompt in train
    )
    [said] = made.left_out.values()
    assert said == f"there are {len(train)} distinct questions, and 500 were asked for"


def test_a_wrong_config_is_an_error_when_the_task_is_made() -> None:
    for wrong in ({"no_such": 1}, {"min_numbers": -1}):
        with pytest.raises(ValueError, match="config of reasoning-gym's lcm: "):
            task("gym", dataset="lcm", config=wrong)


@pytest.mark.slow
def test_an_entry_that_never_ends_and_one_without_an_answer_are_left_out() -> None:
    made = task("gym", dataset="number_sequence", train_size=150)
    assert len(made.split("train")[:]) == 150
    assert list(made.left_out) == ["number_sequence, entry 163"]
    made = task("gym", dataset="string_manipulation", train_size=1000)
    assert all(prompt.spec["entry"]["answer"].strip() for prompt in made.split("train"))
    assert set(made.left_out.values()) == {"a question without an answer"}

"""reasoning-gym: only what can be trusted, judged in the sandbox."""

from __future__ import annotations

import contextlib
import io
from dataclasses import replace

import pytest

from bestofk.rewards import refusals, verifier
from bestofk.rewards.puzzles.judge_gym import ALLOWED
from bestofk.tasks import task

pytest.importorskip("reasoning_gym")
audit = pytest.importorskip("bestofk.rewards.puzzles.gym_audit")

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
}
SOUND = ("leg_counting", "chain_sum", "caesar_cipher", "jugs", "mini_sudoku")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FAULTY)
def test_what_cannot_be_trusted_is_found_and_not_allowed(name: str) -> None:
    found = audit.faults(name)
    assert found
    import re

    assert re.search(FAULTY[name], found[0])
    assert name not in ALLOWED
    with pytest.raises(ValueError, match=name):
        verifier("gym", dataset=name)


@pytest.mark.parametrize("name", SOUND)
def test_what_can_be_trusted_is_allowed(name: str) -> None:
    assert audit.faults(name) == []
    assert name in ALLOWED


@pytest.mark.slow
def test_entries_that_move_between_processes_are_found() -> None:
    assert audit.moving(["word_ladder", "leg_counting"]) == {"word_ladder"}
    assert "word_ladder" not in ALLOWED


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_allow_list_is_what_the_audit_derives() -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        assert audit.derive() == sorted(ALLOWED)


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


def test_answers_are_judged_in_the_sandbox_and_hostile_ones_score_zero() -> None:
    made = task("gym", dataset="chain_sum", test_size=12)
    prompts = made.split("test")[:]
    with verifier(made.verifier, **made.verifier_options) as judge:
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

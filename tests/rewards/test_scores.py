"""What chooses among samples: scores of a scorer, of shown tests, of the verifier itself."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bestofk.objectives import objective
from bestofk.rewards import from_function, judge, scored_by, verifier
from bestofk.rewards.code.judge_programs import CodeVerifier
from bestofk.samples import from_records, read
from bestofk.tasks.schemas import program_spec
from bestofk.training.batch import unscored_without_score
from bestofk.types import Group, Prompt, Trajectory, Verdict

SQUARE = {
    "asserts": ["assert f(3) == 9", "assert f(-1) == 1"],
    "shown": ["assert f(2) == 4", "assert f(0) == 0"],
}
PROGRAMS = {
    "right": ("def f(x): return x * x", 1.0, 1.0),
    "shown alone": ("def f(x): return {2: 4, 0: 0}.get(x)", 0.0, 1.0),
    "half of the shown": ("def f(x): return 2 * x if x > 1 else 7", 0.0, 0.5),
    "wrong": ("def f(x): return 'no'", 0.0, 0.0),
    "hidden alone": ("def f(x): return x * x if x % 2 else None", 1.0, 0.0),
}


def test_shown_tests_choose_and_hidden_tests_pay() -> None:
    prompts = [Prompt("p", "", "t", SQUARE)] * len(PROGRAMS)
    with verifier("code", score="shown") as scored, verifier("code") as plain:
        texts = [f"```python\n{code}\n```" for code, _, _ in PROGRAMS.values()]
        verdicts, without = scored(prompts, texts), plain(prompts, texts)
    assert [(v.reward, v.score) for v in verdicts] == [each[1:] for each in PROGRAMS.values()]
    assert [v.reward for v in without] == [v.reward for v in verdicts]
    assert {v.score for v in without} == {None}


def test_a_prompt_without_shown_tests_is_an_error_before_the_first_sample() -> None:
    bare = Prompt("mbpp/7", "", "t", {"asserts": SQUARE["asserts"], "shown": []})
    with pytest.raises(ValueError, match=r"mbpp/7 shows none: let the task show some"):
        CodeVerifier(score="shown").check_prompts([bare])
    CodeVerifier().check_prompts([bare])
    with pytest.raises(ValueError, match="unknown score 'hidden'"):
        CodeVerifier(score="hidden")  # type: ignore[arg-type]


def test_public_tests_of_a_data_set_are_shown_and_all_are_graded() -> None:
    cases = [{"input": str(i), "output": str(2 * i), "testtype": "stdin"} for i in range(5)]
    row = {"public_test_cases": cases[:2], "private_test_cases": json.dumps(cases[2:])}
    spec = program_spec(row, ("public_test_cases", "private_test_cases"))
    assert [case["input"] for case in spec["shown"]] == ["0", "1"]
    assert [case["input"] for case in spec["stdio"]] == ["0", "1", "2", "3", "4"]


def length(completion: str) -> float:
    return math.nan if completion == "broken" else float(len(completion))


def test_a_scorer_chooses_and_the_verifier_pays() -> None:
    prompts = [Prompt("p", "", "t", {"expected": "5"})] * 4
    texts = ["<answer>5</answer>", "<answer>45</answer>", "broken", ""]
    both = scored_by(verifier("exact"), from_function(length))
    verdicts = both(prompts, texts)
    assert [(v.reward, v.score) for v in verdicts[:2]] == [(1.0, 18.0), (0.0, 19.0)]
    assert [(v.status, v.score) for v in verdicts[2:]] == [("unparsed", None), ("unparsed", 0.0)]


def scored(*scores: float | None) -> list[Verdict]:
    return [replace(Verdict(1.0, "correct"), score=score) for score in scores]


def test_where_scores_choose_a_sample_without_one_is_unscored() -> None:
    """Nobody knows whether it would be chosen; and no score at all is a mistake of the setup."""
    chosen = objective("max@2")
    lost = Verdict.unscored("ours")
    found = unscored_without_score(
        [[*scored(0.5, None), lost], scored(-math.inf, 2.0, 1.0)], chosen
    )
    assert [[v.status for v in row] for row in found] == [
        ["correct", "unscored", "unscored"],
        ["correct"] * 3,
    ]
    with pytest.raises(ValueError, match=r"max@2 chooses by scores.*task\.scorer"):
        unscored_without_score([scored(None, None)], chosen)
    assert unscored_without_score([[lost]], chosen) == [[lost]]


@pytest.mark.parametrize("score", [math.nan, math.inf])
def test_a_score_is_a_number_or_minus_infinity(score: float) -> None:
    with pytest.raises(ValueError, match="a score is a number, or -inf"):
        Verdict(0.0, "incorrect", score=score)
    assert Verdict(0.0, "incorrect", score=-math.inf).score == -math.inf


def test_judged_groups_carry_the_answers_that_a_vote_counts() -> None:
    """What the verifier says is the answer, else what stands where the prompt asked for it."""

    def stated(completion: str) -> Verdict:
        return Verdict(0.0, "incorrect", answer=completion[-1] if completion else "")

    prompt = Prompt("p", "", "t", {"expected": "5"})
    texts = ["<answer>5</answer>", "no answer", "<answer>6</answer>"]
    group = Group(prompt, tuple(Trajectory(text=text) for text in texts))
    (found,) = judge([group], verifier("exact"))
    assert [verdict.answer for verdict in found] == ["5", None, "6"]
    (own,) = judge([group], from_function(stated))
    assert [verdict.answer for verdict in own] == [">", "r", ">"]


def test_scores_of_a_file_stand_beside_its_rewards(tmp_path: Path) -> None:
    """Files without scores still read, and an unscored first line hides no score of the others."""
    rows = [
        {"prompt_id": "a", "sample": 0, "reward": None, "completion": "x", "status": "unscored"},
        {"prompt_id": "a", "sample": 1, "reward": 1.0, "completion": "y", "score": 0.25},
        {"prompt_id": "b", "sample": 0, "reward": 0.0, "completion": "z", "score": "-inf"},
    ]
    file = tmp_path / "samples.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    scores = read(file).scores
    assert scores is not None
    np.testing.assert_array_equal(scores, [np.nan, 0.25, -np.inf])
    plain = [{key: row[key] for key in row if key != "score"} for row in rows]
    assert from_records(plain).scores is None
    other = [{"id": i, "passed": i % 2, "critic": i / 4} for i in range(3)]
    chosen = from_records(other, columns={"score": "critic"}).scores
    assert chosen is not None
    assert chosen.tolist() == [0.0, 0.25, 0.5]

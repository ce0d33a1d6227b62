"""Runs in which scores choose among the samples and rewards pay: select@k from the recipe on."""

import json
from collections.abc import Mapping
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bestofk.config import EvaluationSection, read
from bestofk.evaluation import samples
from bestofk.objectives import objective
from bestofk.runs import read_metrics, read_samples
from bestofk.samples import read as samples_of
from bestofk.training.checks import metrics_of
from bestofk.training.resolve import resolve
from bestofk.training.train import train
from bestofk.training.validation import evaluation_results

SMALL: dict[str, Any] = {
    "sampling": {"prompts_per_step": 3, "samples_per_prompt": 6, "max_new_tokens": 5},
    "evaluation": {"every": 2, "prompts": 2, "samples_per_prompt": 4},
}


def chosen(rewards: np.ndarray, scores: np.ndarray) -> float:
    """The reward of the best-scored; of several, their mean."""
    return float(rewards[scores == scores.max()].mean())


def by_enumeration(rewards: np.ndarray, scores: np.ndarray, k: int) -> list[float]:
    """n (U(B) - U(B without i)), U the mean over all k-subsets."""

    def value(places: list[int]) -> float:
        sets = [list(each) for each in combinations(places, k)]
        return float(np.mean([chosen(rewards[each], scores[each]) for each in sets]))

    places = list(range(len(rewards)))
    return [len(places) * (value(places) - value([j for j in places if j != i])) for i in places]


def is_at(step: int, line: Mapping[str, Any]) -> bool:
    """Ends a run there."""
    return line["kind"] == "train" and line["step"] == step < 4


def groups_of(folder: Path) -> list[list[dict[str, Any]]]:
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in read_samples(folder):
        groups.setdefault((row["step"], row["prompt_id"]), []).append(row)
    return list(groups.values())


def test_the_scorer_chooses_and_the_verifier_pays(recipe: Any, tmp_path: Path) -> None:
    """The weights that the run recorded are those of all 3-subsets, group by group; samples files
    of steps and of evaluations hold the scores."""
    path = recipe(objective="select@3", task={"scorer": "training_judges:size"}, run={"steps": 2},
                  **SMALL)  # fmt: skip
    train(resolve(read(path)))
    groups = groups_of(tmp_path / "run")
    assert [len(group) for group in groups] == [6] * 6
    for group in groups:
        rewards, scores = (np.array([row[name] for row in group]) for name in ("reward", "score"))
        assert scores.tolist() == [float(len(set(row["completion"]))) for row in group]
        expected = by_enumeration(rewards, scores, 3)
        np.testing.assert_allclose([row["weight"] for row in group], expected, atol=1e-12)
    assert any(row["weight"] for group in groups for row in group)
    for line in read_metrics(tmp_path / "run"):
        if line["kind"] == "train":
            here = [group for group in groups if group[0]["step"] == line["step"]]
            values = [
                chosen(*(np.array([group[i][name] for i in each]) for name in ("reward", "score")))
                for group in here
                for each in combinations(range(6), 3)
            ]
            assert line["select@3"] == pytest.approx(np.mean(values), abs=1e-12)
    evaluated = samples_of(tmp_path / "run" / "evaluations" / "000002.jsonl")
    assert evaluated.scores is not None
    assert not np.isnan(evaluated.scores).any()
    last = [line for line in read_metrics(tmp_path / "run") if line["kind"] == "evaluation"][-1]
    problems = [(evaluated.rewards[at], evaluated.scores[at]) for at in map(evaluated.of, (0, 1))]
    sets = [[*each] for each in combinations(range(4), 2)]
    value = np.mean([chosen(r[each], s[each]) for r, s in problems for each in sets])
    assert last["results"]["select@2"]["value"] == pytest.approx(value, abs=1e-12)
    best = json.loads((tmp_path / "run" / "best.json").read_text())
    assert best["metric"] == "select@2"  # as the policy is used; the largest k that was evaluated


def test_a_sample_without_a_score_is_unscored_where_scores_choose(
    recipe: Any, tmp_path: Path
) -> None:
    """The verifier gives scores itself, none to short completions. Drawn ahead they wait in the
    checkpoint with their batch, so a resumed run equals one that was never stopped."""
    both = {"verifier": "training_judges:both", "advanced": {"unscored_share": 1.0}}
    runs = []
    for name, steps in (("whole", [4]), ("parts", [2, 4])):
        folder = tmp_path / name
        path = recipe(objective="select@2", task=both, off_policy={"ahead": 1}, **SMALL,
                      run={"dir": str(folder), "steps": 4, "checkpoint_every": 1})  # fmt: skip
        for number, step in enumerate(steps):
            train(resolve(read(path), resume=number > 0), callback=partial(is_at, step))
        runs.append(list(read_samples(folder)))
    assert runs[0] == runs[1]
    for row in runs[0]:
        assert ("score" in row) == (row["status"] != "unscored") == (len(row["completion"]) >= 3)
        assert row["weight"] == 0.0 or "score" in row


def test_scores_that_nobody_gives_are_one_clear_sentence(recipe: Any, tmp_path: Path) -> None:
    path = recipe(objective="select@2", run={"steps": 1}, **SMALL)
    with pytest.raises(
        ValueError, match=r"select@2 chooses by scores, and the verifier gives none"
    ):
        train(resolve(read(path)))
    assert not list(read_samples(tmp_path / "run"))


def majority(rewards: list[float], answers: list[str | None]) -> float:
    """The reward of the most frequent answer, those that are as frequent by lot; 0 without any."""
    votes = [answers.count(answer) if answer is not None else 0 for answer in answers]
    leading = {a: r for a, r, v in zip(answers, rewards, votes) if v == max(votes) and v}
    return float(np.mean(list(leading.values()))) if leading else 0.0


def vote_of_three(rows: list[dict[str, Any]]) -> float:
    """The mean over all 3-subsets."""
    sets = [list(each) for each in combinations(rows, 3)]
    return float(
        np.mean([majority([r["reward"] for r in s], [r["answer"] for r in s]) for s in sets])
    )


def test_the_answers_that_the_verifier_finds_vote(recipe: Any, tmp_path: Path) -> None:
    """Samples without an answer do not vote; the weights are those of all 3-subsets."""
    path = recipe(objective="maj@3", task={"verifier": "training_judges:last_character"},
                  run={"steps": 3}, **SMALL)  # fmt: skip
    train(resolve(read(path)))
    groups = groups_of(tmp_path / "run")
    for group in groups:
        without = [vote_of_three([*group[:i], *group[i + 1 :]]) for i in range(6)]
        expected = [6 * (vote_of_three(group) - each) for each in without]
        np.testing.assert_allclose([row["weight"] for row in group], expected, atol=1e-12)
    assert any(row["answer"] is None for group in groups for row in group)
    assert any(row["weight"] for group in groups for row in group)


def test_a_function_of_k_samples_that_the_recipe_names(recipe: Any, tmp_path: Path) -> None:
    """All 2-subsets of 6 samples are evaluated, so the weights are exact."""
    options = {"value": "training_judges:worse_of_two"}
    path = recipe(objective="subsets@2", objective_options=options, run={"steps": 2}, **SMALL)
    train(resolve(read(path)))
    groups = groups_of(tmp_path / "run")
    for group in groups:
        rewards = np.array([row["reward"] for row in group])
        expected = by_enumeration(rewards, -rewards, 2)  # the worst is chosen
        np.testing.assert_allclose([row["weight"] for row in group], expected, atol=1e-12)
    assert any(row["weight"] for group in groups for row in group)


def test_retries_and_counts_are_evaluated_whatever_the_objective() -> None:
    """retry@k needs a price: that of the evaluation, else the objective's."""
    goal, free = objective("atleast2@4"), EvaluationSection(metrics=("retry@k", "pass^k"))
    with pytest.raises(ValueError, match=r"retry@k, whose price is not known: set evaluation.pri"):
        metrics_of(free, goal)
    with pytest.raises(ValueError, match="whose price is not known"):  # it is that of a token
        metrics_of(free, objective("retry@4:tokens", price=0.001))
    assert metrics_of(free, objective("retry@4", price=0.1)) == ["retry@k", "pass^k"]
    priced = free.model_copy(update={"price": 0.05})
    assert metrics_of(priced, goal) == ["atleast2@k", "retry@k", "pass^k"]
    table = samples([[0.0, 1.0, 1.0, 0.0]])
    found = evaluation_results(table, (1, 2), None, 0, metrics_of(priced, goal), {"price": 0.05})
    values = {name: cell["value"] for name, cell in found["results"].items()}
    assert values["atleast2@2"] == pytest.approx(1 / 6)
    assert values["retry@2"] == pytest.approx(5 / 6 - 0.05 * 1.5)

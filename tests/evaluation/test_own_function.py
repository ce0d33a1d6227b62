"""subsets@k from the command line and from Python: a function of one's own as a metric."""

import json
import re
from itertools import combinations
from typing import Any

import numpy as np
import pytest

import bestofk as bk
from bestofk.cli import main
from bestofk.evaluation import compare, curve, samples

RNG = np.random.default_rng(7)
SIZES = (5, 6, 5, 7)
ROWS: list[list[dict[str, Any]]] = [
    [
        {"reward": float(RNG.integers(0, 3)) / 2, "judge": float(RNG.integers(0, 3)),
         "answer": [None, "x", "y"][RNG.integers(0, 3)]}
        for _ in range(n)
    ]
    for n in SIZES
]  # fmt: skip
FUNCTIONS = """
import numpy as np

def second_best(rewards, scores, answers):
    return np.sort(rewards)[-2]

def of_all(rewards, scores, answers):
    seen = len({each for each in answers if each is not None})
    return float(rewards[scores.argmax()] * seen + rewards.min())

def raises(rewards, scores, answers):
    raise KeyError("nothing here")

def one_argument(rewards):
    return 1.0

def text(rewards, scores, answers):
    return "0.5"

def in_a_list(rewards, scores, answers):
    return [0.5]

def all_rewards(rewards, scores, answers):
    return rewards

def not_a_number(rewards, scores, answers):
    return np.nan

def nothing(rewards, scores, answers):
    pass

NUMBER = 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(FUNCTIONS)
    for name, shift in (("a", 0.0), ("b", 0.5)):
        lines = [
            {"problem_id": p, **sample, "reward": min(1.0, sample["reward"] + shift * (p % 2))}
            for p, row in enumerate(ROWS * 2)
            for sample in row
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def by_brute_force(value, k, shift=0.0):
    """The mean over problems of the mean of value over all k-subsets."""
    means = []
    for p, row in enumerate(ROWS * 2):
        values = []
        for chosen in combinations(row, k):
            rewards = [min(1.0, each["reward"] + shift * (p % 2)) for each in chosen]
            columns = ([each[name] for each in chosen] for name in ("judge", "answer"))
            values.append(value(np.array(rewards), *map(np.array, columns)))
        means.append(np.mean(values))
    return means


def run(capsys, *words):
    status = main([*words, "--json"])
    printed, said = capsys.readouterr()
    return json.loads(printed) if status == 0 else said.removeprefix(f"bestofk {words[0]}: ")


def test_a_function_is_measured_over_all_subsets_by_every_verb(folder, capsys):
    own: dict[str, Any] = {}
    exec(FUNCTIONS, own)
    words = ["--metric", "subsets@k", "--k", "2,4", "--value", "own.py:of_all", "--scores", "judge"]
    ((shown,),) = (each["curves"] for each in run(capsys, "eval", "a.jsonl", *words,
                                                  "--bounds", "0", "3"))  # fmt: skip
    truth = [by_brute_force(own["of_all"], k) for k in (2, 4)]
    assert shown["k"] == [2, 4]
    np.testing.assert_allclose(shown["estimate"], np.mean(truth, axis=1), atol=1e-12)
    np.testing.assert_allclose(sorted(np.array(shown["values"])[:, 0]), sorted(truth[0]))
    assert shown["notes"][-2].startswith("subsets@k is the mean of of_all over sets of k samples")
    words = ["--metric", "subsets@3", "--value", "own.py:second_best"]
    (both,) = run(capsys, "compare", "a.jsonl", "b.jsonl", *words)
    a, b = (by_brute_force(own["second_best"], 3, shift) for shift in (0.0, 0.5))
    assert both["difference"] == pytest.approx([np.mean(b) - np.mean(a)])
    assert (both["k"], both["wins"]) == ([3], [int((np.array(b) > np.array(a)).sum())])
    planned = run(capsys, "plan", "--k", "3", *words[2:], "--metric", "subsets@k", "--width", "0.3",
                  "--pilot", "a.jsonl", "--n", "4")  # fmt: skip
    assert planned["at"]
    assert planned["best"]["problems"] > 5
    assert bk.evaluate("a.jsonl", 3, metric="subsets@k", value=own["second_best"]).at(
        3
    ).value == pytest.approx(np.mean(a))
    assert bk.compare("a.jsonl", "b.jsonl", 3, metric="subsets@k", value=own["second_best"]).at(
        3
    ).value == pytest.approx(np.mean(b) - np.mean(a))


def test_the_maximum_as_a_function_has_the_intervals_and_the_test_of_max():
    rewards = RNG.choice([0.0, 0.3, 1.0], (30, 8))
    a, b = samples(rewards, name="a"), samples(RNG.choice([0.0, 0.6, 1.0], (30, 8)), name="b")
    value = lambda rewards, scores, answers: rewards.max()  # noqa: E731
    own: dict[str, Any] = {"metric": "subsets@k", "value": value, "ks": [4]}
    (one,), (other,) = compare([a, b], **own), compare([a, b], "max@k", at=4)
    for name in ("difference", "p_value", "wins", "losses"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-12)
    np.testing.assert_allclose(one.band.low, other.band.low, atol=1e-12)
    found, best = curve(a, **own), curve(a, "max@k")
    assert found.at(4).value == pytest.approx(best.at(4).value, abs=1e-12)
    assert found.at(4).low == pytest.approx(best.at(4).low, abs=0.01)
    widths = [c.fixed.high[c.place(4)] - c.fixed.low[c.place(4)] for c in (found, best)]
    assert widths[1] <= widths[0] <= 1.05 * widths[1]  # a little for at most 512 sets
    assert "over all, or 512 or more, k-subsets" in found.methods()
    many = samples(RNG.random((2, 600)))
    mean = curve(many, "subsets@k", value=lambda rewards, *rest: rewards.mean(), ks=[1, 2])
    assert mean.estimate[0] == pytest.approx(np.mean(many.rewards), abs=1e-12)
    assert mean.estimate[1] == pytest.approx(np.mean(many.rewards), abs=0.03)
    assert curve(a, **own, threshold=0.3).at(4) == found.at(4)  # as max@k, of rewards as they are


@pytest.mark.parametrize(("k", "problems"), [(1, 20), (4, 20), (6, 20), (8, 300)])
def test_intervals_for_the_same_problems_cover_new_draws_of_their_samples(k, problems):
    """Of 200 files with the same problems, at least 93% of the 95% intervals hold the truth."""
    chances = np.linspace(0.05, 0.95, problems)[:, None]
    spread: Any = lambda rewards, scores, answers: abs(2 * rewards.mean() - 1)  # noqa: E731
    counts = np.arange(k + 1)
    ways = np.array([float(len(list(combinations(range(k), c)))) for c in counts])
    truth = (
        ways * chances**counts * (1 - chances) ** (k - counts) @ abs(2 * counts / k - 1)
    ).mean()
    held = 0
    for _ in range(200):
        drawn = samples((RNG.random((problems, 8)) < chances) * 1.0)
        found = curve(drawn, "subsets@k", value=spread, ks=[k], resamples=400).fixed
        held += bool(found.low[0] - 1e-9 <= truth <= found.high[0] + 1e-9)
    assert held >= 186


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--value", "no.py:f"], "cannot load function 'no.py:f': there is no file"),
        (["--value", "own.py:secnd_best"], "did you mean 'second_best'?"),
        (["--value", "second_best"], "write FILE.py:NAME"),
        (["--value", "own.py:NUMBER"], "raised TypeError: 'int' object is not callable"),
        (["--value", "own.py:raises"], "of k = 3 samples, and raised KeyError: 'nothing here'"),
        (["--value", "own.py:one_argument"], "takes 1 positional argument but 3 were given"),
        (["--value", "own.py:text"], "must return a finite number, got '0.5'"),
        (["--value", "own.py:in_a_list"], "must return a finite number, got [0.5]"),
        (["--value", "own.py:all_rewards"], "must return a finite number, got array("),
        (["--value", "own.py:not_a_number"], "must return a finite number, got nan"),
        (["--value", "own.py:nothing"], "must return a finite number, got None"),
        (["--value", "own.py:of_all", "--scores", "judge"], "outside 0 to 1: state the least"),
        (["--value", "own.py:second_best", "--bounds", "0", "0.4"], "outside 0 to 0.4"),
        ([], "is a function of yours: --value file.py:name"),
        (["--metric", "subsets@9", "--value", "own.py:second_best"], "at least 9 scored samples"),
        (["--metric", "max@k", "--value", "own.py:second_best"], "is for subsets@k, the metric is"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(folder, capsys, words, message):
    for verb, files in (("eval", ["a.jsonl"]), ("compare", ["a.jsonl", "b.jsonl"])):
        metric = [] if "--metric" in words else ["--metric", "subsets@3"]
        said = run(capsys, verb, *files, *metric, *words)
        assert message in said
        assert said.count("\n") == 1
    with pytest.raises(ValueError, match=re.escape("a function of k samples is for subsets@k")):
        curve(samples([[0, 1]]), value=lambda *columns: 0.0)


def test_a_report_draws_a_function_at_powers_of_two(folder, capsys):
    (folder / "any.py").write_text(
        "def worst(rewards, scores, answers):\n    return min(rewards)\n"
    )
    words = ["--metrics", "subsets@k", "--value", "any.py:worst", "--out", "r.html"]
    found = run(capsys, "report", "a.jsonl", "b.jsonl", *words)
    assert [each["metric"] for each in found["verdicts"]] == ["subsets@k"]
    page = (folder / "r.html").read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    (measure,) = data["measures"]
    assert [each["k"] for each in measure["curves"]] == [[1, 2, 4, 5]] * 2
    truth = np.mean(by_brute_force(lambda rewards, *rest: min(rewards), 4))
    assert measure["curves"][0]["mean"][2] == pytest.approx(truth, abs=1e-4)

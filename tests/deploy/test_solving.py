"""Keeping the best: choices against enumeration, the cost, resuming, budgets and endpoints."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bestofk as bk
from bestofk.cli import main
from bestofk.cli.solve_command import SolveOptions, forecast_of
from bestofk.deploy.choosing import Chooser, answer_line, choose, planned, rounds
from bestofk.evaluation import samples
from bestofk.models import load, save
from bestofk.sampling.endpoint import EndpointError
from bestofk.sampling.openai_wire import sample_seed
from bestofk.tasks import task
from evaluation.faulty_server import FaultyServer, send


def line(number: int, reward: float | None, answer: str | None = None, **more: Any) -> Any:
    about = {"problem_id": "p", "prompt": "?", "completion": f"c{number}", "status": "partial"}
    told = {"n_tokens": 3, "model": "m", "sampling": {}}
    return {**about, **told, "sample_id": number, "reward": reward, "answer": answer, **more}


REWARDS = [[1, 0, 0, 0, 0], [0, 0, 0, 0, 0], [1, 1, 0, 1, 0], [1, 1, 1, 1, 1], [0, 1, 0, 0, 1]]
ANSWERS = ["abbac", "abcde", "aabac", "aaaaa", "baabc"]
SCORES = [[3, 3, 1, 0, 2], [0, 1, 2, 3, 4], [1, 1, 1, 1, 1], [5, 4, 3, 2, 1], [2, 1, 2, 2, 0]]


def in_order(problem: int, order: Sequence[int]) -> list[Any]:
    """A problem's samples as if they had been drawn in this order."""
    return [
        line(i, REWARDS[problem][s], ANSWERS[problem][s], score=SCORES[problem][s])
        for i, s in enumerate(order)
    ]


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_what_is_planned_is_the_mean_over_all_orders_of_the_samples(k: int) -> None:
    pilot = samples(REWARDS, answers=ANSWERS, scores=SCORES)
    choosers: tuple[Chooser, ...] = ("verifier", "vote", "score")
    for by in choosers:
        passes, draws = [], []
        for problem, order in itertools.product(range(5), itertools.permutations(range(5), k)):
            drawn: list[Any] = []
            for numbers in rounds(k, by):
                if by != "verifier" or not any(each["reward"] for each in drawn):
                    drawn += in_order(problem, order)[numbers.start : numbers.stop]
            kept = answer_line(drawn, by)
            passes.append(kept["reward"])
            draws.append(kept["draws"])
        plan = planned(pilot, k, by)
        assert plan.value == pytest.approx(np.mean(passes), abs=1e-12)
        assert plan.draws == pytest.approx(np.mean(draws), abs=1e-12)
        assert plan.low <= plan.value <= plan.high


def test_a_forecast_counts_as_passed_what_the_run_will(tmp_path: Path) -> None:
    pilot = tmp_path / "pilot.jsonl"
    rows = [{"problem_id": str(p), "reward": (p + s) % 2} for p in range(4) for s in range(2)]
    pilot.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for threshold, value, draws in ((1.0, 1.0, 1.5), (0.5, 1.0, 1.5), (2.0, 0.0, 2.0)):
        stated: Any = {"target": "m", "planned": pilot, "n": 2, "threshold": threshold}
        plan = forecast_of(SolveOptions(**stated))
        assert plan is not None
        assert (plan.value, plan.draws) == (value, draws)


def test_rounds_hold_every_number_once_and_cost_at_most_twice_the_first_pass() -> None:
    for k in range(1, 70):
        parts = rounds(k, "verifier")
        assert [n for part in parts for n in part] == list(range(k))
        for first_pass in range(k):
            cost = next(part.stop for part in parts if first_pass in part)
            assert cost <= 2 * (first_pass + 1)


def test_without_a_pass_reward_then_score_then_vote_choose() -> None:
    wrong = [line(0, 0.0, "a"), line(1, 0.0, "b"), line(2, 0.0, "b"), line(3, None, "b")]
    assert choose(wrong, "verifier") == (wrong[1], "vote")
    scored = [{**each, "score": score} for each, score in zip(wrong, (0.1, -2.0, 0.7, 0.7))]
    assert choose(scored, "verifier") == (scored[2], "score")
    assert choose(scored, "score") == (scored[2], "score")
    assert choose(scored, "vote") == (scored[1], "vote")
    graded = [*scored, line(4, 0.5)]
    assert choose(graded, "verifier") == (graded[4], "reward")
    assert choose(wrong, "score") == (wrong[0], "reward")
    assert choose(graded, "verifier", threshold=0.5) == (graded[4], "pass")
    assert choose([line(0, None), line(1, None)], "verifier") == (line(0, None), "first")
    passing = [*graded, line(5, 1.0), line(6, 2.0)]
    assert choose(passing, "verifier") == (passing[5], "pass")


SOLVE = "solve tiny-countdown --task countdown --problems 12 --k 6 --max-new-tokens 12"


def solved(folder: Path, capsys: Any, *words: str, status: int = 0) -> tuple[Any, list[Any]]:
    """The summary, and the answers."""
    out = folder / "answers.jsonl"
    assert main([*SOLVE.split(), "--out", str(out), "--json", *words]) == status
    summary = json.loads(capsys.readouterr().out)
    return summary, [json.loads(text) for text in out.read_text().splitlines()]


def test_a_problem_ends_at_its_first_pass_and_a_killed_run_ends_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary, answers = solved(tmp_path, capsys)
    drawn = [
        json.loads(text) for text in (tmp_path / "answers.samples.jsonl").read_text().splitlines()
    ]
    assert summary["draws"] == len(drawn) < 12 * 6
    assert summary["tokens"] == sum(each["n_tokens"] for each in drawn)
    assert summary["passed"] == sum(each["reward"] == 1 for each in answers) > 0
    for answer in answers:
        own = [each for each in drawn if each["problem_id"] == answer["problem_id"]]
        assert sorted(each["sample_id"] for each in own) == list(range(answer["draws"]))
        assert answer["draws"] in (1, 2, 4, 6)
        passing = [each["sample_id"] for each in own if each["reward"] == 1]
        assert (answer["chosen_by"] == "pass") == bool(passing)
        if passing:
            assert answer["sample"] == min(passing)
            assert answer["draws"] <= 2 * (answer["sample"] + 1)
        else:
            assert answer["draws"] == 6
    whole = (tmp_path / "answers.jsonl").read_bytes()
    text = (tmp_path / "answers.samples.jsonl").read_text()
    for share in (0.1, 0.5, 0.9):  # as a killed writer leaves it, in the middle of a line
        (tmp_path / "answers.samples.jsonl").write_text(text[: int(len(text) * share)])
        (tmp_path / "answers.jsonl").unlink()
        assert solved(tmp_path, capsys)[0] == summary
        assert (tmp_path / "answers.jsonl").read_bytes() == whole


def test_the_folder_of_a_run_brings_its_model_task_and_sampling(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, rows, out = tmp_path / "run", tmp_path / "rows.jsonl", tmp_path / "answers.jsonl"
    save(load("tiny-countdown"), run / "final")
    (run / "config.toml").write_text(
        '[task]\nname = "countdown"\n[sampling]\nmax_new_tokens = 9\n[run]\nsteps = 7\n'
    )
    rows.write_text('{"prompt": "1 2 = 3:", "answer": "1+2"}\n')
    words = ["--k", "2", "--by", "vote", "--out", str(out)]
    for more in (["--problems", "2"], ["--data", str(rows), "--verifier", "exact"]):
        assert main(["solve", str(run), *words, *more]) == 0, capsys.readouterr().err
        first = json.loads(out.read_text().splitlines()[0])
        assert first["model"] == "run-step7"
        assert first["sampling"]["max_new_tokens"] == 9
        out.unlink()
        out.with_suffix(".samples.jsonl").unlink()


def test_a_budget_is_never_passed_and_can_be_raised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary, answers = solved(tmp_path, capsys, "--max-tokens", "150", status=1)
    assert 0 < summary["tokens"] <= 150
    assert summary["problems"] == len(answers)
    assert main([*SOLVE.split(), "--out", str(tmp_path / "whole.jsonl"), "--quiet"]) == 0
    capsys.readouterr()
    solved(tmp_path, capsys)
    assert (tmp_path / "answers.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_a_vote_sees_all_k_and_the_plan_stands_beside_what_came(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pilot = str(tmp_path / "pilot.jsonl")
    draw = SOLVE.replace("solve", "sample").replace("--k", "--n")
    assert main([*draw.split(), "--out", pilot, "--quiet"]) == 0
    capsys.readouterr()
    summary, answers = solved(tmp_path, capsys, "--by", "vote", "--planned", pilot)
    assert {each["draws"] for each in answers} == {6}
    assert set(summary["chosen_by"]) <= {"vote", "first"}
    assert summary["planned"]["metric"] == "maj@6"
    assert summary["planned"]["draws"] == 6.0
    assert 0 <= summary["planned"]["low"] <= summary["planned"]["high"] <= 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--data", "pilot.jsonl"], "--data FILE needs --verifier NAME, and no --task"),
        (["--out", "pilot.jsonl"], "are not beside it (pilot.samples.jsonl): choose another"),
        (["--k", "0"], "k is a whole number of at least 1, got 0"),
        (["--max-tokens-total", "-3"], "--max-tokens-total takes"),
        (["--temperature", "0"], "at temperature 0 all 6 samples are one"),
        (["--threshold", "nan"], "threshold is the reward that passes, got nan"),
        (["--out", "nowhere/a.jsonl"], "there is no folder"),
        (
            ["--by", "score", "--planned", "pilot.jsonl", "--k", "2"],
            "has no scores",
        ),
        (
            ["--planned", "pilot.jsonl"],
            "has 2 scored samples of a problem",
        ),
        (["--verifier", "nowhere.py:f"], "cannot load verifier 'nowhere.py:f': there is no file"),
    ],
)
def test_bad_input_is_told(
    words: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"problem_id": "p", "reward": 1}, {"problem_id": "p", "reward": 0}]
    (tmp_path / "pilot.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main([*SOLVE.split(), *words]) == 2
    assert said in capsys.readouterr().err


def test_a_verifier_that_breaks_and_a_server_that_is_not_there_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "judges.py").write_text("def broken(completion):\n    raise KeyError('total')\n")
    words = ["--verifier", "judges.py:broken", "--problems", "2", "--k", "2"]
    assert main([*SOLVE.split(), *words]) == 0
    said = capsys.readouterr().err
    assert "4 samples could not be scored, 4 of them because broken raised at" in said
    assert "KeyError: 'total'" in said
    words = ["http://127.0.0.1:1/v1", "--model", "m", "--task", "countdown", "--retries", "0"]
    assert main(["solve", *words, "--out", "gone.jsonl"]) == 1
    shown = capsys.readouterr()
    assert (shown.out, Path("gone.jsonl").exists()) == ("", False)
    assert "Is the server running, and are host and port right?" in shown.err
    with FaultyServer(always={"": scripted}) as server:
        ways: list[dict[str, Any]] = [{"verifier": breaks}, {"scorer": breaks}]
        for given in ways:
            with pytest.warns(UserWarning, match="2 samples could not be scored, 2 because breaks"):
                bk.best_of(server.url, ["say one"], 2, name="m", **given)


def breaks(completion: str) -> float:
    raise RuntimeError("no judge")


REFERENCES = {
    str(prompt.text[0]): prompt.reference for prompt in task("countdown").split("test")[:8]
}


def half_right(handler: Any, body: dict[str, Any]) -> None:
    """The reference or a wrong answer, by the seed of the request."""
    right = random.Random(body["seed"]).random() < 0.5
    text = REFERENCES[str(body["messages"][0])] if right else "<answer>1</answer>"
    choices = [{"index": 0, "finish_reason": "stop", "message": {"content": text}}]
    usage = {"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14}
    send(handler, 200, json.dumps({"choices": choices, "usage": usage}).encode())


def test_an_endpoint_is_asked_until_a_pass_and_a_rejected_problem_stops_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rejected = json.dumps(task("countdown").split("test")[3].text[0]["content"])  # type: ignore[index]

    def reject(handler: Any, body: dict[str, Any]) -> None:
        send(handler, 400, b'{"error": "too long"}')

    for always, status in (({}, 0), ({rejected: reject}, 1)):
        out = tmp_path / f"{status}.jsonl"
        with FaultyServer(always={**always, "": half_right}) as server:
            words = ["solve", server.url, "--model", "m", "--task", "countdown", "--k", "32"]
            more = ["--problems", "8", "--out", str(out), "--json"]
            assert main([*words, *more]) == status
        shown = capsys.readouterr()
        summary, told = json.loads(shown.out), shown.err
        answers = [json.loads(text) for text in out.read_text().splitlines()]
        assert summary["passed"] == summary["problems"] == len(answers) == 8 - status
        asked = [each for each in server.requests if rejected not in json.dumps(each)]
        assert summary["draws"] == len(server.requests) if not status else len(asked)
        assert ("could not be drawn" in told) == bool(status)
        assert "cap: " in told


def scripted(handler: Any, body: dict[str, Any]) -> None:
    """The last word of the prompt, or a wrong answer, by the seed; longer where it is right."""
    word = json.dumps(body["messages"]).split()[-1].strip('"}]')
    right = random.Random(body["seed"]).random() < 0.4
    text = f"it is <answer>{word}</answer>" if right else "<answer>?</answer>"
    choices = [{"index": 0, "finish_reason": "stop", "message": {"content": text}}]
    usage = {"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14}
    send(handler, 200, json.dumps({"choices": choices, "usage": usage}).encode())


WORDS = ["say one", "say two", [{"role": "user", "content": "say one"}]]


def says_it(prompt: Any, completion: str) -> bool:
    return f">{prompt.text[-1]['content'].split()[-1]}<" in completion


def length(completion: str) -> int:
    return len(completion)


def test_best_of_asks_an_endpoint_until_a_pass_and_keeps_the_best(tmp_path: Path) -> None:
    with FaultyServer(always={"": scripted}) as server:
        options: dict[str, Any] = {"k": 32, "name": "m", "out": tmp_path / "all.jsonl"}
        best = bk.best_of(server.url, WORDS, verifier=says_it, **options)
        asked = len(server.requests)
        assert [each["status"] for each in best if each] == ["correct"] * 3  # one prompt twice
        assert sum(each["draws"] for each in best if each) == asked < 96
        assert bk.best_of(server.url, WORDS, verifier=says_it, **options) == best
        assert len(server.requests) == asked  # all of it was there
    assert bk.evaluate([each for each in best if each], k=1).estimate[0] == 1.0


def larger(handler: Any, body: dict[str, Any]) -> None:
    """A judge that prefers the answer with the larger digit; of equal ones, the first."""
    digits = re.findall(r"<answer>(\d+)</answer>", body["messages"][0]["content"])
    winner = "A" if int(digits[0]) >= int(digits[1]) else "B"
    choices = [{"message": {"content": f"Winner: {winner}"}}]
    send(handler, 200, json.dumps({"choices": choices}).encode())


def test_a_pairwise_judge_sees_all_k_also_after_an_interrupted_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "answers.jsonl"
    with FaultyServer(always={"You compare": larger}) as server:
        judge = ["--scorer", f"judge:j@{server.url}", "--scorer-option", "pairwise=true",
                 "--scorer-option", "opponents=9"]  # fmt: skip
        words = ["solve", server.url, "--model", "m", "--task", "countdown", "--problems", "2",
                 "--k", "5", "--out", str(out), "--max-new-tokens", "8", "--quiet"]  # fmt: skip
        assert main([*words, *judge]) == 2
        assert "samples are compared once all k are drawn" in capsys.readouterr().err
        assert (
            main(
                [*words, *judge, "--by", "score", "--concurrency", "1", "--max-tokens-total", "30"]
            )
            == 1
        )
        assert not any("You compare" in json.dumps(each) for each in server.requests)
        assert main([*words, *judge, "--by", "score", "--max-tokens-total", "1000"]) == 0
        digits: dict[str, list[int]] = {}
        for text in out.with_suffix(".samples.jsonl").read_text().splitlines():
            drawn = json.loads(text)
            digits.setdefault(drawn["problem_id"], []).append(int(drawn["answer"]))
        answers = [json.loads(text) for text in out.read_text().splitlines()]
        assert [int(each["answer"]) for each in answers] == [max(digits[each["problem_id"]])
                                                              for each in answers]  # fmt: skip
        assert {(each["chosen_by"], each["draws"]) for each in answers} == {("score", 5)}


def test_best_of_by_score_and_by_vote_sees_all_k() -> None:
    with FaultyServer(always={"": scripted}) as server:
        options: dict[str, Any] = {"k": 9, "name": "m"}
        longest = bk.best_of(server.url, WORDS, scorer=length, **options)
        voted = bk.best_of(server.url, WORDS, vote=True, **options)
        named = bk.best_of(
            server.url, WORDS, scorer=length, verifier=says_it, name="m", procedure="select@9"
        )
        assert bk.best_of(server.url, WORDS, name="m", procedure="maj@9") == voted
    texts = [[each and each["completion"] for each in answers] for answers in (named, longest)]
    assert texts[0] == texts[1]
    for each in longest:
        assert each is not None
        assert (each["draws"], each["chosen_by"], each["reward"]) == (9, "score", None)
        assert each["completion"].startswith("it is")
    counts = [random.Random(sample_seed(0, str(p), n)).random() < 0.4 for p in (0, 1, 2)
              for n in range(9)]  # fmt: skip
    for number, each in enumerate(voted):
        assert each is not None
        most = sum(counts[9 * number : 9 * number + 9]) > 4
        assert (each["answer"] == "?") != most
        assert each["chosen_by"] == "vote"


def test_best_of_leaves_out_what_the_endpoint_rejects_and_says_so() -> None:
    def reject(handler: Any, body: dict[str, Any]) -> None:
        send(handler, 400, b'{"error": "too long"}')

    with FaultyServer(always={"two": reject, "": scripted}) as server:
        with pytest.warns(UserWarning, match="could not be drawn"):
            best = bk.best_of(server.url, WORDS[:2], 4, verifier=says_it, name="m")
        assert best[0] is not None
        assert best[1] is None
        with pytest.raises(EndpointError):
            bk.best_of(server.url, WORDS[1:2], 4, verifier=says_it, name="m")


def test_best_of_a_model_here_ends_as_solve_does() -> None:
    prompts = task("countdown", style="compact").split("test")[:6]
    options: dict[str, Any] = {"k": 6, "verifier": "countdown", "max_new_tokens": 12}
    best = bk.best_of("tiny-countdown", prompts, **options)
    assert [each["draws"] in (1, 2, 4, 6) for each in best if each] == [True] * 6
    assert any(each["chosen_by"] == "pass" for each in best if each)
    assert bk.best_of("tiny-countdown", prompts, **options) == best


@pytest.mark.parametrize(
    ("prompts", "options", "said"),
    [
        (["a"], {}, "what chooses: verifier=, scorer= or vote=True"),
        (
            ["a"],
            {"procedure": "best@8"},
            "a procedure that chooses is max@8, pass@8, retry@8, select@8, maj@8",
        ),
        (["a"], {"procedure": "retry@8"}, "chosen by the verifier: state verifier="),
        (["a"], {"vote": True, "name": ""}, "state name="),
        ("a", {"vote": True}, "prompts are a list"),
        ([7], {"vote": True}, "prompt 0 is a text, chat messages or a row, got 7"),
        ([{"x": "a"}], {"vote": True}, "name it prompt"),
        ([{"prompt": "a"}], {"verifier": lambda completion, key: 1.0}, "takes key"),
        (["a"], {"verifier": "maths:"}, "cannot load"),
        (
            ["a"],
            {"verifier": "maths"},
            "verifier maths needs expected, and the row of 0 has no fields",
        ),
        (["a"], {"scorer": "exact"}, "verifier exact needs expected, and the row of 0 has no"),
        (
            [{"prompt": "a", "target": 4}],
            {"verifier": "countdown"},
            "countdown needs numbers, and the row of 0 has prompt, target",
        ),
    ],
)
def test_what_best_of_cannot_work_with_is_told(prompts: Any, options: Any, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        bk.best_of("http://127.0.0.1:1/v1", prompts, **{"name": "m", **options})


def test_rows_with_a_verifier_and_a_scorer_and_a_larger_k(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({"question": f"say {word}", "answer": word}) for word in ("one", "two")]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    (tmp_path / "shortest.py").write_text("def score(completion):\n    return -len(completion)\n")

    def never_right(handler: Any, body: dict[str, Any]) -> None:
        text = "<answer>" + "?" * (1 + body["seed"] % 50) + "</answer>"
        choices = [{"index": 0, "finish_reason": "stop", "message": {"content": text}}]
        send(handler, 200, json.dumps({"choices": choices}).encode())

    with FaultyServer(always={"": never_right}) as server:
        words = ["solve", server.url, "--model", "m", "--data", "rows.jsonl", "--verifier", "exact"]
        words += ["--scorer", "shortest.py:score", "--json"]
        for k in (2, 8):
            assert main([*words, "--k", str(k)]) == 0
            assert json.loads(capsys.readouterr().out)["chosen_by"] == {"score": 2}
            assert len(server.requests) == 2 * k  # the first two were kept
    answers = (tmp_path / "rows-m-answers.jsonl").read_text().splitlines()
    drawn = [*map(json.loads, (tmp_path / "rows-m-answers.samples.jsonl").read_text().splitlines())]
    for answer in map(json.loads, answers):
        own = [each for each in drawn if each["problem_id"] == answer["problem_id"]]
        assert len(answer["completion"]) == min(len(each["completion"]) for each in own)

"""Options people expect of a trainer: overlong penalty, prompts by pass rate, a callback."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from bestofk.api.training_run import TrainedRun
from bestofk.cli import main
from bestofk.config import TaskAdvanced, TaskSection, merged, read
from bestofk.objectives import objective
from bestofk.rewards import combined
from bestofk.rewards.base import as_verdict
from bestofk.runs import read_metrics
from bestofk.tasks import task
from bestofk.training.batch import RolloutBatch, rewards_for, with_penalties
from bestofk.training.display import Pace
from bestofk.training.record import nothing_learnt
from bestofk.training.resolve import resolve
from bestofk.training.task_setup import make_prompts, with_pass_rates
from bestofk.training.train import train
from bestofk.types import Group, Prompt, Trajectory, Verdict
from evaluation.faulty_server import FaultyServer, send


def group_of_lengths(*lengths):
    completions = tuple(Trajectory([1] * length) for length in lengths)
    return Group(Prompt("p", "?", "t"), completions)


def test_the_overlong_penalty_is_linear_below_the_limit_and_no_verdict_changes():
    group = group_of_lengths(80, 90, 100, 100, 95)
    verdicts = [
        Verdict(1.0, "correct"),
        Verdict(1.0, "correct"),
        Verdict(1.0, "correct"),
        Verdict(0.0, "timeout"),
        Verdict.unscored("broken"),
    ]
    (row,) = with_penalties([group], [verdicts], limit=100, buffer=20, penalty=1.0)
    less = rewards_for(objective("max@2"), [row], 0.0)[0]
    assert less[:4].tolist() == [1.0, 0.5, 0.0, -1.0]
    assert math.isnan(less[4])
    assert [replace(v, penalty=0.0) for v in row[:4]] == verdicts[:4]
    (free,) = with_penalties([group], [verdicts], limit=100, buffer=0, penalty=1.0)
    assert free[:4] == verdicts[:4]


@pytest.mark.parametrize(
    ("text", "options", "counts"),
    [
        ("maxrl", {}, True),
        ("pass@2", {}, True),
        ("max@2", {"threshold": 0.5}, True),
        ("mean+pass@2", {}, True),
        ("mean", {}, False),
        ("tailrl", {}, False),
    ],
)
def test_what_counts_passes_takes_the_verdict_and_all_else_the_penalised_reward(
    text, options, counts
):
    """A right answer at the limit of its length is right, and a wrong one never is."""
    verdicts = [Verdict(1.0, "correct", penalty=0.75), Verdict(0.0, "incorrect", penalty=1.0)]
    rewards = rewards_for(objective(text, **options), [verdicts], 0.0)
    assert rewards.tolist() == ([[1.0, 0.0]] if counts else [[0.25, -1.0]])


def test_a_schedule_takes_the_verdicts_only_while_it_counts_passes():
    switch = objective("max@2/50%/pass@2")
    verdicts = [[Verdict(1.0, "correct", penalty=0.5)]]
    assert [rewards_for(switch, verdicts, at).item() for at in (0.0, 0.5)] == [0.5, 1.0]


@pytest.mark.parametrize("text", ["maxrl", "pass@2", "max@2"])
def test_a_run_with_an_overlong_penalty_counts_the_same_passes(text, recipe, tmp_path):
    lines, samples = {}, {}
    for name, zone in (("with", 5), ("without", 0)):
        end = train(resolve(read(
                recipe(
                    f"{name}.toml",
                    objective=text,
                    task={"verifier": "training_judges:any_digit",
                          "advanced": {"overlong_tokens": zone}},
                    evaluation={"every": 0},
                    run={"dir": str(tmp_path / name), "steps": 1},
                )
            )))  # fmt: skip
        lines[name] = next(iter(read_metrics(end.path)))
        samples[name] = [
            json.loads(line)
            for file in sorted((end.path / "samples").iterdir())
            for line in file.read_text().splitlines()
        ]
    counted = [key for key in lines["with"] if key == "pass@1" or key.startswith("status_")]
    assert [lines["with"][key] for key in counted] == [lines["without"][key] for key in counted]
    assert 0 < lines["with"]["pass@1"] < 1
    assert "status_partial" not in lines["with"]
    judged = [[row["reward"], row["status"]] for row in samples["with"]]
    assert judged == [[row["reward"], row["status"]] for row in samples["without"]]
    lost = sum(row.get("penalty", 0.0) for row in samples["with"]) / len(judged)
    assert lost > 0.1
    less = 0.0 if text != "max@2" else lost
    assert lines["with"]["reward"] == pytest.approx(lines["without"]["reward"] - less)


def test_prompts_are_kept_by_their_pass_rate(tmp_path):
    countdown = task("countdown", style="compact", train_size=6)
    ids = [prompt.id for prompt in countdown.split("train")]
    rates = {ids[0]: (0, 4), ids[1]: (1, 4), ids[2]: (3, 4), ids[3]: (4, 4)}
    file = tmp_path / "base.jsonl"
    lines = [
        {"problem_id": id, "sample_id": i, "reward": float(i < passed)}
        for id, (passed, n) in rates.items()
        for i in range(n)
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    section = TaskSection(advanced=TaskAdvanced(pass_rates=str(file)))
    kept = with_pass_rates(countdown, section)
    assert {prompt.id for prompt in kept.split("train")} == {ids[1], ids[2]}
    assert len(kept.split("validation")) == len(countdown.split("validation"))
    assert [line for line in kept.findings() if "left out" in line] == [
        f"4 left out: 2 × its pass rate in {file} is outside [0.01, 0.99]; 2 × it is not in {file}"
    ]
    narrow = section.advanced.changed(pass_rate_range=(0.4, 0.6))
    none_left = with_pass_rates(countdown, section.changed(advanced=narrow))
    with pytest.raises(ValueError, match=r"4 of 6 prompts.*none has a pass rate in \[0.4, 0.6\]"):
        none_left.split("train")


def test_rewards_of_minus_one_and_one_train_and_are_evaluated(recipe, tmp_path):
    config = read(recipe(task={"verifier": "training_judges:signed"}, run={"steps": 2}))
    end = train(resolve(config))
    lines = [json.loads(line) for line in (end.path / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "train"]
    for line in steps:
        assert line["reward"] == pytest.approx(2 * line["pass@1"] - 1)
        assert line["status_incorrect"] > 0
    found = next(line for line in lines if line["kind"] == "evaluation")["results"]
    assert found["max@1"]["value"] == pytest.approx(2 * found["pass@1"]["value"] - 1)
    # The range of a reward that leaves [0, 1] is not known, so its interval may go beyond it.
    assert found["max@1"]["low"] <= found["max@1"]["value"] <= found["max@1"]["high"]


def test_rewards_above_one_leave_pass_at_k_out_until_a_threshold_is_stated(recipe, tmp_path):
    config = read(recipe(task={"verifier": "training_judges:counted"}, run={"steps": 1}))
    lines = (train(resolve(config)).path / "metrics.jsonl").read_text().splitlines()
    found = json.loads(lines[0])["results"]
    assert set(found) == {"max@1", "max@2", "max@4"}
    assert found["max@4"]["value"] > 1.0
    stated = {"threshold": 2.0}
    other = {"steps": 1, "dir": str(tmp_path / "other")}
    config = read(
        recipe(task={"verifier": "training_judges:counted"}, evaluation=stated, run=other)
    )
    lines = (train(resolve(config)).path / "metrics.jsonl").read_text().splitlines()
    assert 0.0 < json.loads(lines[0])["results"]["pass@4"]["value"] <= 1.0


def test_the_start_is_evaluated_unless_told_not_to(recipe, tmp_path):
    """The run is the same otherwise: what is drawn for training does not depend on it."""
    drawn = []
    for name, first in (("with", True), ("without", False)):
        run = {"dir": str(tmp_path / name), "steps": 2}
        evaluation = {"every": 2, "at_start": first}
        config = read(recipe(f"{name}.toml", evaluation=evaluation, run=run))
        train(resolve(config))
        text = (tmp_path / name / "metrics.jsonl").read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        assert [x["step"] for x in lines if x["kind"] == "evaluation"] == ([0, 2] if first else [2])
        drawn.append([x["reward"] for x in lines if x["kind"] == "train"])
    assert drawn[0] == drawn[1]
    with pytest.raises(FileNotFoundError, match=r"evaluation of step 0.*at_start = true"):
        TrainedRun(tmp_path / "without", config).start  # noqa: B018
    assert main(["report", str(tmp_path / "without"), "--out", str(tmp_path / "page.html")]) == 0


def test_a_callback_sees_every_line_and_may_end_the_run(recipe, tmp_path):
    """With a further evaluation set, and a reward whose parts are logged by name."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "".join(json.dumps({"prompt": f"{i} 2=", "answer": "4"}) + "\n" for i in range(9))
    )
    parts: list[dict[str, Any]] = [
        {"verifier": "training_judges:digits", "weight": 3},
        {"verifier": "exact"},
    ]
    path = recipe(
        task={
            "name": "dataset",
            "options": {"train": str(rows), "ask": False, "style": "text", "answer": "answer"},
        },
        evaluation={"split": "train", "prompts": 2, "sets": {"again": str(rows), "maze": "maze"}},
    )
    told = []

    def until_five(line):
        told.append(line)
        return line["kind"] == "train" and line["step"] == 5

    config = read(path)
    reward = combined(parts)
    end = train(resolve(config), verifier=reward, callback=until_five)
    assert (end.step, end.signal) == (5, None)
    assert told == read_metrics(end.path)
    kinds = [(line["kind"], line.get("set"), line["step"]) for line in told]
    shown = [("evaluation", None), ("evaluation_set", "again"), ("evaluation_set", "maze")]
    assert kinds[:3] == [(*each, 0) for each in shown]
    assert kinds[-3:] == [(*each, 5) for each in shown]
    line = next(line for line in told if line["kind"] == "train")
    mean = (3 * line["reward_parts"]["digits"] + line["reward_parts"]["exact"]) / 4
    assert mean == pytest.approx(line["reward"])
    assert (end.path / "evaluations-maze" / "000005.jsonl").is_file()
    assert (end.path / "final" / "model.safetensors").is_file()
    resumed = train(resolve(merged(config, {"run.steps": 6}), resume=True), verifier=reward)
    assert resumed.step == 6
    with pytest.raises(ValueError, match=r"has done 6 steps, more than run.steps = 4: raise it"):
        train(resolve(merged(config, {"run.steps": 4}), resume=True), verifier=reward)


def test_rewards_that_teach_nothing_are_said_after_three_steps(recipe, capsys):
    """One reward for all answers; and a threshold that none reaches."""
    path = recipe(
        task={"verifier": "training_judges:half"},
        objective="max@4:none",
        evaluation={"every": 0, "threshold": 30.0},
        run={"steps": 3},
    )
    assert train(resolve(read(path))).step == 3
    told = capsys.readouterr().out
    assert (
        "all rewards were equal in 3 steps, so nothing is learnt; likely cause: every answer gets "
        "the reward 0.5: it does not tell answers apart"
    ) in told
    assert "evaluation.threshold = 30, and the largest reward in 3 steps is 0.5" in told


@pytest.mark.parametrize(
    ("reward", "cause"),
    [
        (5.0, "every answer gets the reward 5: it does not tell answers apart"),
        (1.0, "every answer gets the reward 1: take harder problems, or look at the reward"),
        (0.0, "the problems may be too hard"),
    ],
)
def test_a_constant_reward_is_called_right_only_where_it_may_be(reward, cause):
    batch = RolloutBatch((group_of_lengths(1),), ((as_verdict(reward),),), 1)
    line = {"reward": reward, "reward_min": reward, "reward_max": reward, "at_length_limit": 0.0,
            "groups_with_signal": 0}  # fmt: skip
    assert cause in nothing_learnt(line, 3, batch)


def test_the_time_to_go_counts_evaluations_apart():
    """Steps of 2 s, evaluations of two sets in 30 s; 8 steps in all, one evaluation every 4."""
    pace = Pace(8, 4)
    pace.start(100.0)
    pace.take("evaluation", 0, 110.0)
    pace.take("evaluation", 0, 130.0)
    for step in (1, 2, 3):
        pace.take("step", step, 130.0 + 2 * step)
    assert pace.seconds_to_go(3) == 5 * 2 + 2 * 30
    pace.take("step", 4, 138.0)
    pace.take("evaluation", 4, 168.0)
    pace.take("step", 5, 170.0)
    assert pace.seconds_to_go(5) == 3 * 2 + 30
    assert Pace(7, 4).seconds_to_go(0) == 0.0


def test_a_prompt_that_refill_may_draw_and_does_not_fit_is_left_out(recipe, tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    prompts = ["1 2="] * 39 + ["1 " * 600]
    rows.write_text(
        "".join(json.dumps({"prompt": f"{i} {p}"}) + "\n" for i, p in enumerate(prompts))
    )
    options = {"train": str(rows), "style": "text", "validation_share": 0.0, "test_share": 0.0}
    task_ = {"name": "dataset", "options": options}
    few = {"task": task_, "evaluation": {"every": 0}, "run": {"steps": 2}}
    config = read(recipe(**few, sampling={"refill": 9}))
    stream = make_prompts(config.task).split("train")
    assert max(range(40), key=lambda i: len(stream.at(i).text)) >= 8  # beyond what it would draw
    assert train(resolve(config)).step == 2
    assert "1 × the prompt is too long for the model" in capsys.readouterr().err


def test_a_run_is_sampled_as_it_was_evaluated_at_any_temperature(recipe, tmp_path, monkeypatch):
    """Its folder names model, task, verifier, options and sampling; what is stated wins."""
    from bestofk.api.training_run import TrainedRun
    from bestofk.cli import main

    monkeypatch.chdir(tmp_path)
    config = read(recipe(run={"steps": 1, "seed": 3}, evaluation={"every": 0}))
    path = train(resolve(config)).path
    words = ["--split", "test", "--n", "2", "--problems", "3", "--seed", "3", "--quiet"]
    assert main(["sample", str(path), *words, "--temperature", "1", "0.5"]) == 0
    found = {}
    for heat in ("1", "0.5"):
        file = tmp_path / f"countdown-run-step1-t{heat}.jsonl"
        found[heat] = [json.loads(line) for line in file.read_text().splitlines()]
        assert {line["sampling"]["temperature"] for line in found[heat]} == {float(heat)}
        assert {line["sampling"]["max_new_tokens"] for line in found[heat]} == {6}
    kept = path / "evaluations-final" / "test-n2.jsonl"
    kept.parent.mkdir()
    paid = {"problem_id": found["1"][0]["problem_id"], "sample_id": 0, "completion": "of old"}
    kept.with_name(f"{kept.name}.journal").write_text(json.dumps(paid) + "\n")  # it was killed
    TrainedRun(path, config).sample("test", n=2, prompts=3)
    by_python = [json.loads(line) for line in kept.read_text().splitlines()]
    same = ("problem_id", "sample_id", "completion", "reward", "status", "logprob_sum")
    assert [[line[name] for name in same] for line in found["1"]] == [
        [line[name] for name in same] for line in by_python
    ]
    assert [line["completion"] for line in found["0.5"]] != [
        line["completion"] for line in found["1"]
    ]


def test_a_file_is_a_further_evaluation_set_beside_any_task(recipe, tmp_path, capsys):
    """Its rows are judged by the verifier of the run's task."""
    rows = [{"prompt": f"{i} 2 3 = {i + 5}:", "expected": i} for i in range(5)]
    file = tmp_path / "more.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    evaluation = {"every": 1, "prompts": 5, "samples_per_prompt": 4, "sets": {"more": str(file)}}
    path = train(resolve(read(recipe(run={"steps": 1}, evaluation=evaluation)))).path
    lines = [line for line in read_metrics(path) if line["kind"] == "evaluation_set"]
    assert [(line["step"], line["set"], line["prompts"]) for line in lines] == [
        (0, "more", 5),
        (1, "more", 5),
    ]


def test_how_many_prompts_their_pass_rates_leave_is_said(recipe, tmp_path, capsys):
    countdown = task("countdown", style="compact", train_size=40)
    rates = tmp_path / "rates.jsonl"
    lines = [
        {"problem_id": prompt.id, "sample_id": i, "reward": float(i < number % 4), "completion": ""}
        for number, prompt in enumerate(countdown.split("train")[:12])
        for i in range(3)
    ]
    rates.write_text("".join(json.dumps(line) + "\n" for line in lines))
    advanced = {"pass_rates": str(rates), "unscored_share": 1.0}
    config = merged(read(recipe(run={"steps": 1})), {"task.advanced": advanced})
    assert train(resolve(config)).step == 1
    told = "countdown, train: 6 of 40 prompts kept: "  # of 12, those with 1 or 2 of 3
    assert told in capsys.readouterr().err


def test_a_run_paid_by_a_model_says_what_is_hacked_and_logs_kl_and_a_held_out_judge(
    recipe, tmp_path, capsys
):
    def by_length(handler, body):
        mark = min(10, len(body["messages"][0]["content"].split("<answer_to_grade")[1]) // 20)
        choices = [{"message": {"content": f"Score: {mark}"}}]
        send(handler, 200, json.dumps({"choices": choices}).encode())

    with FaultyServer(always={"": by_length}) as server:
        task = {"verifier": f"judge:m@{server.url}"}
        evaluation = {"every": 0}
        train(resolve(read(recipe(task=task, evaluation=evaluation, run={"steps": 1}))))
        said = capsys.readouterr().err
        assert "a model's opinion pays: training finds what it mistakes for quality" in said
        assert "loss.kl = 0.01 keeps the policy near its start; task.held_out = NAME" in said
        task |= {"held_out": "training_judges:digits"}
        settings = {"dir": str(tmp_path / "watched"), "steps": 1}
        path = recipe(task=task, evaluation=evaluation, run=settings, loss={"kl": 0.01})
        run = train(resolve(read(path)))
        assert "stop where the reward rises and the held-out judge does not" in (
            capsys.readouterr().err
        )
    line = next(line for line in read_metrics(run.path) if line["kind"] == "train")
    assert line["kl"] == 0.0  # before the first step
    parts = line["reward_parts"]
    assert parts["held out"] != parts[f"judge:m@{server.url}"] == line["reward"]

"""Training with an environment, from Python and from a recipe, on policies of random weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import bestofk
from bestofk.api.sampling_run import LocalModel, SampleFile
from bestofk.cli import sample_command, train_command
from bestofk.cli.train_command import stated_by
from bestofk.environments.author_class import OwnReward, as_environment
from bestofk.models import Policy, save, tiny
from bestofk.rewards import TooManyUnscored, UnscoredGuard, from_function, judge, scored_by
from bestofk.runs import read_jsonl
from bestofk.sampling import Sampling
from bestofk.training.batch import RolloutBatch
from bestofk.training.display import groups_text
from bestofk.training.resume import QUEUE
from bestofk.types import Conversation, Group, Prompt, Trajectory, Verdict
from environments.chat_models import Guess, model, tokenizer


class Digits:
    """Three turns of plain text; pays for each that begins with a digit, where the turn ends."""

    def reset(self, question: str) -> None:
        self.heard: list[str] = []

    def __call__(self, text: str) -> str | None:
        self.heard.append(text)
        return "b=" if len(self.heard) < 3 else None

    def get_reward(self) -> float:
        return self.heard.count("") / 3


ROWS = [{"question": f"{number}=", "secret": number} for number in range(32)]
SETTINGS = {
    "task.options.style": "text", "sampling.stop": list("0123456789"),
    "optimizer.learning_rate": 1e-2, "model.device": "cpu", "evaluation.prompts": 24,
    "sampling.max_new_tokens": 60,
}  # fmt: skip


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "small"
    save(
        Policy(tiny.untrained(hidden=32, layers=2, heads=2, inner=64), tiny.tokenizer()),
        folder,
    )
    return folder


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "chat"
    save(Policy(model(length=2048), tokenizer()), folder)
    return folder


def test_a_policy_learns_over_several_turns(small, tmp_path):
    run = bestofk.train(
        small, ROWS, environment=Digits, objective="max@4", samples_per_prompt=8, steps=12,
        evaluate_every=12, dir=tmp_path / "run", settings=SETTINGS,
    )  # fmt: skip
    lines = [line for line in run.metrics if line["kind"] == "train"]
    assert run.config.task.environment == f"{__name__}:Digits"
    assert run.final.rewards.mean() > run.start.rewards.mean() + 0.2
    for line in lines:
        assert sum(line["ended_by"].values()) == pytest.approx(1.0)
        assert line["unscored"] == 0
        assert 1.0 <= line["turns"] <= 3.0
        assert line["sampler_gap_max"] < 1e-3
    assert lines[-1]["ended_by"]["environment"] > 0.8
    rows = [row for file in (run.path / "samples").glob("*") for row in read_jsonl(file)]
    talks = [row for row in rows if row["turns"] == 3]
    assert [message["role"] for message in talks[0]["messages"]] == ["assistant", "user"] * 2 + [
        "assistant"
    ]
    assert talks[0]["completion"] == talks[0]["messages"][-1]["content"]
    drawn = run.sample(n=4, prompts=6)
    (file,) = (run.path / "evaluations-final").glob("*.jsonl")
    rows = list(read_jsonl(file))
    assert (len(drawn.problems), drawn.rewards.size, len(rows)) == (6, 24, 24)
    for row in rows:
        said = [each["content"] for each in row["messages"] if each["role"] == "assistant"]
        heard = said if row["ended_by"] == "environment" else said[:-1]  # the last was cut off
        assert row["reward"] == heard.count("") / 3
        assert (row["turns"], row["completion"]) == (len(said), said[-1])
    again = tmp_path / "again.jsonl"
    words = [str(run.path), "--split", "train", "--n", "4", "--problems", "6"]
    assert sample_command.main([*words, "--out", str(again), "--device", "cpu"]) == 0
    shown = [(row["prompt"], row["messages"], row["reward"]) for row in rows]
    assert [(row["prompt"], row["messages"], row["reward"]) for row in read_jsonl(again)] == shown


class Fragile(Digits):
    """Its reward is broken for one question."""

    def reset(self, question: str) -> None:
        self.broken = question == "1="
        super().reset(question)

    def get_reward(self) -> float:
        return 1 / 0 if self.broken else super().get_reward()


def test_a_job_that_was_stopped_judges_what_it_has_drawn_and_draws_the_rest(small, tmp_path):
    """The journal holds each conversation with the environment's own verdict."""
    prompts = {f"p{i}": Prompt(f"p{i}", f"{i}=", "t", {"question": f"{i}="}) for i in range(3)}
    sampling = Sampling(samples_per_prompt=4, max_new_tokens=60, stop=tuple("0123456789"))
    run = {"model": "m", "sampling": {}, "run_id": "r"}

    def draw(out, guard=None):
        with SampleFile(out, run, prompts, OwnReward(), guard) as file:
            missing = file.missing(4)
            if missing:
                model = LocalModel(str(small), device="cpu", environment=as_environment(Fragile))
                model.draw_into(file, missing, sampling=sampling, seed=3)
        return missing

    def lines(out):
        rows = read_jsonl(out)
        return sorted(rows, key=lambda row: (row["problem_id"], row["sample_id"]))

    draw(tmp_path / "quiet.jsonl")
    stopped = tmp_path / "stopped.jsonl"
    with pytest.raises(TooManyUnscored, match="Fragile"):
        draw(stopped, UnscoredGuard(share=0.0))
    assert len(list(read_jsonl(stopped))) < 12
    missing = draw(stopped)
    assert "p0" not in missing
    assert 0 not in missing.get("p1", ())
    assert lines(stopped) == lines(tmp_path / "quiet.jsonl")
    assert {row["problem_id"] for row in lines(stopped) if row["reward"] is None} == {"p1"}


def test_tools_train_with_a_chat_model_off_policy_and_by_name(chat, tmp_path, monkeypatch):
    """The group's weights are exact for batches drawn ahead, in passes of mini-batches; a further
    set is played in the same environment."""
    more = tmp_path / "more.jsonl"
    more.write_text('{"question": "a", "secret": 3}\n{"question": "b", "secret": 7}\n')
    settings = {
        "sampling.max_new_tokens": 80, "off_policy.ahead": 1, "off_policy.mini_batches": 2,
        "task.limits.turn_tokens": 40, "model.device": "cpu", "evaluation.prompts": 4,
        "run.checkpoint_every": 1, "evaluation.sets": {"more": str(more)},
    }  # fmt: skip
    name = "environments.chat_models:Guess"
    run = bestofk.train(
        chat, ROWS, environment=name, objective="max@2", samples_per_prompt=4, prompts_per_step=4,
        steps=3, evaluate_every=3, dir=tmp_path / "run", settings=settings,
    )  # fmt: skip
    (further,) = [line for line in run.metrics if line["kind"] == "evaluation_set" and line["step"]]
    assert (further["set"], further["prompts"]) == ("more", 2)
    lines = [line for line in run.metrics if line["kind"] == "train"]
    assert len(lines) == 3
    assert all(line["tool_calls"] == 0 and line["turns"] == 1.0 for line in lines)
    assert {"answer", "turn_tokens"} >= set(lines[0]["ended_by"]) > set()


def test_a_batch_with_conversations_comes_back_from_a_checkpoint_as_it_was():
    talk = Conversation(
        ({"role": "assistant", "content": "a"}, {"role": "tool", "name": "f", "content": "b"}),
        "turns", 2, 3, 1, Verdict.unscored("no disk"),
    )  # fmt: skip
    each = Trajectory([1, 2, 3], [True, False, True], [-0.5, 0.0, -1 / 3], "a", "length", talk)
    group = Group(Prompt("p", "x", "t"), (each,), (4,))
    batch = RolloutBatch((group,), ((Verdict(1.0, "correct"),),))
    (back,) = QUEUE.validate_json(QUEUE.dump_json([batch]))
    assert back.groups == batch.groups
    assert repr(talk) in repr(back)


def test_a_reward_function_may_read_the_whole_conversation():
    talk = ({"role": "assistant", "content": "a"}, {"role": "user", "content": "b"})
    rows = (
        Trajectory([1], text="a", conversation=Conversation(talk, "turns", 1)),
        Trajectory([1], text="a"),
        Trajectory(
            [1], conversation=Conversation(talk, "turns", 1, verdict=Verdict(0.5, "partial"))
        ),
    )

    def both(completion, messages=()):
        return sum(message["content"] == "b" for message in messages)

    (verdicts,) = judge([Group(Prompt("p", "x", "t"), rows)], from_function(both))
    assert [verdict.reward for verdict in verdicts] == [1.0, 0.0, 0.5]
    made_of_others = scored_by(from_function(len_of), from_function(both))
    (verdicts,) = judge([Group(Prompt("p", "x", "t"), rows[:2])], made_of_others)
    assert [verdict.score for verdict in verdicts] == [1.0, 0.0]


def test_what_cannot_be_trained_is_said_before_the_first_sample(small, chat, tmp_path):
    def begin(folder, environment, **named):
        settings = {"model.device": "cpu", **named.pop("settings", {})}
        bestofk.train(folder, ROWS, environment=environment, steps=1, samples_per_prompt=32,
                      dir=tmp_path / "run", settings=settings, **named)  # fmt: skip

    for environment, named, said in (
        (Guess, {"settings": {"task.options.style": "text"}}, "the prompts for .* are plain text"),
        (Guess, {"reward": len_of}, "gives its own rewards .* leave it out"),
        ([Guess().guess], {}, "has no get_reward"),
        (Guess, {"settings": {"sampling.engine": "group"}}, "needs a CUDA GPU"),
        (Guess, {"settings": {"evaluation.sets": {"maze": "maze"}}}, "reset of Guess takes secret"),
        ("pyton", {}, "unknown environment 'pyton'; did you mean 'python'"),
        ("nowhere.py:Guess", {}, "no file"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=said):
            begin(chat, environment, **named)
        assert not list((tmp_path / "run").glob("metrics.jsonl"))


def test_a_row_that_cannot_be_played_is_said_before_the_first_sample(chat, tmp_path):
    played = []

    class Played(Guess):
        def reset(self, secret):  # type: ignore[override]
            played.append(secret)

    lacking = [*ROWS, *({"question": f"{i}?"} for i in range(4))]
    strange = [row | {"environment": "abc"[i // 15]} for i, row in enumerate(ROWS)]
    for rows, environment, said in (
        (lacking, Played, "reset of Played takes secret"),
        (strange, {"a": Played, "b": Played}, r"unknown environment of 'dataset/\w+' 'c'"),
    ):
        with pytest.raises(ValueError, match=said):
            bestofk.train(chat, rows, environment=environment, steps=1, dir=tmp_path / said[:5])
        assert not played


def test_a_dry_run_opens_the_environment_too(chat, tmp_path, capsys):
    """Nobody looks for a verifier where the environment pays."""
    rows = tmp_path / "rows.jsonl"

    def dry(row, environment):
        rows.write_text(f"{json.dumps(row)}\n" * 2)
        words = ["--task.name=dataset", f"--task.options.train={rows}", f"--model.path={chat}"]
        words += [f"--task.environment=environments.chat_models:{environment}", "--dry-run"]
        assert train_command.main([*words, "--model.device=cpu"]) == 0

    dry({"question": "Which?", "secret": 7}, "Guess")
    assert "judged by get_reward of environments.chat_models:Guess" in capsys.readouterr().out
    with pytest.raises(ValueError, match="reset of Guess takes secret, and the row of"):
        dry({"question": "Which?"}, "Guess")
    with pytest.raises(ValueError, match="Gues"):
        dry({"question": "Which?", "secret": 7}, "Gues")


def len_of(completion):
    return len(completion)


def test_an_environment_may_lie_beside_its_recipe(tmp_path, monkeypatch):
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("")
    (tmp_path / "run.toml").write_text('task.environment = "x=a.py:A, y=b.py:B, z=c.py:C"')
    monkeypatch.chdir("/")
    found = stated_by(str(tmp_path / "run.toml"), {}).task.environment
    assert found == f"x={tmp_path}/a.py:A, y={tmp_path}/b.py:B, z=c.py:C"


def test_a_step_says_that_tools_fail_and_replies_do_not_fit():
    line = {"groups": 4, "at_length_limit": 0.0, "ended_by": {"length": 0.75, "answer": 0.25}}
    assert groups_text(line) == "signal 0/4 groups, 75% cut off"
    line |= {"tool_errors": 5.78125, "ended_by": {"answer": 1.0}}
    assert groups_text(line) == "signal 0/4 groups, 5.781 tool errors a trajectory"


def test_sampling_says_why_nothing_is_scored(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("odd.py").write_text(
        "class Odd:\n    def reset(self):\n        pass\n"
        "    def __call__(self, text):\n        return None\n"
        "    def get_reward(self):\n        return 1 / 0\n"
    )
    words = (
        "--task countdown --environment odd.py:Odd --problems 1 --n 2 --device cpu --out a.jsonl"
    )
    assert sample_command.main(["tiny-countdown", *words.split(" ")]) == 0
    said = capsys.readouterr().err
    assert "2 samples could not be scored, 2 of them because Odd.get_reward raised at" in said
    assert "ZeroDivisionError" in said

"""Options people expect of a trainer: overlong penalty, prompts by pass rate, push to the Hub."""

import json
import math
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from bestofk.api.training_run import TrainedRun
from bestofk.cli import main
from bestofk.config import Config, RunAdvanced, merged, read
from bestofk.rewards import combined
from bestofk.runs import read_metrics
from bestofk.tasks import task
from bestofk.training.batch import with_overlong_penalty
from bestofk.training.record import push_final
from bestofk.training.task_setup import make_prompts, with_pass_rates
from bestofk.training.train import train
from bestofk.types import Completion, Group, Prompt, Verdict


def group_of_lengths(*lengths):
    completions = tuple(Completion("x", tokens=(1,) * length) for length in lengths)
    return Group(Prompt("p", "?", "t"), completions)


def test_the_overlong_penalty_is_linear_below_the_limit():
    group = group_of_lengths(80, 90, 100, 100, 95)
    verdicts = [
        Verdict(1.0, "correct"),
        Verdict(1.0, "correct"),
        Verdict(1.0, "correct"),
        Verdict(0.0, "timeout"),
        Verdict.unscored("broken"),
    ]
    (row,) = with_overlong_penalty([group], [verdicts], limit=100, buffer=20, penalty=1.0)
    assert [v.reward for v in row[:4]] == [1.0, 0.5, 0.0, -1.0]
    assert [v.status for v in row] == ["correct", "partial", "incorrect", "timeout", "unscored"]
    assert math.isnan(row[4].reward)
    assert (
        with_overlong_penalty([group], [verdicts], limit=100, buffer=0, penalty=1.0)[0][2]
        == (verdicts[2])
    )


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
    kept = with_pass_rates(countdown, "train", str(file), low=0.01, high=0.99)
    assert {prompt.id for prompt in kept.split("train")} == {ids[1], ids[2]}
    assert len(kept.split("validation")) == len(countdown.split("validation"))
    with pytest.raises(ValueError, match=r"4 of 6 prompts.*none has a pass rate in \[0.4, 0.6\]"):
        with_pass_rates(countdown, "train", str(file), low=0.4, high=0.6).split("train")


def test_rewards_of_minus_one_and_one_train_and_are_evaluated(recipe, tmp_path):
    config = read(recipe(task={"verifier": "training_judges:signed"}, run={"steps": 2}))
    end = train(config)
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
    lines = (train(config).path / "metrics.jsonl").read_text().splitlines()
    found = json.loads(lines[0])["results"]
    assert set(found) == {"max@1", "max@2", "max@4"}
    assert found["max@4"]["value"] > 1.0
    stated = {"threshold": 2.0}
    other = {"steps": 1, "dir": str(tmp_path / "other")}
    config = read(
        recipe(task={"verifier": "training_judges:counted"}, evaluation=stated, run=other)
    )
    lines = (train(config).path / "metrics.jsonl").read_text().splitlines()
    assert 0.0 < json.loads(lines[0])["results"]["pass@4"]["value"] <= 1.0


class StandInServer(ThreadingHTTPServer):
    """What the stand-in for the Hub was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), StandIn)
        self.seen: list[str] = []
        self.tokens: set[str | None] = set()
        self.files: list[str] = []
        self.created: dict[str, Any] = {}


class StandIn(BaseHTTPRequestHandler):
    """As much of the Hub's HTTP interface as an upload of small files uses."""

    server: StandInServer

    def log_message(self, *_):
        pass

    def answer(self, body):
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.server.seen.append(self.path)
        self.answer({"id": "me/model", "sha": "0" * 40, "siblings": [], "private": True})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append(self.path)
        self.server.tokens.add(self.headers.get("Authorization"))
        url = f"http://127.0.0.1:{self.server.server_port}/me/model"
        if self.path.endswith("/repos/create"):
            self.server.created = json.loads(body)
            self.answer({"url": url, "name": "me/model"})
        elif "/preupload/" in self.path:
            files = json.loads(body)["files"]
            modes = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files
            ]
            self.answer({"files": modes})
        elif self.path.endswith("/validate-yaml"):
            self.answer({"errors": [], "warnings": []})
        else:
            for line in body.decode().splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    self.server.files.append(entry["value"]["path"])
            self.answer({"commitUrl": f"{url}/commit/1", "commitOid": "1" * 40, "success": True})


@pytest.fixture
def hub(monkeypatch):
    server = StandInServer()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("HF_ENDPOINT", address)
    monkeypatch.setenv("HF_TOKEN", "hf_standin")
    yield server
    server.shutdown()
    server.server_close()


def finished(tmp_path, **options):
    (tmp_path / "final").mkdir()
    (tmp_path / "final" / "config.json").write_text("{}")
    (tmp_path / "final" / "README.md").write_text("A model.")
    return merged(Config(), {"run": {"dir": str(tmp_path), "advanced": options}})


def test_the_final_model_is_pushed(tmp_path, hub):
    config = finished(tmp_path, push_to_hub="me/model")
    assert (
        push_final(config.run.advanced, tmp_path) == f"http://127.0.0.1:{hub.server_port}/me/model"
    )
    assert (hub.created["name"], hub.created["organization"]) == ("model", "me")
    assert hub.created.get("visibility") == "private" or hub.created.get("private") is True
    assert sorted(hub.files) == ["README.md", "config.json"]
    assert hub.tokens == {"Bearer hf_standin"}
    assert push_final(RunAdvanced(), tmp_path) is None


def test_a_push_that_fails_says_how_to_repeat_it(tmp_path, hub):
    hub.shutdown()
    hub.server_close()
    config = finished(tmp_path, push_to_hub="me/model")
    with pytest.raises(OSError, match=r"run is complete.*hf upload me/model .*/final"):
        push_final(config.run.advanced, tmp_path)


def test_the_start_is_evaluated_unless_told_not_to(recipe, tmp_path):
    """The run is the same otherwise: what is drawn for training does not depend on it."""
    drawn = []
    for name, first in (("with", True), ("without", False)):
        run = {"dir": str(tmp_path / name), "steps": 2}
        evaluation = {"every": 2, "at_start": first}
        config = read(recipe(f"{name}.toml", evaluation=evaluation, run=run))
        train(config)
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
            "options": {"train": str(rows), "ask": False, "style": "text"},
        },
        evaluation={"split": "train", "prompts": 2, "sets": {"again": str(rows), "maze": "maze"}},
    )
    told = []

    def until_five(line):
        told.append(line)
        return line["kind"] == "train" and line["step"] == 5

    config = read(path)
    reward = combined(parts)
    end = train(config, verifier=reward, callback=until_five)
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
    resumed = train(merged(config, {"run.steps": 6}), verifier=reward, resume=True)
    assert resumed.step == 6
    with pytest.raises(ValueError, match=r"has done 6 steps, more than run.steps = 4: raise it"):
        train(merged(config, {"run.steps": 4}), verifier=reward, resume=True)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"task": {"verifier": "training_judges:half"}, "objective": "max@4:none"},
            "all rewards were equal in 3 steps, so nothing is learnt; likely cause: every answer "
            "gets the reward 0.5: it does not tell answers apart",
        ),
        (
            {"evaluation": {"every": 0, "threshold": 30.0}},
            "evaluation.threshold = 30, and the largest reward in 3 steps is",
        ),
    ],
)
def test_rewards_that_teach_nothing_are_said_after_three_steps(recipe, capsys, options, told):
    end = train(read(recipe(**{"evaluation": {"every": 0}, "run": {"steps": 3}} | options)))
    assert end.step == 3
    assert told in capsys.readouterr().out


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
    stream = make_prompts(config).split("train")
    assert max(range(40), key=lambda i: len(stream.at(i).text)) >= 8  # beyond what it would draw
    assert train(config).step == 2
    assert "1 × the prompt is too long for the model" in capsys.readouterr().err

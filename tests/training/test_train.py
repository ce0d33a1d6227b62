"""A run from the recipe to the model: what is written, what is refused, what breaks and how."""

import copy
import json
import re
import sys
import threading

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from bestofk.cli import main
from bestofk.config import merged, read
from bestofk.learning import Learner
from bestofk.runs import read_metrics, read_samples
from bestofk.sampling.decode import ModelSampler
from bestofk.training import setup
from bestofk.training.resolve import resolve
from bestofk.training.train import train


def test_a_run_leaves_a_model_with_its_card_and_the_evidence(
    recipe, tmp_path, small_model, capsys, monkeypatch
):
    monkeypatch.setenv("WANDB_API_KEY", "a-secret-that-must-not-appear")
    config = read(recipe(run={"steps": 3}, evaluation={"every": 3}))
    outcome = train(resolve(config))
    run = tmp_path / "run"
    assert (outcome.path, outcome.step, outcome.signal) == (run, 3, None)
    model = AutoModelForCausalLM.from_pretrained(run / "final")
    start = AutoModelForCausalLM.from_pretrained(small_model)
    moved = [not torch.equal(a, b) for a, b in zip(model.parameters(), start.parameters())]
    assert all(moved)
    assert AutoTokenizer.from_pretrained(run / "final")("1 2 = 3:")["input_ids"]
    card = (run / "final" / "README.md").read_text()
    for fact in ("**max@4**", "k = 4", "n = 8", "countdown", "pass@1", "step 3", "95%"):
        assert fact in card, fact
    assert re.search(r"\| max@4 \| 0\.\d{3} \[0\.\d{3}, [01]\.\d{3}\] \| 0\.\d{3} \[", card)

    lines = read_metrics(run)
    assert [(line["kind"], line["step"]) for line in lines] == [
        ("evaluation", 0), ("train", 1), ("train", 2), ("train", 3), ("evaluation", 3)
    ]  # fmt: skip
    assert set(lines[0]["results"]) == {
        f"{name}@{k}" for name in ("pass", "max") for k in (1, 2, 4)
    }
    assert all(c["low"] <= c["value"] <= c["high"] for c in lines[0]["results"].values())
    step = lines[1]
    for name in ("reward", "pass@1", "max@4", "groups_with_signal", "groups_no_signal", "entropy",
                 "groups_dropped", "unscored", "sampler_gap_mean", "grad_norm", "lr"):  # fmt: skip
        assert isinstance(step[name], int | float), name
    assert step["sampler_gap_max"] < 1e-4
    sampling = step["sampling_tokens_per_second"] * step["seconds"]["sample"]
    assert sampling == pytest.approx(step["sampled_tokens"])
    assert step["groups_with_signal"] + step["groups_no_signal"] == 4
    rows = list(read_samples(run))
    assert len(rows) == 3 * 4 * 8
    first = [row for row in rows if row["step"] == 1]
    assert np.mean([row["reward"] for row in first]) == pytest.approx(step["reward"])
    assert {"prompt", "completion", "reward", "status", "weight"} <= rows[0].keys()
    assert "step 3/3" in capsys.readouterr().out
    assert read(run / "config.toml") == config
    facts = json.loads((run / "environment.json").read_text())
    assert facts["versions"]["torch"] == torch.__version__
    for file in run.rglob("*"):
        assert file.is_dir() or b"a-secret-that-must-not-appear" not in file.read_bytes()


def test_a_run_says_and_keeps_the_learning_rate_that_nobody_stated(recipe, tmp_path, capsys):
    stated = read(recipe(run={"steps": 1}, evaluation={"every": 0}))
    train(resolve(merged(stated, {"optimizer": {"learning_rate": None, "warmup_steps": 0}})))
    assert "a step, learning rate 0.0001, 1 process" in capsys.readouterr().out
    assert read(tmp_path / "run" / "config.toml").optimizer.learning_rate == 1e-4
    assert read_metrics(tmp_path / "run")[0]["lr"] == 1e-4


def test_the_best_model_by_the_named_metric_is_kept(recipe, tmp_path):
    config = read(recipe(evaluation={"every": 2, "prompts": 8, "best_by": "max@4"}))
    train(resolve(config))
    run = tmp_path / "run"
    found = {
        line["step"]: line["results"]["max@4"]["value"]
        for line in read_metrics(run)
        if line["kind"] == "evaluation"
    }
    best = max(found, key=lambda step: (found[step], -step))
    assert best > 0, "a reward for digits is learned in a few steps"
    note = json.loads((run / "best.json").read_text())
    assert (note["step"], note["value"], note["metric"]) == (best, found[best], "max@4")
    AutoModelForCausalLM.from_pretrained(run / "best")


def test_a_broken_step_is_stopped_with_its_batch_saved_and_the_model_unharmed(recipe, tmp_path):
    config = read(
        recipe(run={"steps": 5, "checkpoint_every": 1}, optimizer={"learning_rate": 1e30})
    )
    with pytest.raises(ValueError, match="stopped before it changed the weights") as caught:
        train(resolve(config))
    run = tmp_path / "run"
    broken = next((run / "failed").iterdir())
    assert str(broken) in str(caught.value)
    rows = [json.loads(line) for line in (broken / "batch.jsonl").read_text().splitlines()]
    assert len(rows) == 4 * 8
    assert len(rows[0]["token_ids"]) == len(rows[0]["logprobs"]) == rows[0]["tokens"]
    assert "NonFinite" in (broken / "error.txt").read_text()
    assert not (run / "final").exists()
    step = int(broken.name[5:])
    assert [line["step"] for line in read_metrics(run)][-1] == step - 1


def test_an_exploding_gradient_stops_the_run_before_it_does_harm(recipe, tmp_path):
    config = read(recipe(run={"advanced": {"stop_grad_norm": 1e-6}}, evaluation={"every": 0}))
    with pytest.raises(ValueError, match="stopped before it changed the weights"):
        train(resolve(config))
    assert (tmp_path / "run" / "failed" / "step-000001" / "batch.jsonl").exists()


def test_a_verifier_that_breaks_stops_the_run_and_is_never_a_zero(recipe, tmp_path):
    config = read(recipe(task={"verifier": "training_judges:broken"}, evaluation={"every": 0}))
    with pytest.raises(RuntimeError, match="could not be scored"):
        train(resolve(merged(config, {"task.advanced.unscored_share": 0.01})))
    # With a few allowed, they are counted, shown, and left out.
    some = merged(config, {"task.verifier": "training_judges:sometimes", "run.steps": 2})
    some = merged(some, {"task.advanced.unscored_share": 0.9})
    train(resolve(merged(some, {"run.dir": str(tmp_path / "some")})))
    lines = read_metrics(tmp_path / "some")
    assert sum(line["unscored"] for line in lines) > 0
    rows = list(read_samples(tmp_path / "some"))
    lost = [row for row in rows if row["status"] == "unscored"]
    assert lost
    assert all(row["reward"] is None and row["weight"] == 0.0 for row in lost)


@pytest.mark.parametrize(
    "sections",
    [
        {"objective": "passk-training@4:adaptive", "objective_options": {"threshold": 0.8},
         "loss": {"name": "gspo", "entropy_bonus": 0.01}},
        {"model": {"lora_rank": 2}, "off_policy": {"passes": 2}, "loss": {"kl": 0.1},
         "objective_options": {"off_policy": "first-order"}},
        {"objective": "pass@4", "objective_options": {"threshold": 0.8}, "sampling": {"refill": 2}},
        {"off_policy": {"passes": 2},
         "objective_options": {"truncate": 0.5, "self_normalise": True}},
        {"loss": {"name": "clipped"}, "sampling": {"top_p": 0.9},
         "off_policy": {"correct_sampler": True}},
    ],
    ids=lambda sections: str(sections)[:60],
)  # fmt: skip
def test_every_way_of_training_trains(recipe, tmp_path, sections):
    config = read(recipe(**sections, run={"steps": 2}, evaluation={"every": 0}))
    train(resolve(config))
    line = read_metrics(tmp_path / "run")[-1]
    assert line["step"] == 2
    assert line["grad_norm"] > 0
    assert (line["refilled"] > 0) == ("refill" in sections.get("sampling", {}))
    AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "final")


def test_batches_are_drawn_ahead_after_the_warm_up(recipe, tmp_path):
    """Batch t with the weights after step t - 1 - s, whatever is evaluated or saved in between."""
    train(resolve(read(recipe(off_policy={"ahead": 2}))))
    lines = [line for line in read_metrics(tmp_path / "run") if line["kind"] == "train"]
    assert [line["drawn_after"] for line in lines] == [0, 1, 2, 2, 2, 3, 4]
    assert ["ess" in line for line in lines] == [False] * 3 + [True] * 4
    assert all(line["ess"] < 1 for line in lines[3:])
    assert all(line["sampler_gap_mean"] < 1e-5 for line in lines)  # of the weights that drew
    assert "sampling_tokens_per_second" in lines[0]
    assert "sampling_tokens_per_second" not in lines[-1]  # nothing was left to draw
    # the first three steps are those of a run on policy
    train(resolve(read(recipe(run={"dir": str(tmp_path / "other"), "steps": 3}))))
    others = [line for line in read_metrics(tmp_path / "other") if line["kind"] == "train"]
    assert [line["loss"] for line in others] == [line["loss"] for line in lines[:3]]


class Server(ModelSampler):
    """A sampler with weights of its own, as a server has them; it may wait for the learner."""

    version = None

    def __init__(self, policy, learning=None):
        super().__init__(copy.deepcopy(policy.model), policy.tokenizer)
        self.learning, self.waited = learning, 0

    def update(self, weights, *, version=0):
        own = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, tensor in weights:
                own[name].copy_(tensor)
        self.version = version

    def sample(self, prompts, **named):
        if threading.current_thread() is not threading.main_thread() and self.learning:
            assert self.learning.acquire(timeout=300)
            self.waited += 1
        return super().sample(prompts, **named)

    def wait(self):
        pass

    close = wait


def test_a_server_draws_while_the_learner_works_and_nothing_else_changes(
    recipe, tmp_path, monkeypatch
):
    """Batches ahead are not drawn before a step has begun: in turns, that would wait for ever."""
    config = read(recipe(off_policy={"ahead": 1, "correct_sampler": True}))
    learning, servers = threading.Semaphore(1), []  # the first batch waits for no step
    step, weights = Learner.step, {}

    def announced(learner, *args, **named):
        learning.release()
        return step(learner, *args, **named)

    def served(sampling, model, policy, device):
        servers.append(Server(policy, learning))
        return servers[-1]

    train(resolve(merged(config, {"run.dir": str(tmp_path / "turns")})))
    monkeypatch.setattr(setup, "make_sampler", served)
    monkeypatch.setattr(Learner, "step", announced)
    train(resolve(merged(config, {"run.dir": str(tmp_path / "overlap")})))
    for name in ("turns", "overlap"):
        weights[name] = load_file(tmp_path / name / "final" / "model.safetensors")
    assert all(torch.equal(w, weights["overlap"][name]) for name, w in weights["turns"].items())
    assert servers[0].waited == 7


def test_shards_in_one_process_train_like_a_plain_model(recipe, tmp_path):
    config = read(recipe(run={"steps": 3}, off_policy={"passes": 2}))
    train(resolve(config))
    sharded = merged(config, {"model.advanced.fsdp": True, "run.dir": str(tmp_path / "sharded")})
    train(resolve(merged(sharded, {"run.steps": 1})))
    assert not torch.distributed.is_initialized()
    train(resolve(sharded, resume=True))
    plain, other = (load_file(tmp_path / name / "final" / "model.safetensors")
                    for name in ("run", "sharded"))  # fmt: skip
    for name, weight in plain.items():
        torch.testing.assert_close(weight, other[name], rtol=0, atol=1e-5)


def test_what_cannot_work_is_refused_before_torch_is_imported(recipe, command):
    """k too large for n, in a process of its own: nothing heavy was loaded to find out."""
    path = recipe(objective="max@8")
    code = (
        "import sys; from bestofk.cli import main; code = main(['train', sys.argv[1]]); "
        "print(code, 'torch' in sys.modules)"
    )
    done = command("-c", code, path, cold=True)
    assert done.stdout.strip() == "2 False", done.stderr
    assert "max@8 needs more than 8 samples per prompt, got 8" in done.stderr
    assert "max@8:loo-1" in done.stderr


def test_a_run_is_not_written_over(recipe, tmp_path, capsys):
    path = recipe(optimizer={"warmup_steps": 100}, run={"steps": 1}, evaluation={"every": 0})
    assert main(["train", str(path)]) == 0
    assert "does not reach optimizer.learning_rate" in capsys.readouterr().out
    assert main(["train", str(path)]) == 2
    assert "--resume" in capsys.readouterr().err
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0
    assert main(["train", "--resume", str(tmp_path)]) == 2
    assert "is not a run" in capsys.readouterr().err
    newest = max((tmp_path / "run" / "checkpoints").iterdir())
    assert main(["train", "--resume", str(newest)]) == 0
    assert main(["train", "--resume", str(newest), "--optimizer.learning-rate", "1"]) == 2
    assert "optimizer.learning_rate" in capsys.readouterr().err


def test_a_run_that_never_began_stands_in_nobody_s_way(recipe, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("BESTOFK_QUIET", "")
    path = recipe(run={"steps": 1}, evaluation={"every": 0})
    for words, message in (
        (["--task.name", "cuntdown"], "did you mean 'countdown'"),
        (["--task.options.train-sizes", "4"], "did you mean 'train_size'"),
        (["--task.verifier", "training_judges:digts"], "digts"),
        (["--model.path", str(tmp_path / "nowhere")], "no model"),
        (["--model.path", "runs/mbpp-start"], "recipes/supervised-start"),
        (["--model.path", "tiny-countdwn"], "did you mean 'tiny-countdown'"),
        (["--dryrun"], "did you mean --dry-run?"),
        (["--resum", "x"], "did you mean --resume?"),
    ):
        assert main(["train", str(path), *words]) == 2
        assert message in capsys.readouterr().err, words
    assert main(["train", str(path), "--quiet"]) == 0  # in the folder that the others left
    shown = capsys.readouterr().out
    assert "step 1/1" not in shown
    assert "done: " in shown
    assert read(tmp_path / "run" / "config.toml") == read(path)


def test_a_dry_run_says_what_it_takes_and_writes_nothing(recipe, tmp_path, capsys):
    path = recipe()
    assert main(["train", str(path), "--dry-run", "--run.dir", str(tmp_path / "dry")]) == 0
    said = capsys.readouterr().out
    for fact in ("objective = 'max@4'", "k up to 7", "GiB", "24,928 weights", "224 in 7 steps"):
        assert fact in said, fact
    assert not (tmp_path / "dry").exists()
    main(["train", str(path), "--dry-run", "--sampling.samples-per-prompt", "1000000000"])
    assert "sampling.samples_per_prompt is at most 1e+07" in capsys.readouterr().err
    assert main(["train", str(path), "--dry-run", "--objective", "max@8"]) == 2
    assert "judged by the verifier training_judges:digits\n" in said
    capsys.readouterr()
    assert main(["train", str(path), "--dry-run", "--task.verifier", "countdown"]) == 0
    assert "judged by the verifier countdown\n" in capsys.readouterr().out
    assert main(["train", str(path), "--dry-run", "--task.verifier", "exact"]) == 2
    assert "verifier exact needs expected, and the row of" in capsys.readouterr().err
    for role in ("scorer", "held-out"):
        assert main(["train", str(path), "--dry-run", f"--task.{role}", "exakt"]) == 2
        assert "did you mean 'exact'?" in capsys.readouterr().err
    assert main(["train", str(path), "--dry-run", "--task.verifier", "exakt"]) == 2
    assert "did you mean 'exact'?" in capsys.readouterr().err


def test_a_step_is_one_line_that_fits_the_terminal(recipe, monkeypatch, capsys, tmp_path):
    from bestofk.training import display

    monkeypatch.setenv("COLUMNS", "80")
    for on_terminal in (True, False):
        monkeypatch.setattr(sys.stdout, "isatty", lambda on=on_terminal: on, raising=False)
        run = {"steps": 1, "dir": str(tmp_path / f"{on_terminal}")}
        train(resolve(read(recipe(run=run, evaluation={"every": 0}))))
    short, whole = [line for line in capsys.readouterr().out.splitlines() if "to go" in line]
    assert len(short) <= 80
    assert short.startswith("step 1/1  0:00:00 to go  reward ")
    for fact in ("groups", "entropy", "tok/s (sampling ", "gap", "sample", "learn"):
        assert fact in whole, fact
    assert display.clock(3725.4) == "1:02:05"
    assert [display.number(v) for v in (None, float("nan"), 0.0, 0.5, 0.0012)] == [
        "–", "–", "0.000", "0.500", "1.2e-03"
    ]  # fmt: skip

"""A run from the recipe to the model: what is written, what is refused, what breaks and how."""

import json
import re
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from bestofk.cli import main
from bestofk.config import read, replaced
from bestofk.runs import read_metrics, read_samples
from bestofk.training.train import train

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_run_leaves_a_model_with_its_card_and_the_evidence(recipe, tmp_path, small_model, capsys):
    config = read(recipe(run={"steps": 3}, evaluation={"every": 3}))
    outcome = train(config)
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
    assert step["groups_with_signal"] + step["groups_no_signal"] == 4
    rows = list(read_samples(run))
    assert len(rows) == 3 * 4 * 8
    first = [row for row in rows if row["step"] == 1]
    assert np.mean([row["reward"] for row in first]) == pytest.approx(step["reward"])
    assert {"prompt", "completion", "reward", "status", "weight"} <= rows[0].keys()
    assert "step 3/3" in capsys.readouterr().out


def test_a_run_s_folder_says_what_made_it_and_no_secrets(recipe, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "a-secret-that-must-not-appear")
    config = read(recipe(run={"steps": 1}))
    train(config)
    run = tmp_path / "run"
    assert read(run / "config.toml") == config
    facts = json.loads((run / "environment.json").read_text())
    assert facts["versions"]["torch"] == torch.__version__
    for file in run.rglob("*"):
        if file.is_file():
            assert b"a-secret-that-must-not-appear" not in file.read_bytes()


def test_the_best_model_by_the_named_metric_is_kept(recipe, tmp_path):
    config = read(
        recipe(evaluation={"every": 2, "prompts": 8}, run={"options": {"best_by": "max@4"}})
    )
    train(config)
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
    AutoModelForCausalLM.from_pretrained(run / note["path"])


def test_a_broken_step_is_stopped_with_its_batch_saved_and_the_model_unharmed(recipe, tmp_path):
    config = read(
        recipe(run={"steps": 5, "checkpoint_every": 1}, optimizer={"learning_rate": 1e30})
    )
    with pytest.raises(ValueError, match="stopped before it changed the weights") as caught:
        train(config)
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
    config = read(recipe(run={"options": {"stop_grad_norm": 1e-6}}, evaluation={"every": 0}))
    with pytest.raises(ValueError, match="stopped before it changed the weights"):
        train(config)
    assert (tmp_path / "run" / "failed" / "step-000001" / "batch.jsonl").exists()


def test_a_verifier_that_breaks_stops_the_run_and_is_never_a_zero(recipe, tmp_path):
    config = read(recipe(task={"verifier": "training_judges:broken"}, evaluation={"every": 0}))
    with pytest.raises(RuntimeError, match="could not be scored"):
        train(replaced(config, "run.options.unscored_share", 0.01))
    # With a few allowed, they are counted, shown, and left out.
    some = replaced(replaced(config, "task.verifier", "training_judges:sometimes"), "run.steps", 2)
    some = replaced(some, "run.options.unscored_share", 0.9)
    train(replaced(some, "run.dir", str(tmp_path / "some")))
    lines = read_metrics(tmp_path / "some")
    assert sum(line["unscored"] for line in lines) > 0
    rows = list(read_samples(tmp_path / "some"))
    lost = [row for row in rows if row["status"] == "unscored"]
    assert lost
    assert all(row["reward"] is None and row["weight"] == 0.0 for row in lost)


@pytest.mark.parametrize(
    "sections",
    [
        {"loss": {"kl": 0.1}},
        {"loss": {"name": "gspo", "entropy_bonus": 0.01}},
        {"model": {"lora_rank": 2}, "off_policy": {"passes": 2},
         "objective_options": {"off_policy": "first-order"}},
        {"objective": "pass@4", "objective_options": {"threshold": 0.8}, "sampling": {"refill": 2}},
        {"objective": "passk-training@4:adaptive", "objective_options": {"threshold": 0.8}},
        {"off_policy": {"passes": 2},
         "objective_options": {"truncate": 0.5, "self_normalise": True}},
        {"loss": {"name": "clipped"}, "sampling": {"top_p": 0.9},
         "off_policy": {"correct_sampler": True}},
    ],
    ids=lambda sections: str(sections)[:60],
)  # fmt: skip
def test_every_way_of_training_trains(recipe, tmp_path, sections):
    config = read(recipe(**sections, run={"steps": 2}, evaluation={"every": 0}))
    train(config)
    line = read_metrics(tmp_path / "run")[-1]
    assert line["step"] == 2
    assert line["grad_norm"] > 0
    assert (line["refilled"] > 0) == ("refill" in sections.get("sampling", {}))
    AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "final")


def test_shards_in_one_process_train_like_a_plain_model(recipe, tmp_path):
    config = read(recipe(run={"steps": 3}, off_policy={"passes": 2}))
    train(config)
    sharded = replaced(
        replaced(config, "model.options.fsdp", True), "run.dir", str(tmp_path / "sharded")
    )
    train(replaced(sharded, "run.steps", 1))
    assert not torch.distributed.is_initialized()
    train(sharded, resume=True)
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
    done = command("-c", code, path)
    assert done.stdout.strip() == "2 False", done.stderr
    assert "max@8 needs more than 8 samples per prompt, got 8" in done.stderr
    assert "max@8:loo-1" in done.stderr


def test_a_run_is_not_written_over(recipe, tmp_path, capsys):
    path = recipe(run={"steps": 1}, evaluation={"every": 0})
    assert main(["train", str(path)]) == 0
    assert main(["train", str(path)]) == 2
    assert "--resume" in capsys.readouterr().err
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0
    assert main(["train", "--resume", str(tmp_path)]) == 2
    assert "is not a run" in capsys.readouterr().err
    newest = max((tmp_path / "run" / "checkpoints").iterdir())
    assert main(["train", "--resume", str(newest)]) == 0
    assert main(["train", "--resume", str(newest), "--optimizer.learning-rate", "1"]) == 2
    assert "optimizer.learning_rate" in capsys.readouterr().err


def test_a_run_that_never_began_stands_in_nobody_s_way(recipe, tmp_path, capsys):
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
    assert main(["train", str(path)]) == 0  # in the folder that the others left
    assert read(tmp_path / "run" / "config.toml") == read(path)


def test_a_dry_run_says_what_it_takes_and_writes_nothing(recipe, tmp_path, capsys):
    path = recipe()
    assert main(["train", str(path), "--dry-run", "--run.dir", str(tmp_path / "dry")]) == 0
    said = capsys.readouterr().out
    for fact in ("objective = 'max@4'", "k up to 7", "GiB", "24,928 weights", "224 in 7 steps"):
        assert fact in said, fact
    assert not (tmp_path / "dry").exists()
    assert "lower sampling" not in said
    main(["train", str(path), "--dry-run", "--sampling.samples-per-prompt", "1000000000"])
    assert "lower sampling.samples_per_prompt" in capsys.readouterr().out
    assert main(["train", str(path), "--dry-run", "--objective", "max@8"]) == 2


def test_the_live_view_shows_a_run_on_a_terminal(recipe, monkeypatch):
    """rich draws on a console of our own; the loop does not notice."""
    import io

    from rich.console import Console

    from bestofk.training import display

    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    monkeypatch.setattr("rich.console.Console", lambda *a, **k: console)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    train(read(recipe(run={"steps": 2}, evaluation={"every": 2})))
    said = screen.getvalue()
    for fact in (
        "2 / 2",
        "to go",
        "groups",
        "entropy",
        "tokens/s",
        "sample",
        "learn",
        "validation",
    ):
        assert fact in said, fact
    assert display.clock(3725.4) == "1:02:05"
    assert [display.number(v) for v in (None, float("nan"), 0.0, 0.5, 0.0012)] == [
        "–", "–", "0.000", "0.500", "1.2e-03"
    ]  # fmt: skip


def test_quiet_shows_no_steps_and_the_end_all_the_same(recipe, capsys, monkeypatch):
    monkeypatch.setenv("BESTOFK_QUIET", "")
    path = recipe(run={"steps": 2}, evaluation={"every": 0})
    assert main(["train", str(path), "--quiet"]) == 0
    shown = capsys.readouterr().out
    assert "step 1/2" not in shown
    assert "done: " in shown

"""Whole runs on CUDA: resumed with the same draws, two processes on one card, the CPU's curve."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForSequenceClassification

from bestofk.config import read
from bestofk.rewards import verifier
from bestofk.runs import read_metrics, read_samples
from bestofk.tasks import task
from bestofk.training.processes import FP8_FROM
from bestofk.training.resolve import resolve
from bestofk.training.train import train

pytestmark = pytest.mark.gpu

DEVICE = "cuda"


def drawn(folder: Path, step: int) -> list[Any]:
    return [(r["prompt_id"], r["completion"]) for r in read_samples(folder) if r["step"] == step]


@pytest.mark.filterwarnings("ignore:inner dimension .* is not aligned")  # of a tiny policy
@pytest.mark.parametrize(("lora", "packed"), [(0, ""), (2, ""), (2, "lora_nf4"), (2, "lora_fp8")])
def test_a_checkpoint_is_continued_with_the_same_draws(
    recipe: Any, tmp_path: Path, lora: int, packed: str
) -> None:
    """Twice from one checkpoint, evaluation before: the memory plan is the stored one."""
    if packed == "lora_nf4":
        pytest.importorskip("bitsandbytes")
    if packed == "lora_fp8" and torch.cuda.get_device_capability() < FP8_FROM:
        pytest.skip("this GPU has no products in FP8")
    section = {"device": DEVICE, "precision": "bf16", "lora_rank": lora}
    sections: dict[str, Any] = {
        "model": {**section, "advanced": {packed: True} if packed else {}},
        "evaluation": {"every": 2, "prompts": 8, "samples_per_prompt": 16},
    }
    folders = []
    train(resolve(read(recipe("a.toml", **sections, run={"dir": str(tmp_path / "a"), "steps": 2}))))
    for name in ("b", "c"):
        folders.append(tmp_path / name)
        shutil.copytree(tmp_path / "a", folders[-1])
        asked = recipe(f"{name}.toml", **sections, run={"dir": str(folders[-1]), "steps": 4})
        train(resolve(read(asked), resume=True))
    b, c = folders
    assert drawn(b, 3) == drawn(c, 3) != []
    lines = [line for line in read_metrics(b) if line["kind"] == "train"]
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert max(line["sampler_gap_mean"] for line in lines) < 0.1
    if DEVICE == "cuda":
        plans = [json.loads((f / "engine.json").read_text()) for f in (tmp_path / "a", b)]
        assert plans[0] == plans[1]


def test_the_learning_curve_is_the_cpus(recipe: Any, tmp_path: Path) -> None:
    """Three seeds of a tiny policy: that it learns, and where it ends, is the same on either."""
    ends: dict[str, list[float]] = {}
    for device in (DEVICE, "cpu"):
        for seed in range(3):
            name = f"{device}-{seed}"
            sections: dict[str, Any] = {
                "model": {"device": device},
                "sampling": {"prompts_per_step": 8, "samples_per_prompt": 16},
                "evaluation": {"every": 0},
                "run": {"dir": str(tmp_path / name), "steps": 40, "seed": seed},
            }
            train(resolve(read(recipe(f"{name}.toml", **sections))))
            rewards = [line["reward"] for line in read_metrics(tmp_path / name)]
            assert np.mean(rewards[-10:]) > np.mean(rewards[:5]) + 0.1
            ends.setdefault(device, []).append(float(np.mean(rewards[-10:])))
    ours, theirs = np.array(ends[DEVICE]), np.array(ends["cpu"])
    spread = float(np.sqrt((ours.var(ddof=1) + theirs.var(ddof=1)) / 3))
    assert abs(ours.mean() - theirs.mean()) <= 3 * spread + 0.03


def test_a_reward_model_beside_the_engine_pays_what_it_pays_alone(
    recipe: Any, small_model: Path, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(small_model)
    config = LlamaConfig(  # type: ignore[call-arg]
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, num_labels=1, initializer_range=0.3,
    )  # fmt: skip
    LlamaForSequenceClassification(config).save_pretrained(tmp_path / "judge")
    tokenizer.save_pretrained(tmp_path / "judge")
    judge = f"reward-model:{tmp_path / 'judge'}"
    sections = {"model": {"device": DEVICE}, "task": {"verifier": judge}}
    asked = resolve(read(recipe("judged.toml", **sections)))
    train(asked)
    rows = list(read_samples(tmp_path / "run"))
    problems = task("countdown", style="compact", train_size=40)
    prompts = {prompt.id: prompt for prompt in problems.split("train")}
    alone = verifier(judge, device="cpu")(
        [prompts[row["prompt_id"]] for row in rows], [row["completion"] for row in rows]
    )
    paid = np.array([row["reward"] for row in rows])
    assert paid.std() > 0.1
    np.testing.assert_allclose(paid, [each.reward for each in alone], atol=0.05 * paid.std() + 0.05)


def test_two_processes_share_one_card(
    recipe: Any, command: Any, last_json: Any, tmp_path: Path
) -> None:
    """Each samples its own groups; both plan for half of the card."""
    path = recipe(model={"device": "auto", "precision": "bf16"}, run={"steps": 2})
    plan = json.dumps({"two": [[2, False, 2]], "one": [[1, False, 2]], "shards": [[2, True, 2]]})
    # Cold: bitsandbytes starts CUDA when it is imported, which a forked process cannot do again.
    done = command("tests/training/ranks.py", path, tmp_path, plan, "gpu", cold=True)
    logs = "".join(file.read_text() for file in sorted(tmp_path.glob("*.log.*")))
    assert done.returncode == 0, done.stderr + logs
    assert last_json(done.stdout) == {"two": [[0, 0]], "one": [[0]], "shards": [[1, 1]]}, logs
    assert "model.advanced.fsdp needs a GPU for each process" in logs
    two, one = (json.loads((tmp_path / n / "engine.json").read_text()) for n in ("two", "one"))
    assert (two["processes_on_the_card"], one["processes_on_the_card"]) == (2, 1)
    ids = [sorted({r["prompt_id"] for r in read_samples(tmp_path / n)}) for n in ("two", "one")]
    assert ids[0] == ids[1]

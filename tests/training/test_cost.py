"""What `--dry-run` says a run needs, against what runs took."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen2Config

from bestofk.config import Config, merged
from bestofk.learning import Learner
from bestofk.models import Lora, load, load_tokenizer
from bestofk.models.load import with_adapters
from bestofk.tasks.countdown import countdown
from bestofk.training.cost import dry_run, memory_lines, open_data, prompt_tokens
from bestofk.training.footprint import CUDA, GIB, footprint
from bestofk.training.resolve import resolve

WORK = """
import json, re, sys
import numpy as np, torch
from transformers import LlamaConfig, LlamaForCausalLM
from bestofk.config import read
from bestofk.learning import Learner
from bestofk.models import Policy, describe, save, tiny
from bestofk.training.footprint import footprint
from bestofk.training.setup import load_policy
from bestofk.types import Trajectory, Group, Prompt

torch.set_num_threads(1)
recipe, folder = sys.argv[1:]
shape = dict(hidden_size=512, intermediate_size=1536, num_hidden_layers=6, num_attention_heads=8,
             num_key_value_heads=2, vocab_size=16_000, eos_token_id=1, pad_token_id=0)
save(Policy(LlamaForCausalLM(LlamaConfig(**shape)), tiny.tokenizer()), folder)
config = read(recipe)
said = sum(footprint(config.model, config.sampling, describe(folder)).values())
policy, _ = load_policy(config.model, "cpu")
P, n, new = 4, 8, config.sampling.max_new_tokens
rng = np.random.default_rng(0)
def ids(count):
    return tuple(rng.integers(2, 16_000, count).tolist())
def answers():
    return tuple(Trajectory(ids(new)) for _ in range(n))
groups = [Group(Prompt(str(p), "", "t"), answers(), ids(256)) for p in range(P)]
learner = Learner(policy.model)
for _ in range(2):
    learner.step(groups, rng.normal(size=(P, n)))
with open("/proc/self/status") as status:  # rusage would begin with the peak of the test's process
    took = int(re.search("VmHWM:\\s+(\\d+)", status.read())[1]) * 1024
print(json.dumps({"said": said, "took": took}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 16])
def test_the_memory_a_dry_run_states_is_what_a_step_takes(tmp_path: Path, rank: int) -> None:
    """With what is freed given back at once: what the C library keeps of it instead, up to two
    fifths more, depends on the machine."""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        f'[model]\npath = "{tmp_path / "model"}"\nlora_rank = {rank}\n'
        "[sampling]\nprompts_per_step = 4\nsamples_per_prompt = 8\nmax_new_tokens = 48\n"
    )
    command = [sys.executable, "-c", WORK, str(recipe), str(tmp_path / "model")]
    given_back = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, **given_back}
    )
    line = json.loads(done.stdout.splitlines()[-1])
    assert line["said"] == pytest.approx(line["took"], rel=0.15), line


def shape(parameters: int, layers: int, hidden: int, inner: int, heads: str, size: int,
          vocabulary: int) -> dict[str, Any]:  # fmt: skip
    own, shared = map(int, heads.split("/"))
    return {
        "parameters": parameters, "layers": layers, "hidden": hidden, "inner": inner,
        "heads": own, "kv_heads": shared, "head_dim": size, "vocabulary": vocabulary,
    }  # fmt: skip


SHAPES = {
    "SmolLM2-135M": shape(134_515_008, 30, 576, 1_536, "9/3", 64, 49_152),
    "Qwen2.5-1.5B": shape(1_543_714_304, 28, 1_536, 8_960, "12/2", 128, 151_936),
    "Qwen2.5-3B": shape(3_085_938_688, 36, 2_048, 11_008, "16/2", 128, 151_936),
    "Qwen2.5-7B": shape(7_615_616_512, 28, 3_584, 18_944, "28/4", 128, 152_064),
}


def on_gpu(name: str, rank: int, new: int, **options: Any) -> Config:
    """32 prompts of 16 samples in bf16."""
    model = {"path": name, "precision": "bf16", "lora_rank": rank, "advanced": options}
    sampling = {"prompts_per_step": 32, "samples_per_prompt": 16, "max_new_tokens": new}
    return Config(model=model, sampling=sampling)  # type: ignore[arg-type]


MEASURED = [
    # model, rank, tokens of a micro-batch, prompt and new tokens, GiB of the card, at the peak
    ("SmolLM2-135M", 0, None, 64, 128, 139.8, 24.3),
    ("SmolLM2-135M", 0, None, 64, 128, 22.5, 10.5),
    ("Qwen2.5-1.5B", 0, 10_280, 128, 256, 139.8, 57.6),
    ("Qwen2.5-1.5B", 0, None, 128, 256, 45.5, 40.8),
    ("Qwen2.5-3B", 16, None, 128, 256, 139.8, 40.1),
    ("Qwen2.5-3B", 16, None, 128, 256, 22.5, 15.7),
    ("Qwen2.5-7B", 16, None, 128, 256, 139.8, 51.8),
    ("Qwen2.5-7B", 16, None, 128, 256, 45.5, 29.9),
    ("Qwen2.5-7B", 16, None, 128, 256, 77.0, 39.6),
]
"""Steps on an H200 (benchmarks/gpu_step.py), whole or limited to a part of it, by PyTorch's count
of what it gave out: CUDA itself is not in it. At 1.5B on the whole card, the plan of then."""


@pytest.mark.parametrize(("name", "rank", "budget", "prompt", "new", "card", "took"), MEASURED)
def test_the_memory_stated_for_a_gpu_is_what_a_step_took_there(
    name: str, rank: int, budget: int | None, prompt: int, new: int, card: float, took: float
) -> None:
    config = on_gpu(name, rank, new, tokens_per_micro_batch=budget)
    model, sampling = config.model, config.sampling
    need = footprint(model, sampling, SHAPES[name], card=card * GIB, prompt=prompt)
    said = (sum(need.values()) - CUDA) / GIB
    assert said == pytest.approx(took, rel=0.15)


@pytest.mark.parametrize("card", [22.5, 44.5, 79.2, 139.8])
@pytest.mark.parametrize("name", ["Qwen2.5-3B", "Qwen2.5-7B"])
def test_plans_for_adapters_fit_on_cards_of_24_gb_and_more(name: str, card: float) -> None:
    """With a twentieth to spare, for memory in pieces too small to use."""
    config = on_gpu(name, 16, 256)
    model, sampling = config.model, config.sampling
    need = footprint(model, sampling, SHAPES[name], card=card * GIB, prompt=128)
    assert sum(need.values()) < 0.95 * card * GIB


def test_frozen_weights_in_fp8_take_a_byte_and_are_sampled_from_as_they_are() -> None:
    held = []
    for fp8 in (False, True):
        config = on_gpu("Qwen2.5-7B", 16, 256, lora_fp8=fp8)
        need = footprint(config.model, config.sampling, SHAPES["Qwen2.5-7B"], card=140 * GIB)
        assert not need["copy to sample from"]
        held.append(need["weights"])
    linear = 28 * 3_584 * (2 * (3_584 + 512) + 3 * 18_944)
    assert held[0] - held[1] == linear


def test_rows_that_wait_for_an_environment_are_counted_with_their_keys() -> None:
    """64 of 512 rows are decoded at once; the others' keys stay in memory when they have begun."""
    rows, new, at_once = 512, 256, 64
    config = merged(on_gpu("Qwen2.5-1.5B", 0, new), {"sampling.advanced.max_rows": at_once})
    keys = [
        footprint(
            config.model, config.sampling, SHAPES["Qwen2.5-1.5B"], card=139.8 * GIB,
            several_turns=several_turns,
        )["keys and values"]
        for several_turns in (False, True)
    ]  # fmt: skip
    shape = SHAPES["Qwen2.5-1.5B"]
    token = 2 * shape["layers"] * shape["kv_heads"] * shape["head_dim"] * 2
    assert keys[1] - keys[0] == (rows * new - at_once * new * 13 // 8) * token


def test_a_dry_run_says_for_which_device_it_counts_and_how_long_prompts_are() -> None:
    task, model = {"options": {"style": "compact"}}, {"device": "cpu"}
    config = Config(task=task, model=model)  # type: ignore[arg-type]
    settings = resolve(config, dry=True)
    [_, line] = memory_lines(settings, prompt_tokens(settings, open_data(settings)[0]))
    assert line.startswith("memory on CPU, about")
    prompts = countdown(style="compact").split("train")[:32]
    tokenizer = load_tokenizer("tiny-countdown")
    mean = sum(len(tokenizer(each.text)["input_ids"]) for each in prompts) / 32
    assert line.endswith(f"; prompts of {mean:.0f} tokens")


def test_a_run_with_a_share_of_the_gpu_plans_for_that(tmp_path: Path) -> None:
    """The keys and the micro-batch shrink with it; all of a run is within its share."""
    Qwen2Config(
        hidden_size=896, intermediate_size=4_864, num_hidden_layers=24, num_attention_heads=14,
        num_key_value_heads=2, vocab_size=151_936, tie_word_embeddings=True,
    ).save_pretrained(tmp_path)  # fmt: skip
    config = merged(
        Config(),
        {"model": {"path": str(tmp_path), "device": "cuda", "precision": "bf16"},
         "sampling.max_new_tokens": 512, "task.options.style": "text"},
    )  # fmt: skip
    totals = {}
    for share in (0.25, 0.5, 1.0):
        shared = merged(config, {"model.advanced.memory_share": share})
        line = memory_lines(resolve(shared, dry=True), None)[1]
        size, total = map(float, re.findall(r"of (\d+) GiB.*about ([\d.]+) GiB", line)[0])
        assert size == round(80 * share)
        assert total < size
        totals[share] = total
    assert totals[0.25] < totals[0.5] < totals[1.0]


def test_a_model_too_large_for_the_gpu_is_told_what_takes_less(tmp_path: Path) -> None:
    """14 billion weights: 16 bytes each fit on no card."""
    Qwen2Config(
        hidden_size=5_120, intermediate_size=13_824, num_hidden_layers=48, num_attention_heads=40,
        num_key_value_heads=8, vocab_size=152_064,
    ).save_pretrained(tmp_path)  # fmt: skip
    model = {"path": str(tmp_path), "device": "cuda", "precision": "bf16"}
    config = Config(model=model)  # type: ignore[arg-type]
    note = memory_lines(resolve(config, dry=True), None)[-1]
    assert re.search(r"with model.advanced.gradient_checkpointing = true it is \d+", note)
    assert "train adapters (model.lora_rank = 16)" in note
    adapters = merged(config, {"model.lora_rank": 16})
    assert "more than" not in memory_lines(resolve(adapters, dry=True), None)[-1]


def test_a_learning_rate_that_nobody_stated_follows_the_size_of_the_model(tmp_path: Path) -> None:
    """From its config alone, before the run's folder is made; the learner itself does the same."""
    Qwen2Config(
        hidden_size=896, intermediate_size=4_864, num_hidden_layers=24, num_attention_heads=14,
        num_key_value_heads=2, vocab_size=151_936, tie_word_embeddings=True,
    ).save_pretrained(tmp_path)  # fmt: skip
    task = {"task.options.style": "text"}  # stated, since the folder has no tokenizer
    real = merged(Config(), {"model.path": str(tmp_path), **task})
    tiny = merged(Config(), task)
    for config, rate in ((tiny, 1e-4), (real, 2e-6)):
        settings = resolve(config, dry=True)
        assert settings.optimizer.learning_rate == rate
        adapters = resolve(merged(config, {"model.lora_rank": 4}), dry=True)
        assert adapters.optimizer.learning_rate == pytest.approx(10 * rate)
        stated = resolve(merged(config, {"optimizer.learning_rate": 0.5}), dry=True)
        assert stated.optimizer.learning_rate == 0.5
        shown = f"optimizer.learning_rate = {rate!r}  (by the model's size)"
        assert shown in dry_run(settings)
    model = load("tiny-countdown").model
    assert Learner(model).update.settings.learning_rate == 1e-4
    lora = with_adapters(model, Lora(rank=4))
    assert Learner(lora).update.settings.learning_rate == pytest.approx(1e-3)

"""What `--dry-run` says a run needs, against what a process that does the same work took."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

WORK = """
import json, resource, sys
import numpy as np, torch
from transformers import LlamaConfig, LlamaForCausalLM
from bestofk.config import read
from bestofk.learning import Learner
from bestofk.models import Policy, describe, save, tiny
from bestofk.training.cost import memory
from bestofk.training.setup import load_policy
from bestofk.types import Completion, Group, Prompt

torch.set_num_threads(1)
recipe, folder = sys.argv[1:]
shape = dict(hidden_size=512, intermediate_size=1536, num_hidden_layers=6, num_attention_heads=8,
             num_key_value_heads=2, vocab_size=16_000, eos_token_id=1, pad_token_id=0)
save(Policy(LlamaForCausalLM(LlamaConfig(**shape)), tiny.tokenizer(), "random"), folder)
config = read(recipe)
said = sum(memory(config, describe(folder)).values())
policy, _ = load_policy(config.model, "cpu")
P, n, new = 4, 8, config.sampling.max_new_tokens
rng = np.random.default_rng(0)
def ids(count):
    return tuple(rng.integers(2, 16_000, count).tolist())
def answers():
    return tuple(Completion("", ids(new)) for _ in range(n))
groups = [Group(Prompt(str(p), "", "t"), answers(), ids(256)) for p in range(P)]
learner = Learner(policy.model)
for _ in range(2):
    learner.step(groups, rng.normal(size=(P, n)))
took = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"said": said, "took": took}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 16])
def test_the_memory_a_dry_run_states_is_what_a_step_takes(tmp_path: Path, rank: int) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        f'[model]\npath = "{tmp_path / "model"}"\nlora_rank = {rank}\n'
        "[sampling]\nprompts_per_step = 4\nsamples_per_prompt = 8\nmax_new_tokens = 48\n"
    )
    command = [sys.executable, "-c", WORK, str(recipe), str(tmp_path / "model")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    line = json.loads(done.stdout.splitlines()[-1])
    assert line["said"] == pytest.approx(line["took"], rel=0.25), line  # 2.4 to 2.6 GB between runs

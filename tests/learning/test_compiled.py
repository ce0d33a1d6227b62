"""How often layers are compiled, and that the next process need not compile them again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from bestofk.devices import keep_compiled
from bestofk.learning import Learner, Optimizer
from bestofk.models.load import Lora, with_adapters
from policies import fixed, llama, random_groups

FOLDER = "TORCHINDUCTOR_CACHE_DIR"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, and no folder of the compiler's own."""
    monkeypatch.setenv("BESTOFK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(FOLDER, "")  # so that it is as before afterwards
    monkeypatch.delenv(FOLDER)
    return tmp_path / "cache"


@pytest.fixture
def graphs(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Everything that was compiled: traced by PyTorch's compiler, then run as it is."""
    found: list[Any] = []
    compile_ = nn.Module.compile

    def keep(graph: Any, inputs: Any) -> Callable[..., Any]:
        found.append(graph)
        return graph.forward

    monkeypatch.setattr(nn.Module, "compile", lambda m, **given: compile_(m, backend=keep, **given))
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=8, specialize_float=False):
        yield found
    torch._dynamo.reset()


def adapted() -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return with_adapters(llama(), Lora(rank=2))


def in_fp8() -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return with_adapters(llama(), Lora(rank=2, fp8=True))


def as_on_gpu(model: Any, **settings: Any) -> Learner:
    """With the layout and the head that a GPU in bf16 gets, and micro-batches of 60 tokens."""
    learner = Learner(
        model,
        logits_at_once=60 * 7,
        tokens_per_micro_batch=60,
        optimizer=Optimizer(learning_rate=1e-3),
        **settings,
    )
    learner.batching.flat = True
    learner.passes.scorer.fused = learner.passes.scorer.can_fuse
    return learner


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("make", [llama, adapted, in_fp8])
def test_all_layers_and_lengths_share_one_code_with_gradients_and_one_without(
    graphs: list[Any], make: Any, checkpointing: bool
) -> None:
    """Nothing is compiled for the comparison of layouts at the first batch."""
    learner = as_on_gpu(fixed(make), compiled=True, gradient_checkpointing=checkpointing)
    weights = np.random.default_rng(1).normal(size=(5, 4))
    assert learner.step(random_groups(5, 4), weights)["micro_batches"] > 2
    assert len(graphs) == 1
    learner.step(random_groups(5, 4, longest=90, seed=1), weights)  # one row to a micro-batch
    learner.step(random_groups(1, 4, seed=2), weights[:1])
    assert len(graphs) == 1
    learner.log_probs(random_groups(5, 4))
    learner.log_probs(random_groups(5, 4, longest=90, seed=1))
    assert len(graphs) == 2


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("make", [llama, adapted, in_fp8])
def test_compiled_layers_take_the_same_steps(
    graphs: list[Any], make: Any, checkpointing: bool
) -> None:
    groups, weights = random_groups(4, 3), np.random.default_rng(1).normal(size=(4, 3))
    ends = []
    for compiled in (False, True):
        learner = as_on_gpu(fixed(make), compiled=compiled, gradient_checkpointing=checkpointing)
        norm = [learner.step(groups, weights)["grad_norm"] for _ in range(2)]
        ends.append([*norm, *learner.log_probs(groups).log_prob.ravel()])
    assert graphs
    np.testing.assert_allclose(ends[1], ends[0], atol=1e-4)


def test_the_compilers_files_are_kept_in_our_cache_folder_unless_the_user_named_one(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER, default_cache_dir())  # as PyTorch does when it is imported
    keep_compiled()
    assert os.environ[FOLDER] == str(cache / "compiled")
    monkeypatch.setenv(FOLDER, "/elsewhere")
    keep_compiled()
    assert os.environ[FOLDER] == "/elsewhere"


def test_a_cache_folder_that_cannot_be_made_leaves_the_compilers_own(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write_text("a file where the folder would be")
    keep_compiled()
    assert FOLDER not in os.environ


WORK = """
import json, sys
import numpy as np, torch
from torch._dynamo.utils import counters
from policies import fixed, llama, random_groups
from bestofk.learning import Learner

torch.set_num_threads(1)
learner = Learner(fixed(llama), compiled=True, tokens_per_micro_batch=60)
learner.batching.flat = True
seed = int(sys.argv[1])
learner.step(random_groups(4, 3, seed=seed), np.random.default_rng(seed).normal(size=(4, 3)))
print(json.dumps({kind: dict(counters[kind]) for kind in ("aot_autograd", "inductor")}))
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="on CPU layers are compiled by g++")
def test_the_next_process_finds_everything_compiled(tmp_path: Path) -> None:
    """With groups of other lengths."""
    environ = {k: v for k, v in os.environ.items() if k != FOLDER}
    environ |= {"BESTOFK_CACHE": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    found = []
    for seed in ("0", "1"):
        command = [sys.executable, "-W", "ignore", "-c", WORK, seed]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environ)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    first, second = found
    assert first["inductor"]["fxgraph_cache_miss"] == 2  # forwards and backwards
    assert first["aot_autograd"]["autograd_cache_miss"] == 1  # it was not begun twice
    assert second["aot_autograd"]["autograd_cache_hit"] == 1
    assert not [name for kind in second.values() for name in kind if "miss" in name]
    assert not [name for kind in second.values() for name in kind if "bypass" in name]
    assert any((tmp_path / "compiled").iterdir())

"""Training with vLLM as the sampler; and the trained model in vLLM."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is tested in an environment of its own")

from bestofk.config import Config, merged, to_toml
from bestofk.models import Policy, load, save, tiny
from bestofk.runs import read_metrics
from bestofk.sampling import Sampling
from bestofk.sampling.prompts import encode
from bestofk.sampling.vllm_server import VLLMServer
from bestofk.training.resolve import resolve, resumed
from bestofk.training.train import train
from vllm_models import NOISE, PROMPTS, SERVED, gap, model, serving

pytestmark = NOISE
HERE = Path(__file__).parent


@pytest.fixture(scope="module", autouse=True)
def one_core() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("start") / "model"
    return save(Policy(model(1), tiny.tokenizer()), folder)


@pytest.fixture(scope="module")
def url(start: Path) -> Iterator[str]:
    with serving(str(start), options=SERVED) as url:
        yield url


@pytest.fixture
def asked(
    start: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Config]:
    """A small run's config, some sections changed; its judge can be imported."""
    monkeypatch.syspath_prepend(str(HERE))

    def make(**sections: Any) -> Config:
        base: dict[str, Any] = {
            "objective": "max@4",
            "model": {"path": str(start), "device": "cpu"},
            "task": {"name": "countdown", "options": {"style": "compact", "train_size": 40},
                     "verifier": "training_judges:digits"},
            "sampling": {
                "prompts_per_step": 4, "samples_per_prompt": 8, "max_new_tokens": 6,
                "engine": "vllm", "server": url, "temperature": 0.8,
            },
            "optimizer": {"learning_rate": 1e-2, "warmup_steps": 1},
            "evaluation": {"every": 2, "prompts": 4, "samples_per_prompt": 4},
            "run": {"dir": str(tmp_path / "run"), "steps": 4, "checkpoint_every": 2},
        }  # fmt: skip
        for section, values in sections.items():
            base[section] = base.get(section, {}) | values if isinstance(values, dict) else values
        return Config(**base)

    return make


def steps_of(run: str | Path) -> list[dict[str, Any]]:
    return [line for line in read_metrics(run) if line["kind"] == "train"]


def test_a_run_updates_the_server_and_shows_that_it_did(
    asked: Callable[..., Config], capsys: pytest.CaptureFixture[str]
) -> None:
    config = asked()
    train(resolve(config))
    steps = steps_of(config.run.dir)
    assert [line["step"] for line in steps] == [1, 2, 3, 4]
    for line in steps:
        assert line["sampler_gap_mean"] <= line["sampler_gap_max"] < 1e-4
        assert line["probe_after"] < 1e-4
        assert line["seconds"]["update"] > 0
    moved = [line["probe_before"] for line in steps[1:]]
    assert min(moved) > 1e-3  # the policy moves, so that a sampler left behind would show
    assert "gap " in capsys.readouterr().out
    final_is_the_same_in_vllm(Path(config.run.dir) / "final")


def final_is_the_same_in_vllm(folder: Path) -> None:
    """vLLM reads the folder by itself and takes the same tokens as transformers' own `generate`."""
    from vllm import LLM, SamplingParams

    policy = load(folder)
    generate: Any = policy.model.generate
    ids = [list(encode(policy.tokenizer, prompt)) for prompt in PROMPTS]
    texts = []
    for row in ids:
        out = generate(torch.tensor([row]), do_sample=False, max_new_tokens=12, pad_token_id=0)
        texts.append(out[0, len(row) :].tolist())
    llm = LLM(str(folder), dtype="float32", enforce_eager=True, max_model_len=512,
              kv_cache_memory_bytes=2**26, block_size=32)  # fmt: skip
    sampling = SamplingParams(temperature=0.0, max_tokens=12)
    with torch.compiler.set_stance("force_eager"):
        prompts: Any = [{"prompt_token_ids": row} for row in ids]
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
    llm.llm_engine.engine_core.shutdown()
    assert [list(output.outputs[0].token_ids) for output in outputs] == texts
    assert len({tuple(row) for row in texts}) > 1


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_server_ends_with_the_final_weights(
    url: str, asked: Callable[..., Config], ahead: int
) -> None:
    """One batch ahead, it samples while the learner works."""
    config = asked(off_policy={"ahead": ahead, "correct_sampler": ahead > 0})
    train(resolve(config))
    steps = steps_of(config.run.dir)
    assert [line["drawn_after"] for line in steps] == ([0, 1, 1, 2] if ahead else [0, 1, 2, 3])
    assert [line["step"] for line in steps] == [1, 2, 3, 4]
    assert all(line["sampler_gap_max"] < 1e-4 for line in steps)
    assert min(line["probe_before"] for line in steps[1:]) > 1e-3
    assert max(line["probe_after"] for line in steps) < 1e-4
    final = load(Path(config.run.dir) / "final")
    server = VLLMServer(url, final.model, final.tokenizer)
    groups = server.sample(
        PROMPTS, seed=0, sampling=Sampling(samples_per_prompt=3, max_new_tokens=8)
    )
    assert gap(final.model, groups) < 1e-4


def test_a_run_goes_on_from_its_checkpoint(asked: Callable[..., Config]) -> None:
    """The server gets the weights of the checkpoint, not those it was started with."""
    config = asked(model={"lora_rank": 2}, off_policy={"correct_sampler": True})
    train(resolve(merged(config, {"run.steps": 2})))
    train(resumed(config.run.dir, {"run.steps": 4}))
    steps = steps_of(config.run.dir)
    assert [line["step"] for line in steps] == [1, 2, 3, 4]
    assert all(line["sampler_gap_max"] < 1e-4 for line in steps)
    assert all("ess" in line for line in steps)  # weighed by the sampler's probabilities


@pytest.mark.parametrize("fsdp", [False, True], ids=["ddp", "fsdp"])
def test_two_processes_share_a_server(
    asked: Callable[..., Config], tmp_path: Path, fsdp: bool
) -> None:
    config = asked(
        run={"dir": str(tmp_path / "two"), "steps": 2}, model={"advanced": {"fsdp": fsdp}}
    )
    recipe = tmp_path / "two.toml"
    recipe.write_text(to_toml(config))
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "bestofk",
         "train", str(recipe)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE)},
        capture_output=True, text=True, timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    steps = steps_of(config.run.dir)
    assert len(steps) == 2
    assert all(line["sampler_gap_max"] < 1e-4 for line in steps)
    assert steps[1]["probe_before"] > 1e-3 > steps[1]["probe_after"]

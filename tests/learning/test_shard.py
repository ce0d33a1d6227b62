"""FSDP2 in one process: the same numbers, the whole model back, a state that others can read.

What several processes do with it is in tests/training/test_processes.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

from bestofk.learning import Learner, Loss, Optimizer
from bestofk.models.load import Lora, Policy, save, with_adapters
from bestofk.sampling import Sampling
from bestofk.sampling.decode import ModelSampler
from bestofk.types import Prompt
from policies import MODELS, fixed, letters, llama, qwen3, random_groups

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
pytestmark = [
    pytest.mark.parametrize("device", DEVICES),
    pytest.mark.usefixtures("group_of_one"),
]


@pytest.fixture
def group_of_one() -> Iterator[None]:
    """The learner makes the process group it needs; it must not outlive the test."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def pair(make: Any, device: str, **options: Any) -> tuple[Learner, Learner]:
    """The same learner, plain and sharded. With this eps, Adam's step is continuous at g = 0."""
    settings: dict[str, Any] = {
        "optimizer": Optimizer(learning_rate=1e-2, adam=(0.9, 0.999, 1e-4)),
        "tokens_per_micro_batch": 50,
    } | options
    plain = Learner(fixed(make, device=device), **settings)
    return plain, Learner(fixed(make, device=device), **settings, sharded=True)


def tolerance(device: str) -> float:
    return 1e-6 if device == "cpu" else 1e-4


@pytest.mark.parametrize("name", MODELS)
def test_a_sharded_learner_scores_and_steps_like_a_plain_one(name: str, device: str) -> None:
    groups, rng = random_groups(5, 4), np.random.default_rng(0)
    plain, sharded = pair(MODELS[name], device)
    assert all(isinstance(p, DTensor) for p in sharded.model.parameters())
    loss = Loss(name="clipped", clip=(0.05, 0.05))
    old = plain.log_probs(groups)
    for _ in range(3):
        weights = rng.normal(size=(5, 4))
        np.testing.assert_allclose(
            sharded.sequence_log_probs(groups), plain.sequence_log_probs(groups), rtol=1e-4
        )
        ours = sharded.step(groups, weights, loss=loss, old=old)
        theirs = plain.step(groups, weights, loss=loss, old=old)
        assert ours["micro_batches"] > 1
        for what, value in theirs.items():
            assert ours[what] == pytest.approx(value, rel=1e-3, abs=1e-5), what
    weight = sharded.state_dict()["model"]
    for what, wanted in plain.state_dict()["model"].items():
        torch.testing.assert_close(weight[what], wanted, rtol=0, atol=tolerance(device), msg=what)


@pytest.mark.parametrize("make", [llama, qwen3])
def test_the_policy_is_whole_inside_and_takes_no_memory_outside(
    make: Any, device: str, tmp_path: Any
) -> None:
    groups = random_groups(5, 4)
    plain, sharded = pair(make, device)
    tokenizer = letters(20, end=1)
    prompts = [Prompt("1", "cde", "t"), Prompt("2", "gh", "t")]
    sampler = ModelSampler(sharded.policy, tokenizer)
    for step in range(2):
        with sharded.gathered():
            got = sampler.sample(
                prompts, seed=step, sampling=Sampling(samples_per_prompt=3, max_new_tokens=5)
            )
            save(Policy(sharded.policy, tokenizer), tmp_path / str(step))
        assert {p.device.type for p in sharded.policy.parameters()} == {"meta"}
        direct = ModelSampler(plain.model, tokenizer).sample(
            prompts, seed=step, sampling=Sampling(samples_per_prompt=3, max_new_tokens=5)
        )
        for one, other in zip(got, direct, strict=True):
            for a, b in zip(one.trajectories, other.trajectories, strict=True):
                assert a.tokens.tolist() == b.tokens.tolist()
        weights = np.random.default_rng(step).normal(size=(5, 4))
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / str(step))
        for (name, mine), (_, theirs) in zip(
            plain.model.named_parameters(), loaded.named_parameters(), strict=True
        ):
            torch.testing.assert_close(mine.cpu(), theirs, rtol=0, atol=tolerance(device), msg=name)
        plain.step(groups, weights)
        sharded.step(groups, weights)


def test_plain_and_sharded_learners_read_each_other_s_state(device: str) -> None:
    groups, rng = random_groups(5, 4), np.random.default_rng(0)
    first, second, last = rng.normal(size=(3, 5, 4))
    plain, sharded = pair(llama, device)
    through, _ = pair(llama, device)
    for weights in (first, second, last):
        through.step(groups, weights)
    plain.step(groups, first)
    sharded.load_state_dict(plain.state_dict())
    sharded.log_probs(groups)  # leaves the outermost weights gathered
    sharded.step(groups, second)
    sharded.log_probs(groups)
    again, _ = pair(llama, device)
    again.load_state_dict(sharded.state_dict())
    again.step(groups, last)
    assert again.steps == 3
    for mine, theirs in zip(again.model.parameters(), through.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=tolerance(device))


def test_adapters_and_their_reference_are_sharded_too(device: str) -> None:
    groups, weights = random_groups(5, 4), np.random.default_rng(0).normal(size=(5, 4))
    plain, sharded = pair(
        lambda: with_adapters(qwen3(), Lora(rank=4)), device, gradient_checkpointing=True
    )
    start = plain.sequence_log_probs(groups)
    loss = Loss(kl=0.1)
    for _ in range(3):
        for learner in (plain, sharded):
            reference = learner.log_probs(groups, reference=True)
            np.testing.assert_allclose(reference.log_prob, start, rtol=1e-4)
            learner.step(groups, weights, loss=loss, reference=reference)
    now = sharded.sequence_log_probs(groups)
    assert abs(now - start).max() > 0.1
    np.testing.assert_allclose(now, plain.sequence_log_probs(groups), rtol=1e-4)
    assert all("lora" in name for name in sharded.state_dict()["model"])


def test_bf16_keeps_float32_shards(device: str) -> None:
    groups, weights = random_groups(5, 4), np.random.default_rng(0).normal(size=(5, 4))
    plain, sharded = pair(llama, device, precision="bf16", gradient_checkpointing=True)
    for _ in range(2):
        ours, theirs = sharded.step(groups, weights), plain.step(groups, weights)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=0.02)
    assert {p.dtype for p in sharded.model.parameters()} == {torch.float32}
    np.testing.assert_allclose(
        sharded.sequence_log_probs(groups), plain.sequence_log_probs(groups), rtol=0.02
    )

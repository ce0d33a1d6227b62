"""Several turns in the group engine on CUDA: forced tokens in recorded steps, token-exact."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch

from bestofk.environments.author_class import as_environment
from bestofk.environments.limits import TurnLimits
from bestofk.environments.rollout import TurnSampler
from bestofk.sampling import Sampling
from bestofk.sampling.decode import ModelSampler
from bestofk.sampling.engine import plain_kernels
from bestofk.sampling.engine.group_sampler import GroupSampler
from bestofk.sampling.engine.operands import SlotField
from bestofk.types import Group, Prompt
from fused_models import family
from policies import fixed, letters, llama

pytestmark = pytest.mark.gpu

PROMPTS = [Prompt(str(i), "abcdefghij"[: 1 + (i * 3) % 9], "test") for i in range(12)]
LONG = [Prompt(str(i), "abcdefghij" * 20 + "abcdefghij"[:i], "test") for i in range(4)]
TOKENIZER = letters(26, end=1)


class Brief:
    """Three turns with two tokens between them; some answer late."""

    def reset(self) -> None:
        self.heard = 0

    def __call__(self, text: str) -> str | None:
        time.sleep(0.01 * (len(text) % 4))
        self.heard += 1
        return "ab" if self.heard < 3 else None


class Once(Brief):
    def __call__(self, text: str) -> str | None:
        return None


def drawn(
    made: Any, sampling: Sampling, environment: Any = Brief, prompts: Any = PROMPTS, **limits: Any
) -> list[Group]:
    source = TurnSampler(made, as_environment(environment), TurnLimits(**limits), model="MODEL")
    groups = source.sample(prompts, seed=5, sampling=sampling)
    assert getattr(made, "reason", None) is None
    return groups


def tokens(groups: list[Group]) -> list[tuple[list[int], list[bool]]]:
    return [
        (each.tokens.tolist(), each.own.tolist()) for group in groups for each in group.trajectories
    ]


def gaps(model: Any, groups: list[Group]) -> np.ndarray:
    """|log-prob difference| of own tokens to a plain forward pass; others report 0."""
    found = []
    for group in groups:
        for each in group.trajectories:
            ids = torch.tensor([[*group.prompt_tokens, *each.tokens.tolist()]], device="cuda")
            with torch.no_grad():
                logits = model(ids).logits[0, len(group.prompt_tokens) - 1 : -1].float()
            plain = logits.log_softmax(-1).gather(-1, ids[0, len(group.prompt_tokens) :, None])
            own = each.own
            found.append(np.abs(plain[:, 0].cpu().numpy()[own] - each.log_probs[own]))
            assert not each.log_probs[~own].any()
    return np.concatenate(found)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("make", [llama, lambda: family("Qwen2")], ids=["Llama", "Qwen2"])
def test_groups_of_16_over_64_slots_are_those_of_transformers(make: Any, compiled: bool) -> None:
    """192 rows: parked, resumed in other slots; sampled log-probs are those of a plain pass."""
    model = fixed(make, device="cuda")
    sampling = Sampling(samples_per_prompt=16, max_new_tokens=60)
    expected = drawn(ModelSampler(model, TOKENIZER), sampling)
    made = GroupSampler(model, TOKENIZER, max_rows=64, memory_gib=8, compiled=compiled, copied=True)
    for _ in range(2):
        found = drawn(made, sampling)
        assert made.plan is not None
        assert made.plan.slots == 64
        same = [a == b for a, b in zip(tokens(found), tokens(expected), strict=True)]
        assert sum(same) >= 0.95 * len(same)  # rounding may move a draw across a boundary
        assert gaps(model, found).max() < 1e-3
    turns = [each.conversation.turns for one in found for each in one.trajectories]  # type: ignore[union-attr]
    assert np.mean(np.array(turns) > 1) > 0.3
    assert made.check.agreement is not None
    assert made.check.agreement[1] < 1e-3


@pytest.mark.parametrize(
    ("sampling", "limits"),
    [
        (Sampling(samples_per_prompt=8, max_new_tokens=40, stop=("c", "da")), {}),
        (Sampling(samples_per_prompt=8, max_new_tokens=40), {"turn_tokens": 5}),
        (Sampling(samples_per_prompt=8, max_new_tokens=40, top_p=0.8, top_k=20), {}),
        (Sampling(samples_per_prompt=2, max_new_tokens=40, temperature=0.0, stop=("e", "k")), {}),
    ],
    ids=["stop", "turn tokens", "truncated", "greedy"],
)
def test_limits_and_ways_of_drawing_are_those_of_transformers(
    sampling: Sampling, limits: dict[str, int]
) -> None:
    model = fixed(llama, device="cuda")
    expected = tokens(drawn(ModelSampler(model, TOKENIZER), sampling, **limits))
    made = GroupSampler(model, TOKENIZER, max_rows=32, memory_gib=8)
    found = tokens(drawn(made, sampling, **limits))
    assert sum(a == b for a, b in zip(found, expected, strict=True)) >= 0.95 * len(expected)


def test_long_prompts_that_are_read_by_tiles_in_bf16() -> None:
    """Siblings leave and come back, and their tiles with them."""
    model = fixed(lambda: llama(max_position_embeddings=512), device="cuda")
    sampling = Sampling(samples_per_prompt=16, max_new_tokens=60)
    made = GroupSampler(model, TOKENIZER, precision="bf16", max_rows=32, memory_gib=8)
    for _ in range(2):
        found = drawn(made, sampling, prompts=LONG)
        assert gaps(model, found).mean() < 0.03
    assert made.check.agreement is not None


def test_an_environment_of_one_turn_draws_what_the_engine_draws_without() -> None:
    model = fixed(llama, device="cuda")
    sampling = Sampling(samples_per_prompt=16, max_new_tokens=40)
    plain = GroupSampler(model, TOKENIZER, max_rows=64, memory_gib=8)
    expected = tokens(plain.sample(PROMPTS, seed=5, sampling=sampling))
    made = GroupSampler(model, TOKENIZER, max_rows=64, memory_gib=8)
    found = tokens(drawn(made, sampling, Once))
    assert sum(a == b for a, b in zip(found, expected, strict=True)) >= 0.97 * len(expected)
    again = tokens(made.sample(PROMPTS, seed=5, sampling=sampling))  # one turn after several
    assert sum(a == b for a, b in zip(again, expected, strict=True)) >= 0.97 * len(expected)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_the_kernel_forces_tokens_as_its_plain_twin_does(temperature: float) -> None:
    """Every second row is forced, also to a token that ends others, and to the last of many."""
    from bestofk.sampling.engine.kernels import sample

    draw, rows, vocabulary = np.random.default_rng(0), 24, 9000
    last = vocabulary - 1
    forced = [3, 0, last, 17] * 3
    uniform = draw.uniform(size=(rows, 5)).astype(np.float32)
    uniform[::2, 0] = [-1.0 - token for token in forced]
    logits = torch.tensor(draw.normal(size=(rows, vocabulary)), dtype=torch.float32, device="cuda")
    results = []
    for work, device in ((sample, "cuda"), (plain_kernels.sample, "cpu")):
        slots = torch.zeros(len(SlotField), rows, dtype=torch.int32)
        slots[SlotField.SEQUENCE] = torch.arange(rows)
        slots = slots.to(device)
        feed = torch.zeros(2, rows, dtype=torch.long, device=device)
        out = torch.zeros(rows * 5, dtype=torch.int32, device=device)
        log_probs = torch.ones(rows * 5, device=device)
        ends = torch.tensor([3, -1, -1, -1, -1, -1, -1, -1], dtype=torch.int32, device=device)
        span = torch.tensor([5], dtype=torch.int32, device=device)
        numbers = torch.tensor(uniform.ravel(), device=device)
        work(logits.to(device), slots, span, numbers, ends, feed[0], feed[1], out, log_probs,
             temperature)  # fmt: skip
        results.append([each.cpu() for each in (slots, feed, out[::5], log_probs[::5])])
    (slots, feed, out, values), (slots2, feed2, out2, values2) = results
    assert torch.equal(out, out2)
    assert out[::2].tolist() == forced
    assert not values[::2].any()
    assert torch.equal(slots, slots2)
    assert torch.equal(feed, feed2)
    assert not slots[SlotField.ENDED, ::2].any()
    torch.testing.assert_close(values, values2, atol=1e-4, rtol=0)

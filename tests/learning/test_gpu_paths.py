"""What the learner does on a GPU, computed on CPU by the same code: numbers as the plain path's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters
from transformers import LlamaConfig

from bestofk.learning import Learner, Loss, Optimizer, layout
from bestofk.learning.attention import add_runs, flash_groups
from bestofk.learning.gpu import balanced, compile_layers, model_bytes, token_budget
from bestofk.learning.layout import flat_segments
from bestofk.learning.scorer import Float32Logits, HeadLogProbs, WeighedHead, scores
from bestofk.models.load import Lora, with_adapters
from policies import fixed, llama, qwen3, random_groups


def as_on_gpu(model: Any, **settings: Any) -> Learner:
    """A learner with the head and the attention that a GPU in bf16 gets."""
    learner = Learner(model, logits_at_once=60 * 7, **settings)
    learner.batching.flat = True
    learner.passes.scorer.fused = learner.passes.scorer.can_fuse
    return learner


@pytest.mark.parametrize("make", [llama, qwen3])
@pytest.mark.parametrize("budget", [10_000, 60])
def test_scores_are_those_of_the_plain_path(make: Any, budget: int) -> None:
    groups = random_groups(5, 4)
    plain = Learner(fixed(make), temperature=0.7, tokens_per_micro_batch=budget)
    other = as_on_gpu(fixed(make), temperature=0.7, tokens_per_micro_batch=budget)
    a, b = plain.log_probs(groups), other.log_probs(groups)
    for kind in ("tokens", "entropies"):
        for row, expected in zip(sum(getattr(b, kind), ()), sum(getattr(a, kind), ()), strict=True):
            np.testing.assert_allclose(row, expected, atol=2e-5)


LOSSES = {
    "exact": Loss(),
    "clipped": Loss(name="clipped"),
    "sequence": Loss(name="gspo"),
    "kl": Loss(kl=0.1),
    "entropy": Loss(entropy_bonus=0.01),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("budget", [10_000, 60])
def test_steps_are_those_of_the_plain_path(name: str, budget: int) -> None:
    """Two steps off policy: the second one with ratios that are not 1."""
    groups = random_groups(4, 3)
    weights = np.random.default_rng(1).normal(size=(4, 3))
    ends = []
    for make in (Learner, as_on_gpu):
        model = fixed(llama)
        learner = make(
            model,
            tokens_per_micro_batch=budget,
            temperature=0.8,
            optimizer=Optimizer(learning_rate=1e-3, max_grad_norm=0.0),
            reference=fixed(llama, seed=3),
        )
        old, reference = learner.log_probs(groups), learner.log_probs(groups, reference=True)
        for _ in range(2):
            stats = learner.step(groups, weights, loss=LOSSES[name], old=old, reference=reference)
        ends.append((stats, learner.log_probs(groups).log_prob))
    (a, after_a), (b, after_b) = ends
    np.testing.assert_allclose(after_b, after_a, atol=2e-4)
    assert a.keys() == b.keys()
    for key in a:
        np.testing.assert_allclose(b[key], a[key], rtol=2e-3, atol=1e-5, err_msg=key)


def test_lora_takes_the_same_steps() -> None:
    from peft import LoraConfig, get_peft_model

    groups = random_groups(3, 3)
    weights = np.random.default_rng(1).normal(size=(3, 3))
    found = []
    for make in (Learner, as_on_gpu):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            config = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
            model: Any = get_peft_model(fixed(llama), config)
        learner = make(model, optimizer=Optimizer(learning_rate=1e-2))
        learner.step(groups, weights)
        found.append(learner.log_probs(groups).log_prob)
    np.testing.assert_allclose(found[1], found[0], atol=1e-4)


def test_the_heads_gradient_is_that_of_plain_autograd() -> None:
    torch.manual_seed(0)
    hidden = torch.randn(11, 5, dtype=torch.float64).float().requires_grad_()
    weight = torch.randn(9, 5).requires_grad_()
    target = torch.randint(0, 9, (11,))
    by_log_prob, by_entropy = torch.randn(11), torch.randn(11)
    log_probs = (hidden @ weight.t() * 1.7).log_softmax(-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    chosen = log_probs.gather(-1, target[:, None])[:, 0]
    for size in (3, 100):
        a, b = HeadLogProbs.apply(hidden, weight, target, 1.7, size)
        torch.testing.assert_close(a, chosen)
        torch.testing.assert_close(b, entropy)
        wanted = torch.autograd.grad(
            (by_log_prob * chosen + by_entropy * entropy).sum(), (hidden, weight), retain_graph=True
        )
        found = torch.autograd.grad((by_log_prob * a + by_entropy * b).sum(), (hidden, weight))
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        total, c, d = WeighedHead.apply(hidden, weight, target, by_log_prob, 1.7, size)
        torch.testing.assert_close((c, d), (chosen.detach(), entropy.detach()))
        wanted = torch.autograd.grad(
            -3.0 * (by_log_prob * chosen).sum(), (hidden, weight), retain_graph=True
        )
        found = torch.autograd.grad(-3.0 * total, (hidden, weight))
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(
            scores(hidden, weight, target, 1.7, size), (chosen, entropy), check_stride=False
        )


def test_logits_of_bfloat16_factors_are_not_rounded_to_bfloat16() -> None:
    """Logits of 16, where bfloat16 has steps of .06; gradients as of autograd in float32."""
    torch.manual_seed(0)
    hidden = torch.randn(11, 64).bfloat16().requires_grad_()
    weight = (2 * torch.randn(30, 64)).requires_grad_()
    target = torch.randint(0, 30, (11,))
    by_log_prob, by_entropy = torch.randn(11), torch.randn(11)
    exact = [hidden.detach().float().requires_grad_(), weight.detach().bfloat16().float()]
    exact[1].requires_grad_()
    log_probs = (exact[0] @ exact[1].t()).log_softmax(-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    chosen = log_probs.gather(-1, target[:, None])[:, 0]
    wanted = torch.autograd.grad((by_log_prob * chosen + by_entropy * entropy).sum(), exact)
    for way in ("head", "logits"):
        if way == "head":
            a, b = HeadLogProbs.apply(hidden, weight, target, 1.0, 4)
        else:
            rows = Float32Logits.apply(hidden, weight, torch.bfloat16).log_softmax(-1)
            a, b = rows.gather(-1, target[:, None])[:, 0], -(rows.exp() * rows).sum(-1)
        torch.testing.assert_close((a, b), (chosen, entropy), rtol=1e-4, atol=1e-4)
        found = torch.autograd.grad((by_log_prob * a + by_entropy * b).sum(), (hidden, weight))
        for own, other in zip(found, wanted):
            assert float((own.float() - other).norm() / other.norm()) < 0.01
    total, c, _ = WeighedHead.apply(hidden, weight, target, by_log_prob, 1.0, 4)
    plain = scores(hidden.detach(), weight.detach().bfloat16(), target, 1.0, 4)
    torch.testing.assert_close(c, chosen.detach(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(plain[0], c)
    assert hidden.dtype == torch.autograd.grad(total, hidden)[0].dtype


@pytest.mark.parametrize("run", [1024, 4, 1])
def test_a_row_sees_its_prompt_and_itself_alone(run: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against attention row by row, each with its own copy of the prompt; in runs of any length."""
    monkeypatch.setattr(layout, "RUN", run)
    torch.manual_seed(0)
    prompts, own = [3, 1, 5], [[2, 0, 4], [1], [3, 3]]
    total = sum(prompts) + sum(map(sum, own))
    q = torch.randn(total, 4, 8)
    k, v = torch.randn(total, 2, 8), torch.randn(total, 2, 8)
    s = flat_segments(prompts, own, "cpu")
    where = (s.parts, s.queries, s.keys, s.prompt_at, s.first)
    found, _ = flash_groups(q, k, v, *where, *s.longest, 0.3)
    assert torch.equal(s.prompt_at[s.first], s.prompt_at)
    gradient, runs = torch.randn_like(k), torch.randn(len(s.first), 2, 8)
    expected = gradient.clone()
    for place, own_run in zip(s.prompt_at, runs):
        expected[place] += own_run
    add_runs(gradient, runs, s.prompt_at, s.first)
    torch.testing.assert_close(gradient, expected)
    at = 0
    for p, sizes in zip(prompts, own):
        prompt = list(range(at, at + p))
        at += p
        for size in [0, *sizes]:
            row = prompt + list(range(at, at + size))
            at += size
            keys, values = (x[row].repeat_interleave(2, 1).transpose(0, 1) for x in (k, v))
            scores_ = (q[row].transpose(0, 1) @ keys.transpose(1, 2)) * 0.3
            hidden = torch.ones(len(row), len(row)).triu(1).bool()
            out = scores_.masked_fill(hidden, -torch.inf).softmax(-1) @ values
            torch.testing.assert_close(found[row], out.transpose(0, 1), atol=1e-5, rtol=1e-4)


def test_one_compiled_code_serves_batches_of_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without cuts into runs, whatever the numbers of groups and completions are."""
    plain = torch.nn.Module.compile
    monkeypatch.setattr(
        torch.nn.Module, "compile", lambda self, **given: plain(self, backend="aot_eager", **given)
    )
    torch._dynamo.reset()
    model = fixed(llama)
    learner = as_on_gpu(model, tokens_per_micro_batch=300)
    compile_layers(model)
    compiled = counters["stats"]["unique_graphs"]
    for seed, (count, n, run) in enumerate([(4, 3, 1024), (4, 3, 8), (6, 5, 16), (3, 8, 4)]):
        monkeypatch.setattr(layout, "RUN", run)
        groups = random_groups(count, n, longest=20 + 5 * seed)
        learner.step(groups, np.random.default_rng(seed).normal(size=(count, n)))
        assert counters["stats"]["unique_graphs"] == compiled + 1


@pytest.mark.parametrize(("prompts", "own"), [([300, 20], [[4], [5, 9]]), ([3], [[200, 3000]])])
def test_no_part_is_longer_than_what_is_computed(prompts: list[int], own: list[list[int]]) -> None:
    """Prompts are queries too, of the pass over prompts, where they find no keys."""
    s = flat_segments(prompts, own, "cpu")
    for ends, longest in zip((s.parts, s.queries, s.keys), s.longest, strict=True):
        assert int(ends.diff().max()) <= longest


def test_the_budget_follows_the_card_and_the_model() -> None:
    wide: Any = LlamaConfig(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32)
    big, small, none = (
        token_budget(wide, 18e9, gib * 2**30, checkpointing=False) for gib in (2000, 100, 1)
    )
    assert big == 49_152 > small > none == 512
    plain, checkpointed = (
        token_budget(wide, 126e9, 400 * 2**30, checkpointing=c) for c in (False, True)
    )
    assert plain < checkpointed


def test_the_budget_counts_optimiser_memory_for_trained_weights_alone() -> None:
    """And no second copy of frozen ones in bfloat16, from which the engine samples as they are. 7B
    with LoRA has room for more than the least budget from cards of 48 GiB on."""
    model = fixed(llama)
    count = sum(p.numel() for p in model.parameters())
    assert model_bytes(model) == 18 * count
    adapted = with_adapters(fixed(llama).bfloat16(), Lora(rank=2))
    own = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    assert {p.dtype for p in adapted.parameters() if p.requires_grad} == {torch.float32}
    assert model_bytes(adapted) == 18 * own + 2 * count
    wide: Any = LlamaConfig(hidden_size=3584, intermediate_size=18944, num_hidden_layers=28)
    budgets = [
        token_budget(wide, 2 * 7.6e9, gib * 2**30, checkpointing=False) for gib in (24, 48, 80, 140)
    ]
    assert budgets == sorted(budgets)
    assert budgets[0] == 512
    assert budgets[1] > 1_000
    assert budgets[3] > 4_096


@pytest.mark.parametrize(("total", "longest", "budget"), [(100, 5, 60), (61, 5, 60), (10, 9, 60)])
def test_micro_batches_are_evened_out_within_the_budget(
    total: int, longest: int, budget: int
) -> None:
    found = balanced(total, longest, budget)
    assert found <= budget
    assert -(-total // found) == -(-total // budget)

"""The learner as a whole: memory, state, errors, and what it can learn."""

from __future__ import annotations

import io
import re
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import bestofk
from bestofk import precision
from bestofk.learning import Learner, Loss, NonFinite, Optimizer
from bestofk.learning import batching as batching_module
from bestofk.models.load import Lora, load, with_adapters
from bestofk.sampling import Sampling
from bestofk.sampling.decode import ModelSampler
from bestofk.types import Prompt
from policies import fixed, group, letters, llama, qwen3, random_groups, table


class Largest(TorchDispatchMode):
    """The size of the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return out


def largest(model: Any, tokens: int, vocabulary: int) -> tuple[int, int]:
    """Of a step on so many tokens: its largest tensor, and all that autograd keeps for later."""
    learner = Learner(model, logits_at_once=2**14)
    rows = [[2 + (7 * i + t) % (vocabulary - 2) for t in range(tokens // 8)] for i in range(8)]
    kept = 0

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal kept
        kept += tensor.numel()
        return tensor

    with Largest() as seen, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        learner.step([group([2, 3], rows)], np.ones((1, 8)))
    return seen.elements, kept


def test_memory_grows_with_tokens_not_with_tokens_times_vocabulary() -> None:
    def model(vocabulary: int) -> Any:
        return fixed(lambda: llama(vocab_size=vocabulary, num_hidden_layers=1))

    small, kept_small = largest(model(1024), 512, 1024)
    large, kept_large = largest(model(8192), 512, 8192)
    weights = 32 * 8192
    assert large <= max(weights, 2**14 + 8192)  # the head's own weights, or a chunk of logits
    assert large < 512 * 8192 / 8
    assert kept_large - kept_small <= 3 * (weights - 32 * 1024)  # the head's weights, no logits
    assert small < 512 * 1024 / 8


def test_the_check_of_the_first_batch_takes_few_logits_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever a step may take: it computes in float32, beside all that a GPU holds already."""
    monkeypatch.setattr(batching_module, "CHUNK", 2**14)
    learner = Learner(fixed(lambda: llama(vocab_size=8192, num_hidden_layers=1)))
    rows = [[2 + (7 * i + t) % 8190 for t in range(64)] for i in range(8)]
    with Largest() as seen:
        learner.batching.compare_layouts([group([2, 3], rows)], learner.passes)
    assert seen.elements <= 32 * 8192
    assert learner.passes.scorer.chunk > 2**14  # and steps have theirs


def test_a_resumed_learner_goes_on_bit_for_bit() -> None:
    groups = random_groups(6, 4)
    weights = np.random.default_rng(0).normal(size=(3, 6, 4))
    settings = Optimizer(learning_rate=1e-2, warmup_steps=2, schedule="cosine")

    def fresh() -> Learner:
        return Learner(fixed(llama), optimizer=settings, total_steps=9, tokens_per_micro_batch=50)

    through = fresh()
    stats = [through.step(groups, w) for w in weights]
    first = fresh()
    first.step(groups, weights[0])
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = fresh()
    second.load_state_dict(torch.load(file, weights_only=True))
    assert [second.step(groups, w) for w in weights[1:]] == stats[1:]
    for mine, wanted in zip(second.model.parameters(), through.model.parameters(), strict=True):
        assert torch.equal(mine, wanted)
    assert second.steps == 3


def test_a_state_of_another_model_is_refused() -> None:
    other = Learner(fixed(qwen3)).state_dict()
    with pytest.raises(ValueError, match="state is of another model"):
        Learner(fixed(llama)).load_state_dict(other)


def test_a_loss_that_is_not_finite_stops_before_the_weights_change() -> None:
    model = fixed(llama)
    learner = Learner(model, optimizer=Optimizer(learning_rate=1.0))
    groups = random_groups(2, 2)
    before = [p.clone() for p in model.parameters()]
    old = learner.log_probs(groups)
    for row in old.tokens[0]:
        row[:] = -1e30  # π_old so small that the ratio is infinite
    loss = Loss(name="clipped", clip=(0.2, 1e30))
    with pytest.raises(NonFinite, match="the weights are as before"):
        learner.step(groups, np.ones((2, 2)), loss=loss, old=old)
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    assert learner.steps == 0
    learner.step(groups, np.ones((2, 2)))  # and it can go on


def test_the_gradient_is_clipped_to_its_norm() -> None:
    groups = random_groups(3, 3)
    weights = 1e3 * np.random.default_rng(0).normal(size=(3, 3))
    norms = []
    for limit in (0.0, 0.5):
        learner = Learner(fixed(llama), optimizer=Optimizer(max_grad_norm=limit))

        def look(*_: object, learner: Learner = learner) -> None:
            squares = [
                p.grad.square().sum() for p in learner.model.parameters() if p.grad is not None
            ]
            norms.append(float(torch.stack(squares).sum().sqrt()))

        learner.update.optimizer.register_step_pre_hook(look)
        stats = learner.step(groups, weights)
    assert norms[0] == pytest.approx(stats["grad_norm"], rel=1e-5)
    assert norms[1] == pytest.approx(0.5, rel=1e-4)


def test_lr_warms_up_then_falls() -> None:
    cosine = Optimizer(learning_rate=1.0, warmup_steps=3, schedule="cosine")
    rates = [cosine.learning_rate_at(step, 13) for step in range(14)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[8] == pytest.approx(0.5)
    assert rates[13] == pytest.approx(0.0, abs=1e-12)
    assert all(a > b for a, b in zip(rates[3:], rates[4:], strict=False))


def test_only_adapters_learn_and_the_reference_is_the_model_without_them() -> None:
    groups = random_groups(3, 4)
    weights = np.random.default_rng(0).normal(size=(3, 4))
    model = with_adapters(fixed(qwen3), Lora(rank=4))
    learner = Learner(model, optimizer=Optimizer(learning_rate=1e-2))
    assert learner.batching.layout == "packed"
    start = learner.sequence_log_probs(groups)
    frozen = {n: p.clone() for n, p in model.named_parameters() if not p.requires_grad}
    for _ in range(3):
        learner.step(groups, weights)
    np.testing.assert_allclose(learner.log_probs(groups, reference=True).log_prob, start, atol=1e-5)
    assert abs(learner.sequence_log_probs(groups) - start).max() > 0.1
    for name, parameter in model.named_parameters():
        if name in frozen:
            assert torch.equal(parameter, frozen[name])
    assert all("lora" in name for name in learner.state_dict()["model"])


def test_bf16_keeps_float32_weights_and_nearly_the_same_log_probs() -> None:
    groups = random_groups(3, 4)
    exact = Learner(fixed(qwen3)).sequence_log_probs(groups)
    learner = Learner(fixed(qwen3), precision="bf16", optimizer=Optimizer(learning_rate=1e-3))
    rough = learner.sequence_log_probs(groups)
    learner.step(groups, np.ones((3, 4)))
    assert {p.dtype for p in learner.model.parameters()} == {torch.float32}
    assert 0 < abs(rough - exact).max() < 0.05 * abs(exact).max()


def test_a_processor_without_bf16_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """As PyTorch does on many ARM machines: it warns with its C++ frames, at every product here."""
    frames = "\n".join(f"frame #{i}: at::native::bmm" for i in range(25))

    def products(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        warnings.warn(f"mkldnn_matmul failed, switching to baddbmm:{frames}", stacklevel=2)
        return one @ other

    monkeypatch.setattr(torch, "bmm", products)
    precision._probe_bf16.cache_clear()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            Learner(fixed(qwen3), precision="bf16")
        ModelSampler(fixed(qwen3), letters(26, end=1), precision="bf16")
    precision._probe_bf16.cache_clear()
    assert [str(w.message).count("\n") for w in said] == [0]
    assert "fp32 is faster here" in str(said[0].message)


def test_groups_drawn_at_another_temperature_are_an_error() -> None:
    policy = load("tiny-countdown")
    sampling = Sampling(samples_per_prompt=4, max_new_tokens=8, temperature=0.8)
    sampler = ModelSampler(policy.model, policy.tokenizer)
    groups = sampler.sample([Prompt("p", "3 5 7 2 = 24:", "test")], seed=0, sampling=sampling)
    learner, weights = Learner(policy.model), [[1.0, -1.0, 0.5, -0.5]]
    for use in (lambda: learner.log_probs(groups), lambda: learner.step(groups, weights)):
        with pytest.raises(ValueError, match=r"drawn at temperature 0.8 and the learner's .* is 1"):
            use()
    same = Learner(policy.model, temperature=0.8)
    assert same.step(groups, weights)["sampler_gap_max"] < 1e-4


BAD_LOSSES = [
    ({"name": "exat"}, "did you mean 'exact'"),
    ({"normaliser": "grpo"}, "exact loss does not accept a length normaliser"),
    ({"name": "gspo", "normaliser": "dapo"}, "gspo loss does not accept a length normaliser"),
    ({"clip": (1.5, 0.2)}, "clip is at most 1"),
    ({"clip": (0.2, float("nan"))}, "clip is a finite number"),
    ({"kl": -1.0}, "kl is at least 0"),
]


@pytest.mark.parametrize(("options", "message"), BAD_LOSSES)
def test_a_wrong_loss_says_what_is_wrong(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Loss(**options)


def test_a_step_says_what_it_lacks() -> None:
    learner, groups = Learner(fixed(llama)), random_groups(2, 3)
    ones = np.ones((2, 3))
    with pytest.raises(ValueError, match="clipped loss needs old="):
        learner.step(groups, ones, loss=Loss(name="clipped"))
    with pytest.raises(ValueError, match="kl needs reference="):
        learner.step(groups, ones, loss=Loss(kl=0.1))
    with pytest.raises(ValueError, match="no reference policy"):
        learner.log_probs(groups, reference=True)
    with pytest.raises(ValueError, match="shape of the groups"):
        learner.step(groups, np.ones((3, 2)))
    with pytest.raises(ValueError, match="mark it not live"):
        learner.step(groups, np.where(np.eye(2, 3), np.nan, ones))
    with pytest.raises(ValueError, match="same number of completions"):
        learner.log_probs([*groups, *random_groups(1, 2)])
    with pytest.raises(ValueError, match="scores of other groups"):
        learner.step(groups, ones, old=learner.log_probs(random_groups(2, 3, seed=9)))
    with pytest.raises(ValueError, match="at least one prompt token"):
        learner.log_probs([group([3], [[]])])


def bandit(objective: str, steps: int = 100) -> float:
    """The chance of the risky arm after training: 1 with chance .3, against a sure .5."""
    model, rng = table(np.zeros((3, 3)) - np.array([0, 0, 30.0])), np.random.default_rng(0)
    learner = Learner(model, optimizer=Optimizer(learning_rate=0.06, max_grad_norm=0.0))
    sampler = ModelSampler(model, letters(3))
    prompts = [Prompt(f"{p}", "c", "bandit") for p in range(32)]
    for step in range(steps):
        groups = sampler.sample(
            prompts, seed=step, sampling=Sampling(samples_per_prompt=8, max_new_tokens=1)
        )
        arms = np.array([[done.tokens[0] for done in one.trajectories] for one in groups])
        rewards = np.where(arms == 0, 0.5, rng.random(arms.shape) < 0.3)
        learner.step(groups, bestofk.advantages(rewards, objective))
    return float(model.table[2].detach().softmax(-1)[1])


def test_a_bandit_goes_to_the_optimum_of_max_at_k_and_not_of_the_mean() -> None:
    """With risk p, best of 4 is worth 1 − m + (m − (.7p)^4)/2 for m = (1 − .3p)^4 misses."""
    risk = np.linspace(0, 1, 1001)
    misses = (1 - 0.3 * risk) ** 4
    best_of_4 = 1 - misses + 0.5 * (misses - (0.7 * risk) ** 4)
    optimum = risk[best_of_4.argmax()]
    assert 0.5 < optimum < 0.95
    found = bandit("max@4")
    assert found == pytest.approx(optimum, abs=0.08)
    assert np.interp(found, risk, best_of_4) > best_of_4.max() - 0.005
    assert bandit("mean") < 0.05


class Card:
    """A GPU whose memory is full where a forward pass has more than so many tokens, from a certain
    pass on."""

    def __init__(self, model: Any, tokens: int, after: int = 0) -> None:
        self.tokens, self.after, self.passes = tokens, after, 0
        model.get_input_embeddings().register_forward_pre_hook(self)

    def __call__(self, module: Any, inputs: Any) -> None:
        self.passes += 1
        if inputs[0].numel() > self.tokens and self.passes > self.after:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 504.00 MiB")


def seasoned(tokens: int, layout: str = "auto") -> Learner:
    """A learner that has seen a batch, so that its layout is settled."""
    learner = Learner(fixed(llama), tokens_per_micro_batch=tokens, layout=layout)
    learner.log_probs(long_groups()[0][:1])
    return learner


def long_groups() -> tuple[list[Any], np.ndarray]:
    """1,800 tokens: four groups of four rows."""
    draw = np.random.default_rng(0)
    rows = draw.integers(2, 30, (4, 4, 110)).tolist()
    return [group([2, 3, 4], each) for each in rows], draw.normal(size=(4, 4))


@pytest.mark.parametrize("after", [0, 1], ids=["at once", "with gradients of other micro-batches"])
@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_a_full_gpu_is_given_smaller_micro_batches_and_the_step_is_the_same(
    layout: str, after: int
) -> None:
    groups, weights = long_groups()
    ends, stats = [], []
    for budget, full in ((1_024, False), (512, False), (1_024, True)):
        learner = seasoned(budget, layout)
        if full:
            Card(learner.model, 512, after)
            with pytest.warns(UserWarning, match="have 512 tokens at most"):
                stats.append(learner.step(groups, weights))
            assert learner.batching.budget == 512
        else:
            stats.append(learner.step(groups, weights))
        ends.append(torch.cat([p.detach().flatten() for p in learner.model.parameters()]))
    assert stats[0]["micro_batches"] < stats[1]["micro_batches"] == stats[2]["micro_batches"]
    assert torch.equal(ends[1], ends[2])
    assert stats[1] == stats[2]
    torch.testing.assert_close(ends[0], ends[2])


def test_a_resumed_run_keeps_the_smaller_micro_batches() -> None:
    groups, weights = long_groups()
    learner, resumed = seasoned(1_024), seasoned(1_024)
    Card(learner.model, 512)
    with pytest.warns(UserWarning, match="have 512 tokens at most"):
        learner.step(groups, weights)
    resumed.load_state_dict(learner.state_dict())
    assert learner.step(groups, weights) == resumed.step(groups, weights)
    for old, new in zip(learner.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(old, new)


def test_log_probs_are_the_same_where_the_gpu_is_full() -> None:
    groups, _ = long_groups()
    plain = seasoned(512).log_probs(groups)
    learner = seasoned(4_096)
    Card(learner.model, 512)
    with pytest.warns(UserWarning, match="memory was full") as told:
        found = learner.log_probs(groups)
    halved = [re.search(r"have (\S+) tokens", str(each.message)) for each in told]
    assert [each and each[1] for each in halved] == ["2,048", "1,024", "512"]
    assert np.array_equal(found.log_prob, plain.log_prob)


def test_a_gpu_too_small_for_one_row_changes_nothing_and_says_so() -> None:
    groups, weights = long_groups()
    learner = seasoned(600)
    before = [p.detach().clone() for p in learner.model.parameters()]
    Card(learner.model, 100)
    with (
        pytest.warns(UserWarning, match="memory was full"),
        pytest.raises(torch.OutOfMemoryError, match="504"),
    ):
        learner.step(groups, weights)
    assert learner.steps == 0
    for old, now in zip(before, learner.model.parameters(), strict=True):
        assert torch.equal(old, now)
        assert now.grad is None

"""FP8 below LoRA adapters on CUDA: kernels, products, gradients; sampler and learner."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bestofk.agreement.tolerances import SAMPLER
from bestofk.fp8 import Fp8Linear, Fp8Weight, dequantised, product, quantised
from bestofk.learning import Learner, Optimizer
from bestofk.models.load import Lora, with_adapters
from bestofk.sampling import Sampling
from bestofk.sampling.engine import plain_kernels
from bestofk.sampling.engine.group_sampler import GroupSampler
from bestofk.training.processes import FP8_FROM
from bestofk.types import Prompt
from policies import fixed, letters, llama, random_groups

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        torch.cuda.is_available() and torch.cuda.get_device_capability() < FP8_FROM,
        reason="this GPU has no products in FP8",
    ),
]
HALF = torch.bfloat16


def off(found: Tensor, expected: Tensor) -> float:
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).norm() / expected.norm())


def draw(*shape: int) -> Tensor:
    """Rows whose sizes differ, and numbers of many sizes in each."""
    rows = torch.randn(*shape[:-1], 1, device="cuda").exp()
    return (torch.randn(*shape, device="cuda") * torch.randn(*shape, device="cuda") * rows).to(HALF)


def weight(outputs: int, inner: int) -> Fp8Weight:
    return Fp8Weight(*quantised(draw(outputs, inner)))


def policy(*, fp8: bool = True) -> Any:
    """Heads of 64, as FlashAttention has them, and adapters that add something."""
    model = fixed(
        lambda: llama(hidden_size=192, num_attention_heads=6, head_dim=64, initializer_range=0.05)
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = with_adapters(model.bfloat16(), Lora(rank=4, fp8=fp8))
        for name, p in model.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(p, std=0.05)
    return model.to("cuda")


@pytest.mark.parametrize("rows", [1, 40, 3000])
@pytest.mark.parametrize("width", [48, 3584, 18_944])
def test_the_kernel_quantises_bit_for_bit_as_pytorch_does(rows: int, width: int) -> None:
    from bestofk.sampling.engine import kernels

    torch.manual_seed(rows)
    x = draw(rows, width)
    x[0, :8] = 0.0
    if rows > 1:
        x[1] = 0.0
    values, scale = kernels.quantised(x)
    expected, sizes = quantised(x)
    assert torch.equal(scale, sizes)
    assert torch.equal(values.view(torch.uint8), expected.view(torch.uint8))
    on_cpu, _ = quantised(x.cpu())
    assert torch.equal(values.cpu().view(torch.uint8), on_cpu.view(torch.uint8))


def test_compiled_code_rounds_where_the_engine_does() -> None:
    """A norm and the quantising after it, as the compiled layers of the learner have them."""
    from bestofk.sampling.engine import kernels

    def of_norm(x: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
        z = x.float()
        z = z * torch.rsqrt(z.square().mean(-1, keepdim=True) + 1e-6)
        return quantised(gain * z.to(x.dtype))

    torch.manual_seed(0)
    x, gain = draw(300, 3584), draw(1, 3584)[0]
    found, scale = torch.compile(of_norm, dynamic=True)(x, gain)
    expected, sizes = kernels.quantised(kernels.norm(x, None, gain, 1e-6, HALF))
    assert torch.equal(scale, sizes)
    same = (found.view(torch.uint8) == expected.view(torch.uint8)).double().mean()
    assert float(same) > 0.995


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 17, 512, 8192])
@pytest.mark.parametrize(
    ("inner", "outputs", "near"), [(64, 96, 5e-3), (3584, 4608, 1e-2), (18_944, 3584, 3e-2)]
)
def test_products_are_those_of_the_numbers_in_float64(
    inner: int, outputs: int, near: float, rows: int, bias: bool
) -> None:
    """Tensor cores add numbers of FP8 with fewer bits than float32 has, so long sums are off."""
    torch.manual_seed(rows)
    x, by, plus = draw(rows, inner), weight(outputs, inner), draw(1, outputs)[0]
    given = plus if bias else None
    exact = F.linear(
        dequantised(*quantised(x), torch.float64),
        dequantised(by.values, by.scale, torch.float64),
        None if given is None else given.double(),
    )
    assert off(product(x, by, given), exact) < near


@pytest.mark.parametrize("compiled", [False, True])
def test_a_layer_passes_its_gradient_on(compiled: bool) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(512, 256, device="cuda", dtype=HALF).requires_grad_(False)
    layer: Any = Fp8Linear(linear)
    numbers = dequantised(layer.weight, layer.row_scale, torch.float64)
    run = torch.compile(layer, dynamic=True) if compiled else layer
    for rows in (33, 700):
        x = torch.randn(2, rows, 512, device="cuda", requires_grad=True)
        grad = torch.randn(2, rows, 256, device="cuda").to(HALF)
        with torch.autocast("cuda", HALF):
            out = run(x)
        out.backward(grad)
        assert out.dtype == HALF
        inputs = dequantised(*quantised(x.detach()), torch.float64)
        assert linear.bias is not None
        assert off(out, F.linear(inputs, numbers, linear.bias.double())) < 5e-3
        assert x.grad is not None
        assert off(x.grad, grad.double() @ numbers) < 5e-3


@pytest.mark.parametrize("rows", [1, 16, 64, 200])
@pytest.mark.parametrize("adapted", [False, True])
def test_the_engines_functions_are_the_plain_ones(rows: int, adapted: bool) -> None:
    from bestofk.sampling.engine import kernels

    torch.manual_seed(rows)
    inner, outputs = 576, 960
    x, delta, gain = draw(rows, inner), draw(rows, inner), draw(1, inner)[0]
    one, two, bias = weight(outputs, inner), weight(2 * outputs, inner), draw(1, outputs)[0]
    small, large = ((draw(4, inner) * 0.1, draw(n, 4) * 0.1) for n in (outputs, 2 * outputs))
    a, b = (small, large) if adapted else (None, None)
    for delta_or_none in (None, delta):
        found, expected = (
            [
                ops.normed_linear(x.clone(), delta_or_none, gain, 1e-5, one, bias, a),
                ops.gated(x.clone(), delta_or_none, gain, 1e-5, two, b),
                ops.add_linear(x, one, torch.zeros(rows, outputs, device="cuda", dtype=HALF), a),
            ]
            for ops in (kernels, plain_kernels)
        )
        for mine, plain in zip(found, expected, strict=True):
            assert mine is not None
            assert plain is not None
            assert off(mine, plain) < 2e-2  # an input between two numbers may become either


@pytest.mark.parametrize("compiled", [False, True])
def test_sampler_and_learner_are_one_policy_also_after_a_step(compiled: bool) -> None:
    model = policy()
    sampler = GroupSampler(
        model, letters(26, end=1), precision="bf16", memory_gib=8, compiled=compiled
    )
    learner = Learner(
        model, precision="bf16", optimizer=Optimizer(learning_rate=1e-3), compiled=compiled
    )
    plain = Learner(policy(fp8=False), precision="bf16", compiled=False)
    prompts = [Prompt(str(i), "abcdefghij"[: 1 + (i * 3) % 9], "test") for i in range(12)]
    for step in range(3):
        groups = sampler.sample(
            prompts, seed=step, sampling=Sampling(samples_per_prompt=16, max_new_tokens=40)
        )
        sampled = np.concatenate([c.log_probs for g in groups for c in g.trajectories])
        gaps = [
            np.abs(np.concatenate(sum(each.log_probs(groups).tokens, ())) - sampled).mean()
            for each in (learner, plain)
        ]
        print(f"mean |log-prob difference| {gaps[0]:.4f}, to the policy in bfloat16 {gaps[1]:.4f}")
        assert gaps[0] < 0.5 * SAMPLER.limit(reduced=True)
        if step == 0:
            assert gaps[0] < gaps[1]
        learner.step(groups, np.random.default_rng(step).normal(size=(12, 16)))
    assert sampler.reason is None
    assert sampler.check.agreement is not None
    assert sampler.resident.engine_model is not None
    assert sampler.resident.engine_model.fused_model is not None
    assert not sampler.resident.engine_model.copies


def test_the_adapters_gradient_is_that_of_float32_up_to_rounding() -> None:
    groups = random_groups(6, 8, longest=40)
    weights = np.random.default_rng(1).normal(size=(6, 8))
    found = []
    both: list[dict[str, Any]] = [{"layout": "padded", "precision": "fp32"}, {"precision": "bf16"}]
    for options in both:
        learner = Learner(
            policy(),
            optimizer=Optimizer(learning_rate=1e-12, max_grad_norm=0.0),
            tokens_per_micro_batch=400,
            **options,
        )
        seen: list[Tensor] = []

        def look(*_: Any, model: Any = learner.model, seen: list[Tensor] = seen) -> None:
            seen.extend(p.grad.flatten().clone() for p in model.parameters() if p.grad is not None)

        learner.update.optimizer.register_step_pre_hook(look)
        learner.step(groups, weights)
        found.append(torch.cat(seen))
    print(f"gradient: {off(found[1], found[0]):.3f} from float32")
    assert off(found[1], found[0]) < 0.2
